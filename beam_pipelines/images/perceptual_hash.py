"""Perceptual hashes: images that look alike have hashes of which few bits differ.

The hash is akin to the one that is called pHash (https://www.phash.org/docs/design.html): which of the lowest frequencies of a small grey
image are positive. To recompress or to resize an image, or to change its brightness or its colours, alters few of them; to mirror it
alters just the signs of those that are odd from left to right. An image with alpha is seen before a middle grey, on which black shapes
show as white ones do, and black before white has the same signs as black before grey. All is counted in whole numbers, so that an image
has one hash on every machine; those that matrices are multiplied with are in floating point, which is exact as long as none exceeds 53
bits.
"""

import functools
from typing import Sequence

import numpy as np

from beam_pipelines.config.image_config import ImageConfig
from beam_pipelines.images.image_codecs import decode_jpeg, to_image, turn
from beam_pipelines.images.image_headers import check_size, exif_orientation, identify, read_jpeg_header
from beam_pipelines.images.images import check_image, check_pixels
from beam_pipelines.images.raw_image import RawImage

# Words of 64 bits of a hash.
HASH_WORDS = 4

_SIDE = 32  # of the small image, in pixels
_LOW = 16  # frequencies of each direction
_LOWEST = 8  # of them those of the first word

# Images whose grey values differ less than this, as a standard deviation, show nothing: black frames, blank pages.
_FLAT = 2

_GREY_UNITS = 256  # of the small image, to a grey value
_COSINE_UNITS = 1 << 15

# So that a shape is seen whose colours behind the alpha are all one.
_BACKDROP = 128

# What a processor's cache holds at a time.
_BLOCK_IMAGES = 32

# A side that has twice as many pixels is made smaller by whole pixels before.
_ENOUGH_PIXELS = 128


class _AsSeen(ImageConfig):
    """Images as they are looked at: uint8 pixels, before a plain ground."""

    backdrop = _BACKDROP


_AS_SEEN = _AsSeen(encoding="raw")


def look_at(data: bytes, check: str) -> np.ndarray:
    """Decodes an image file, as it is checked. Of a large JPEG an eighth of the scale is enough.

    Args:
        data: The bytes of the file.
        check: How far the image is checked, `strict` or `decode`: see `check_image`.

    Returns:
        The upright image in grey, as small as is enough for its hash: uint8 [height, width].

    Raises:
        Refusal: The bytes are no image, or a damaged one.
    """
    if identify(data) != "jpeg":
        return _grey(check_image(data, check, full_scale=True, images=_AS_SEEN).pixels)
    header = read_jpeg_header(data)
    check_size("jpeg", header.height, header.width)
    side = min(header.height, header.width)
    reduction = max(one for one in (1, 2, 4, 8) if one == 1 or side >= one * _SIDE)  # as the decoder can, and no smaller than `_SIDE`
    pixels = decode_jpeg(data, header, "RGB" if header.num_components == 4 else "GRAY", check == "strict", reduction).pixels
    orientation = exif_orientation(header.exif) if header.exif else 1
    return _grey(pixels if orientation == 1 else np.atleast_3d(turn(to_image(pixels), orientation)))


def look_at_pixels(data: bytes, raw: RawImage) -> np.ndarray:
    """Makes of pixels without a format what `look_at` makes of a file: uint8 [height, width].

    Args:
        data: The bytes of the pixels.
        raw: How the pixels lie.

    Raises:
        Refusal: There are more or fewer bytes than the layout says.
    """
    return _grey(check_pixels(data, raw, _AS_SEEN, full_scale=True).pixels)


