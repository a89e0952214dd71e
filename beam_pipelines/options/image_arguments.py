"""The options of `recordmill prepare` for stored images and their conversion to a configuration."""

import argparse

from beam_pipelines.config.image_config import IMAGE_ENCODINGS, ImageConfig
from beam_pipelines.options.option_values import parse_image_format, parse_image_size


def add_image_options(group: argparse._ArgumentGroup) -> None:
    """Adds the options for stored images to an option group of `prepare`."""
    add = group.add_argument
    add(
        "--image_size",
        metavar="SIZE",
        help="short=256 or long=1024: larger images are made smaller until that side has so many pixels; exact=HEIGHTxWIDTH: all "
        "images have that size (default: as they are)",
    )
    add(
        "--image_format",
        default="keep",
        metavar="FORMAT",
        help="keep, png, jpeg or webp, with a quality: jpeg:90. WebP is read by tf_input with TensorFlow 2.21, not by TensorFlow Datasets "
        "(default: keep)",
    )
    add("--image_encoding", choices=IMAGE_ENCODINGS, default="file", help="raw: as uint8 pixels, for small images of one size")
    add("--keep_depth", action="store_true", help="tf_input reads all 16 bits of a PNG that has them: batches are uint16 (default: 8 bits)")


def make_image_config(arguments: argparse.Namespace) -> ImageConfig:
    """Converts the arguments for stored images to their configuration.

    Raises:
        UserError: A value is invalid, or two options exclude each other.
    """
    image_format, quality = parse_image_format(arguments.image_format)
    size = None if arguments.image_size is None else parse_image_size(arguments.image_size)
    return ImageConfig(size, image_format, quality, arguments.image_encoding, arguments.keep_depth)
