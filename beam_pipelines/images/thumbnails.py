"""Thumbnails: small JPEGs of images, also of those that were refused, as far as anything can be seen of them."""

from typing import NamedTuple

import numpy as np
import simplejpeg

from beam_pipelines.config.image_config import ImageConfig
from beam_pipelines.errors import Refusal
from beam_pipelines.images.image_codecs import decode_jpeg, load, open_with_pillow, rgb
from beam_pipelines.images.image_headers import check_gif_size, check_size, identify, read_jpeg_header
from beam_pipelines.images.images import check_image, check_pixels
from beam_pipelines.images.raw_image import RawImage
from beam_pipelines.images.resize import jpeg_reduction, stored_size
from beam_pipelines.images.tensor_values import NPY_MAGIC, npy_image

SIDE = 112  # in pixels

_QUALITIES = (75, 50)  # the second one at half the size, where the first takes more bytes than it may
_MAX_BYTES = 24 << 10
_MAX_REFUSED_PIXELS = 1 << 24  # of what is no JPEG, and decoded as a whole


class Thumbnail(NamedTuple):
    """A small JPEG of an image.

    Attributes:
        encoded: The bytes of a JPEG, at most 24 KiB.
        height: The height of the thumbnail in pixels.
        width: The width of the thumbnail in pixels.
    """

    encoded: bytes
    height: int
    width: int


def make_thumbnail(data: bytes, raw: RawImage | None = None, side: int = SIDE, check: str = "header") -> Thumbnail:
    """Makes a thumbnail of an image; one that is a small JPEG already stays as it is.

    Args:
        data: The bytes of an image file, or of pixels.
        raw: How the pixels lie; None: the bytes are a file's.
        side: The length of the thumbnail's longer side in pixels.
        check: How far the image is checked, as in `check_image`.

    Raises:
        Refusal: The image can't be decoded.
    """
    for part, quality in enumerate(_QUALITIES, start=1):
        config = ImageConfig(size=("long", side // part), format="jpeg", quality=quality)
        checked = check_pixels(data, raw, config) if raw else check_image(data, check, images=config)
        encoded = data if checked.encoded is None else checked.encoded
        if len(encoded) <= _MAX_BYTES:
            return Thumbnail(encoded, checked.height, checked.width)
    raise Refusal("bad_image", f"{len(encoded)} bytes of a thumbnail")


def make_thumbnail_of_refused(data: bytes, raw: RawImage | None = None, side: int = SIDE) -> Thumbnail | None:
    """Makes a thumbnail of what can be seen of an image that was refused.

    That is what is whole of a damaged JPEG, and the first frame of an animated GIF. None where that is nothing, and of images that are so
    large that nothing of them should be decoded.
    """
    try:
        if raw is None and data.startswith(NPY_MAGIC):
            raw, data = npy_image(data)
        return make_thumbnail(data, raw, side, "decode")
    except Refusal:
        pass
    try:
        pixels = _decode_damaged(data, side)
        return make_thumbnail(pixels.tobytes(), RawImage(*pixels.shape), side)
    except Exception:  # whatever a library makes of damaged bytes: no run ends for want of a thumbnail
        return None


def check_thumbnail(encoded: bytes) -> None:
    """Checks that bytes are such a small JPEG as `make_thumbnail` makes.

    Raises:
        Refusal: The bytes are no JPEG, a damaged one, or one that is too large.
    """
    if len(encoded) > _MAX_BYTES:
        raise Refusal("bad_image", f"{len(encoded)} bytes; expected at most {_MAX_BYTES}")
    if identify(encoded) != "jpeg":
        raise Refusal("bad_image", "no JPEG")
    header = read_jpeg_header(encoded)
    if max(header.height, header.width) > SIDE:
        raise Refusal("bad_image", f"{header.width} x {header.height} pixels; expected at most {SIDE} x {SIDE}")
    check_image(encoded, "decode")


def _decode_damaged(data: bytes, side: int) -> np.ndarray:
    """Decodes what is whole of an image: uint8 [height, width, 3], not smaller than a thumbnail unless the image is.

    What is missing is grey.
    """
    image_format = identify(data)
    if image_format is None:
        raise Refusal("bad_image", "no image")
    if image_format == "gif":
        check_gif_size(data)
    if image_format != "jpeg":
        image = open_with_pillow(image_format, data)
        if image.height * image.width > _MAX_REFUSED_PIXELS:
            raise Refusal("bad_image", f"{image.width} x {image.height} pixels")
        load(image_format, image)
        return rgb(image)
    header = read_jpeg_header(data)
    size = header.height, header.width
    check_size("jpeg", *size)
    factor = jpeg_reduction(size, stored_size(("long", side), *size))
    height, width = (-(-length // factor) for length in size)
    try:
        return simplejpeg.decode_jpeg(data, "RGB", strict=False, min_height=height, min_width=width, min_factor=factor)
    except ValueError as error:
        raise Refusal("bad_image", f"JPEG: {error}") from None


def measure_brightness(thumbnail: bytes) -> float:
    """How bright a thumbnail is: the mean of its grey values, from 0, black, to 1, white.

    Raises:
        Refusal: The thumbnail can't be decoded.
    """
    return float(decode_jpeg(thumbnail, read_jpeg_header(thumbnail), "GRAY", True, 8).pixels.mean()) / 255
