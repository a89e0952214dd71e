"""The options of stored images."""

import dataclasses
import functools
import re

from beam_pipelines.config.option import Options, option
from beam_pipelines.config.values import parse_image_size, show_image_size
from beam_pipelines.errors import UserError, did_you_mean

MAX_IMAGE_PIXELS = 89_478_485  # Pillow's limit against decompression bombs: a quarter GiB of RGB pixels.

IMAGE_FORMATS = ("keep", "jpeg", "png", "webp")
_QUALITY = 95
_option = functools.partial(option, group="stored images", needs_images=True)


def _parse_format(text: str) -> tuple[str, int]:
    """Parses `--image_format` into (format, quality): `jpeg:90` becomes ("jpeg", 90); `jpeg` becomes ("jpeg", 95)."""
    name, colon, quality = text.partition(":")
    if colon and (name not in ("jpeg", "webp") or not re.fullmatch(r"\d{1,3}", quality)):
        raise ValueError("invalid value. Give keep, png, jpeg or webp, the last two optionally with a quality, such as jpeg:90.")
    if name not in IMAGE_FORMATS:
        raise ValueError(f"invalid value. Give one of {', '.join(IMAGE_FORMATS)}{did_you_mean(name, IMAGE_FORMATS)}")
    if colon and not 1 <= int(quality) <= 100:
        raise ValueError("invalid value. Give a quality from 1 to 100.")
    return name, int(quality) if colon else _QUALITY


@dataclasses.dataclass(frozen=True)
class ImageConfig(Options):
    """The options of stored images.

    Attributes:
        size: ("short", pixels), ("long", pixels), ("exact", height, width), or None for the original size.
        format: One of `IMAGE_FORMATS`.
        quality: The quality of re-encoded JPEG and WebP images, from 1 to 100.
        backdrop: The gray value of the background on which transparent images are composited for perceptual hashes.
            None ignores the alpha channel.
    """

    size: tuple[str, int] | tuple[str, int, int] | None = _option(
        None, "--image_size", metavar="SIZE", parse=parse_image_size, show=show_image_size,
        expected="short=PIXELS, long=PIXELS or exact=HEIGHTxWIDTH, such as short=256",
        help="Size of the stored images. short=256: shrink larger images until the short side has 256 pixels. "
        "long=1024: shrink larger images until the long side has 1024 pixels. exact=HEIGHTxWIDTH: resize all images to "
        "this size. Default: the original size.",
    )
    format: str = _option(
        "keep", "--image_format", metavar="FORMAT", parse=lambda text: _parse_format(text)[0],
        help="Format of the stored images: keep (the original format), png, jpeg or webp. jpeg and webp can have a "
        "quality, such as jpeg:90. TensorFlow Datasets cannot read WebP, and tf_input needs TensorFlow 2.21 for it.",
    )
    quality: int = _option(_QUALITY, "--image_format", parse=lambda text: _parse_format(text)[1], show=lambda quality: f":{quality}")
    encoding: str = _option(
        "file", "--image_encoding", choices=("file", "raw"),
        help="Encoding of the stored images. file: image files. raw: uint8 pixels, for small images of the same size.",
    )
    keep_depth: bool = _option(
        False,
        help="Make tf_input read 16-bit PNG and TIFF files as uint16 images with all 16 bits. Default: tf_input reads "
        "them as uint8 images.",
    )
    backdrop = None

    def check_combination(self) -> None:
        height, width = self.size[1:] if self.size and self.size[0] == "exact" else (1, 1)
        if height * width > MAX_IMAGE_PIXELS:
            raise UserError(f"--image_size=exact={height}x{width} is too large. Give at most {MAX_IMAGE_PIXELS} pixels.")
        if self.encoding == "raw" and self.format != "keep":
            raise UserError(f"--image_format={self.format} and --image_encoding=raw cannot be used together. Give only one of them.")
        if self.keep_depth and (self.size or self.encoding == "raw" or self.format not in ("keep", "png")):
            raise UserError(
                "--keep_depth: resized and converted images have only 8 bits. Omit --image_size and --image_encoding, and use no "
                "--image_format other than png."
            )

    @property
    def is_kept(self) -> bool:
        """Whether image files are stored without re-encoding if records can contain their format."""
        return dataclasses.replace(self, keep_depth=False) == ImageConfig()