def perceptual_hashes(images: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Hashes images, many at a time: of those that have one size each step is one of NumPy's.

    Args:
        images: The images, in grey, as `look_at` gives them: uint8 [height, width] each.

    Returns:
        The hashes, uint64 [num_images, HASH_WORDS], and whether each image shows something that a hash could tell from other images, bool
        [num_images]. The lowest frequencies are in the first word, but for its first bit, which is never set. In the upper half of the
        first and of the third word, and in the last one, are the bits that a mirrored image has the other way round.
    """
    blocks = [_hash(images[start : start + _BLOCK_IMAGES]) for start in range(0, len(images), _BLOCK_IMAGES)]
    hashes, has_look = zip(*blocks) if blocks else ([np.zeros((0, HASH_WORDS), np.uint64)], [np.zeros(0, bool)])
    return np.concatenate(hashes), np.concatenate(has_look)


def _hash(images: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    of_shapes: dict[tuple[int, ...], list[int]] = {}
    for place, image in enumerate(images):
        of_shapes.setdefault(image.shape, []).append(place)
    shrunk = [_shrink(np.concatenate([images[place] for place in places]).reshape(-1, *shape)) for shape, places in of_shapes.items()]
    small = shrunk[0]
    if len(shrunk) > 1:
        small = np.concatenate(shrunk)[np.argsort([place for places in of_shapes.values() for place in places])]
    positive = np.take((_COSINES @ small @ _COSINES.T).reshape(-1, _LOW * _LOW) > 0, _ORDER, axis=1)
    positive[:, 0] = False  # the mean of the image, which is no part of its look
    sums, squares = small.sum(axis=(1, 2)), np.einsum("ijk,ijk->i", small, small)
    has_look = _SIDE**2 * squares - sums**2 >= (_FLAT * _GREY_UNITS * _SIDE**2) ** 2
    return np.packbits(positive, axis=1, bitorder="little").view("<u8"), has_look


def _grey(pixels: np.ndarray) -> np.ndarray:
    """Converts pixels, uint8 [height, width, 1 or 3], to grey: uint8 [height, width]."""
    height, width, num_channels = pixels.shape
    reduction = max(1, width // _ENOUGH_PIXELS), max(1, height // _ENOUGH_PIXELS)
    if num_channels == 1 and reduction == (1, 1):
        return pixels[..., 0]
    return np.asarray(to_image(pixels).convert("L").reduce(reduction))


def _shrink(images: np.ndarray) -> np.ndarray:
    """Shrinks images to the mean of the grey values in each cell of a grid: float64 [num_images, _SIDE, _SIDE].

    The means are whole numbers in units of 1/_GREY_UNITS.
    """
    height, width = images.shape[1:]
    if (height, width) == (_SIDE, _SIDE):
        return images * float(_GREY_UNITS)
    cells = _cells(height) @ images.astype(np.float64) @ _cells(width).T
    return np.floor(cells * _GREY_UNITS / (height * width))


@functools.lru_cache(maxsize=64)  # photographs of a data set have few sizes, as a rule
def _cells(size: int) -> np.ndarray:
    """How much of each pixel lies in each of `_SIDE` cells of equal length, in units of 1/_SIDE: float64 [_SIDE, size]."""
    pixels = _SIDE * np.arange(size + 1)
    ends = size * np.arange(_SIDE + 1)[:, None]
    return np.clip(np.minimum(pixels[1:], ends[1:]) - np.maximum(pixels[:-1], ends[:-1]), 0, None).astype(np.float64)


def _cosines() -> np.ndarray:
    """The lowest rows of the discrete cosine transform, type II, orthonormal, in units of 1/_COSINE_UNITS: float64 [_LOW, _SIDE]."""
    places = (2 * np.arange(_SIDE) + 1) * np.pi / (2 * _SIDE)
    rows = np.cos(np.arange(_LOW)[:, None] * places) * np.sqrt(2 / _SIDE)
    rows[0] /= np.sqrt(2)
    return np.rint(rows * _COSINE_UNITS)


def _order() -> np.ndarray:
    """The frequencies in the order of the bits.

    The lowest come first, and of these as of the others first those that are even from left to right.
    """
    rows, columns = np.divmod(np.arange(_LOW * _LOW), _LOW)
    return np.lexsort((columns % 2, np.maximum(rows, columns) >= _LOWEST))


_COSINES = _cosines()
_ORDER = _order()
