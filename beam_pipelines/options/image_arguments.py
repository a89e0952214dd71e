"""Defines the options of `recordmill prepare` that determine how images are stored."""

import argparse

from beam_pipelines.config.image_config import IMAGE_ENCODINGS, ImageConfig
from beam_pipelines.options.option_values import parse_image_format, parse_image_size


def add_image_options(group: argparse._ArgumentGroup) -> None:
    """Adds the options that determine how images are stored to an option group of `recordmill prepare`."""
    add = group.add_argument
    add(
        "--image_size",
        metavar="SIZE",
        help="Size of the stored images. short=256: shrink larger images until the short side has 256 pixels. "
        "long=1024: shrink larger images until the long side has 1024 pixels. exact=HEIGHTxWIDTH: resize all images "
        "to this size. Default: the original size.",
    )
    add(
        "--image_format",
        default="keep",
        metavar="FORMAT",
        help="Format of the stored images: keep (the original format), png, jpeg or webp. jpeg and webp can have "
        "a quality, such as jpeg:90. TensorFlow Datasets cannot read WebP, and tf_input needs TensorFlow 2.21 for it. "
        "Default: keep.",
    )
    add(
        "--image_encoding",
        choices=IMAGE_ENCODINGS,
        default="file",
        help="Encoding of the stored images. file: image files. raw: uint8 pixels, for small images of the same size. "
        "Default: file.",
    )
    add(
        "--keep_depth",
        action="store_true",
        help="Make tf_input read 16-bit PNG and TIFF files as uint16 images with all 16 bits. Default: tf_input reads them as "
        "uint8 images.",
    )


def make_image_config(arguments: argparse.Namespace) -> ImageConfig:
    """Converts the image arguments of `recordmill prepare` to an image configuration.

    Raises:
        UserError: A value is invalid, or two options exclude each other.
    """
    image_format, quality = parse_image_format(arguments.image_format)
    size = None if arguments.image_size is None else parse_image_size(arguments.image_size)
    return ImageConfig(size, image_format, quality, arguments.image_encoding, arguments.keep_depth)
