"""Makes thumbnails (small JPEGs) of images, and of the readable parts of rejected images."""

from typing import NamedTuple

import numpy as np
import simplejpeg

from beam_pipelines.config.image_config import ImageConfig
from beam_pipelines.errors import InvalidInput
from beam_pipelines.images.image_codecs import decode_jpeg, load, open_with_pillow, rgb
from beam_pipelines.images.image_headers import NEVER_STORED, check_size, identify, read_jpeg_header
from beam_pipelines.images.images import check_image, check_pixels
from beam_pipelines.images.raw_image import RawImage
from beam_pipelines.images.resize import jpeg_reduction, stored_size
from beam_pipelines.images.arrays import NPY_MAGIC, npy_image

SIDE = 112  # In pixels.

_QUALITIES = (75, 50)  # If the first JPEG is too large, the second quality is used at half the size.
_MAX_BYTES = 24 << 10
_MAX_REJECTED_PIXELS = 1 << 24  # For formats other than JPEG, which are decoded as a whole.


class Thumbnail(NamedTuple):
    """A small JPEG of an image.

    Attributes:
        encoded: The bytes of a JPEG of at most 24 KiB.
        height: The height of the thumbnail in pixels.
        width: The width of the thumbnail in pixels.
    """

    encoded: bytes
    height: int
    width: int


def make_thumbnail(data: bytes, raw: RawImage | None = None, side: int = SIDE, check: str = "header") -> Thumbnail:
    """Makes a thumbnail of an image. A JPEG that is small enough is not changed.

    Args:
        data: The bytes of an image file or of raw pixels.
        raw: The layout of raw pixels. None for an image file.
        side: The length of the thumbnail's longer side, in pixels.
        check: The level of checks, as in `check_image`.

    Raises:
        InvalidInput: The image cannot be decoded.
    """
    for part, quality in enumerate(_QUALITIES, start=1):
        config = ImageConfig(size=("long", side // part), format="jpeg", quality=quality)
        checked = check_pixels(data, raw, config) if raw else check_image(data, check, images=config)
        encoded = data if checked.encoded is None else checked.encoded
        if len(encoded) <= _MAX_BYTES:
            return Thumbnail(encoded, checked.height, checked.width)
    raise InvalidInput("bad_image", f"a thumbnail of {len(encoded)} bytes")


def make_thumbnail_of_refused(data: bytes, raw: RawImage | None = None) -> Thumbnail | None:
    """Makes a thumbnail of the readable part of a rejected image, such as the first frame of an animated GIF. Returns
    None if no part is readable, or if the image is too large to decode."""
    try:
        if raw is None and data.startswith(NPY_MAGIC):
            raw, data = npy_image(data)
        return make_thumbnail(data, raw, check="decode")
    except InvalidInput:
        pass
    try:
        pixels = _decode_corrupt(data)
        return make_thumbnail(pixels.tobytes(), RawImage(*pixels.shape))
    except Exception:  # Libraries raise arbitrary errors for corrupt bytes. A missing thumbnail must not fail the run.
        return None


def check_thumbnail(encoded: bytes) -> None:
    """Checks that bytes are a valid thumbnail from `make_thumbnail`.

    Raises:
        InvalidInput: The bytes are not a JPEG, are corrupt, or too large.
    """
    if len(encoded) > _MAX_BYTES:
        raise InvalidInput("bad_image", f"{len(encoded)} bytes; the limit is {_MAX_BYTES}")
    if identify(encoded) != "jpeg":
        raise InvalidInput("bad_image", "not a JPEG")
    header = read_jpeg_header(encoded)
    if max(header.height, header.width) > SIDE:
        raise InvalidInput("bad_image", f"{header.width} x {header.height} pixels; the limit is {SIDE} x {SIDE}")
    check_image(encoded, "decode")


def _decode_corrupt(data: bytes) -> np.ndarray:
    """Decodes the readable part of an image, uint8 [height, width, 3]. Missing pixels are gray. The result may be
    reduced, but not below the size of a thumbnail."""
    image_format = identify(data)
    if image_format is None or image_format in NEVER_STORED:
        raise InvalidInput("bad_image", "not an image that can be decoded in part")
    if image_format != "jpeg":
        image = open_with_pillow(image_format, data, may_be_animated=True)
        if image.height * image.width > _MAX_REJECTED_PIXELS:
            raise InvalidInput("bad_image", f"{image.width} x {image.height} pixels")
        load(image_format, image)
        return rgb(image)
    header = read_jpeg_header(data)
    size = header.height, header.width
    check_size("jpeg", *size)
    factor = jpeg_reduction(size, stored_size(("long", SIDE), *size))
    height, width = (-(-length // factor) for length in size)
    try:
        return simplejpeg.decode_jpeg(data, "RGB", strict=False, min_height=height, min_width=width, min_factor=factor)
    except ValueError as error:
        raise InvalidInput("bad_image", f"JPEG: {error}") from None


def measure_brightness(thumbnail: bytes) -> float:
    """Returns the mean gray value of a thumbnail, from 0 (black) to 1 (white).

    Raises:
        InvalidInput: The thumbnail cannot be decoded.
    """
    return float(decode_jpeg(thumbnail, read_jpeg_header(thumbnail), "GRAY", True, 8).pixels.mean()) / 255
