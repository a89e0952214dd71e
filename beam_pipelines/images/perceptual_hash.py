"""Perceptual hashes: images that look alike have hashes of which few bits differ.

The hash is the one that is called pHash (https://www.phash.org/docs/design.html): which of the lowest frequencies of a small grey image are
above their median. To recompress or to resize an image, or to change its brightness or its colours, alters few of them. All is counted in
integers, so that an image has one hash on every machine.
"""

from typing import NamedTuple

import numpy as np

from beam_pipelines.config.image_config import ImageConfig
from beam_pipelines.errors import Refusal
from beam_pipelines.images.image_codecs import decode_jpeg, to_image, turn
from beam_pipelines.images.image_headers import check_size, exif_orientation, identify, read_jpeg_header
from beam_pipelines.images.images import check_image, check_pixels
from beam_pipelines.images.raw_image import RawImage

_SIDE = 32  # of the small image, in pixels
_LOW = 8  # frequencies of each direction

# Images whose grey values differ less than this, as a standard deviation, show nothing: black frames, blank pages.
_FLAT = 2

_GREY_UNITS = 256  # of the small image, to a grey value
_COSINE_UNITS = 1 << 15


class PerceptualHash(NamedTuple):
    """The hash of one image.

    Attributes:
        value: 64 bits.
        mirrored: The hash of the same image mirrored, left to right.
        is_flat: Whether it shows nothing that a hash could tell from other such images.
    """

    value: int
    mirrored: int
    is_flat: bool


def hash_image(data: bytes, check: str) -> PerceptualHash:
    """Decodes an image file, as it is checked, and hashes the upright image. Of a large JPEG an eighth of the scale is enough.

    Args:
        data: The bytes of the file.
        check: `strict` or `decode`: see `check_image`.

    Raises:
        Refusal: It is no image, or a damaged one.
    """
    if identify(data) != "jpeg":
        return perceptual_hash(check_image(data, check, full_scale=True, images=ImageConfig(encoding="raw")).pixels)
    header = read_jpeg_header(data)
    check_size("jpeg", header.height, header.width)
    reduction = next(one for one in (8, 4, 2, 1) if one == 1 or min(header.height, header.width) >= one * _SIDE)
    pixels = decode_jpeg(data, header, "RGB" if header.num_components == 4 else "GRAY", check == "strict", reduction)
    orientation = exif_orientation(header.exif) if header.exif else 1
    return perceptual_hash(pixels if orientation == 1 else np.asarray(turn(to_image(pixels), orientation)))


def hash_pixels(data: bytes, raw: RawImage) -> PerceptualHash:
    """Hashes pixels that have no format, from their bytes; Refusal where there are more or fewer of them."""
    return perceptual_hash(check_pixels(data, raw, ImageConfig(encoding="raw"), full_scale=True).pixels)


def perceptual_hash(pixels: np.ndarray) -> PerceptualHash:
    """Hashes an image.

    Args:
        pixels: uint8 [height, width] or [height, width, channels], grey or RGB, at any scale that keeps 32 pixels a side.

    Raises:
        Refusal: It has no pixel.
    """
    small = _shrink(pixels)
    frequencies = _COSINES @ small @ _COSINES.T
    is_flat = small.size * np.sum(small**2) - np.sum(small) ** 2 < (_FLAT * _GREY_UNITS * small.size) ** 2
    # A mirrored image has the opposite sign of what is odd from left to right.
    return PerceptualHash(_bits(frequencies), _bits(frequencies * _MIRROR), bool(is_flat))


def _shrink(pixels: np.ndarray) -> np.ndarray:
    """int64 [_SIDE, _SIDE]: the mean of the grey values in each cell of a grid, in units of 1/_GREY_UNITS."""
    if 0 in pixels.shape:
        raise Refusal("bad_image", f"an image of {pixels.shape}; expected a pixel at least")
    height, width = pixels.shape[:2]
    cells = _sum_cells(_sum_cells(pixels, 0), 1)  # whose sums are of height x width units for each grey value
    if cells.ndim == 3:
        weights = _LUMA if cells.shape[2] == 3 else np.ones(cells.shape[2], np.int64)
        return (cells * weights).sum(axis=2) * _GREY_UNITS // (height * width * int(weights.sum()))
    return cells * _GREY_UNITS // (height * width)


def _sum_cells(values: np.ndarray, axis: int) -> np.ndarray:
    """Sums of `_SIDE` stretches of equal length, whose ends may lie within a pixel, in units of 1/_SIDE: int64."""
    size = values.shape[axis]
    ends = np.arange(_SIDE + 1) * size
    whole, part = ends // _SIDE, (ends % _SIDE).reshape([-1 if at == axis else 1 for at in range(values.ndim)])
    sums = np.add.reduceat(values, whole[:-1], axis=axis, dtype=np.int64)
    sums[(slice(None),) * axis + (whole[1:] == whole[:-1],)] = 0  # where `reduceat` has the pixel in which a stretch begins and ends
    at_ends = part * np.take(values, np.minimum(whole, size - 1), axis=axis)
    return _SIDE * sums + np.diff(at_ends, axis=axis)


def _bits(frequencies: np.ndarray) -> int:
    low = frequencies.ravel()
    # The mean of the image is no part of its look, and its sign is always the same.
    above = low > np.sort(low[1:])[len(low) // 2 - 1]
    above[0] = False
    return int.from_bytes(np.packbits(above).tobytes(), "big")


def _cosines() -> np.ndarray:
    """int64 [_LOW, _SIDE]: the lowest rows of the discrete cosine transform, type II, orthonormal, in units of 1/_COSINE_UNITS."""
    places = (2 * np.arange(_SIDE) + 1) * np.pi / (2 * _SIDE)
    rows = np.cos(np.arange(_LOW)[:, None] * places) * np.sqrt(2 / _SIDE)
    rows[0] /= np.sqrt(2)
    return np.rint(rows * _COSINE_UNITS).astype(np.int64)


_COSINES = _cosines()
_MIRROR = np.where(np.arange(_LOW) % 2, -1, 1)
_LUMA = np.array([299, 587, 114])
