"""Computes perceptual hashes of images. Hashes of images that look similar differ in few bits.

The hash is similar to pHash (https://www.phash.org/docs/design.html): each bit is the sign of a low-frequency DCT
coefficient of a small gray image. Recompression, resizing, and changes of brightness or color affect only a few bits. A
horizontal flip inverts exactly the bits of frequencies that are antisymmetric from left to right. Images with alpha are
composited over middle gray, so that black shapes are as visible as white shapes. All matrices contain integers, stored
as floats, so that their products are exact, and the hash is the same on every machine.
"""

import functools
from typing import Sequence

import numpy as np

from beam_pipelines.config.image_config import ImageConfig
from beam_pipelines.images.image_codecs import decode_jpeg, to_image, rotate
from beam_pipelines.images.image_headers import check_size, exif_orientation, identify, read_jpeg_header
from beam_pipelines.images.images import check_image, check_pixels
from beam_pipelines.images.raw_image import RawImage

# The number of 64-bit words in a hash.
HASH_WORDS = 4

_SIDE = 32  # Side of the small image, in pixels.
_LOW = 16  # Number of frequencies in each direction.
_LOWEST = 8  # Number of frequencies in each direction in the first word.

# Images with a smaller standard deviation of gray values are considered blank, such as black frames and empty pages.
_FLAT = 2

_GREY_UNITS = 256  # Units of the small image per gray value.
_COSINE_UNITS = 1 << 15

# A gray background, against which shapes that only the alpha channel defines are visible.
_BACKDROP = 128

# The number of small images that fit into the processor's cache.
_BLOCK_IMAGES = 32

# Images with at least twice as many pixels per side are first reduced by an integer factor.
_ENOUGH_PIXELS = 128


class _DisplayOptions(ImageConfig):
    """Options for decoding images to uint8 pixels, with alpha channels composited over a plain background."""

    backdrop = _BACKDROP


_AS_SEEN = _DisplayOptions(encoding="raw")


def load_for_hash(data: bytes, check: str) -> np.ndarray:
    """Decodes an image file for its hash. Large JPEGs are decoded at a reduced scale, down to 1/8.

    Args:
        data: The bytes of the file.
        check: The level of checks, `strict` or `decode` (see `check_image`).

    Returns:
        The upright image in gray, reduced but large enough for its hash, uint8 [height, width].

    Raises:
        InvalidInput: The bytes are not an image, or are corrupt.
    """
    if identify(data) != "jpeg":
        return _grey(check_image(data, check, full_scale=True, images=_AS_SEEN).pixels)
    header = read_jpeg_header(data)
    check_size("jpeg", header.height, header.width)
    side = min(header.height, header.width)
    # The smallest scale of the decoder at which at least `_SIDE` pixels remain.
    reduction = max(item for item in (1, 2, 4, 8) if item == 1 or side >= item * _SIDE)
    pixels = decode_jpeg(data, header, "RGB" if header.num_components == 4 else "GRAY", check == "strict", reduction).pixels
    orientation = exif_orientation(header.exif) if header.exif else 1
    return _grey(pixels if orientation == 1 else np.atleast_3d(rotate(to_image(pixels), orientation)))


def grey_pixels(data: bytes, raw: RawImage) -> np.ndarray:
    """Converts raw pixels to a gray image, uint8 [height, width].

    Args:
        data: The bytes of the pixels.
        raw: The layout of the pixels.

    Raises:
        InvalidInput: The number of bytes differs from the layout.
    """
    return _grey(check_pixels(data, raw, _AS_SEEN, full_scale=True).pixels)


def perceptual_hashes(images: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Hashes images.

    Args:
        images: The gray images, from `load_for_hash`, each uint8 [height, width].

    Returns:
        The hashes, uint64 [num_images, HASH_WORDS], and whether each hash is valid, bool [num_images]. Hashes of blank
        images are not valid. The first word contains the lowest frequencies, and its first bit is never set. A
        horizontal flip inverts the upper halves of the first and third word, and the whole last word.
    """
    blocks = [_hash(images[start : start + _BLOCK_IMAGES]) for start in range(0, len(images), _BLOCK_IMAGES)]
    hashes, has_visual_hash = zip(*blocks) if blocks else ([np.zeros((0, HASH_WORDS), np.uint64)], [np.zeros(0, bool)])
    return np.concatenate(hashes), np.concatenate(has_visual_hash)


def _hash(images: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    of_shapes: dict[tuple[int, ...], list[int]] = {}
    for index, image in enumerate(images):
        of_shapes.setdefault(image.shape, []).append(index)
    shrunk = [_shrink(np.concatenate([images[index] for index in indices]).reshape(-1, *shape)) for shape, indices in of_shapes.items()]
    small = shrunk[0]
    if len(shrunk) > 1:
        small = np.concatenate(shrunk)[np.argsort([index for locations in of_shapes.values() for index in locations])]
    positive = np.take((_COSINES @ small @ _COSINES.T).reshape(-1, _LOW * _LOW) > 0, _ORDER, axis=1)
    positive[:, 0] = False  # Ignores the mean brightness of the image.
    sums, squares = small.sum(axis=(1, 2)), np.einsum("ijk,ijk->i", small, small)
    has_visual_hash = _SIDE**2 * squares - sums**2 >= (_FLAT * _GREY_UNITS * _SIDE**2) ** 2
    return np.packbits(positive, axis=1, bitorder="little").view("<u8"), has_visual_hash


def _grey(pixels: np.ndarray) -> np.ndarray:
    """Converts pixels [height, width, 1 or 3] to gray pixels [height, width]."""
    height, width, num_channels = pixels.shape
    reduction = max(1, width // _ENOUGH_PIXELS), max(1, height // _ENOUGH_PIXELS)
    if num_channels == 1 and reduction == (1, 1):
        return pixels[..., 0]
    return np.asarray(to_image(pixels).convert("L").reduce(reduction))


def _shrink(images: np.ndarray) -> np.ndarray:
    """Returns the mean gray value of each image in each cell of a grid, float64 [num_images, _SIDE, _SIDE].

    The values are integers in units of 1/_GREY_UNITS.
    """
    height, width = images.shape[1:]
    if (height, width) == (_SIDE, _SIDE):
        return images * float(_GREY_UNITS)
    cells = _cells(height) @ images.astype(np.float64) @ _cells(width).T
    return np.floor(cells * _GREY_UNITS / (height * width))


@functools.lru_cache(maxsize=64)  # Photographs in a dataset usually have few distinct sizes.
def _cells(size: int) -> np.ndarray:
    """Returns the fraction of each pixel along a side that falls into each grid cell, in units of 1/_SIDE, float64
    [_SIDE, size]."""
    pixels = _SIDE * np.arange(size + 1)
    ends = size * np.arange(_SIDE + 1)[:, None]
    return np.clip(np.minimum(pixels[1:], ends[1:]) - np.maximum(pixels[:-1], ends[:-1]), 0, None).astype(np.float64)


def _cosines() -> np.ndarray:
    """Returns the first rows of the orthonormal DCT-II matrix in units of 1/_COSINE_UNITS, float64 [_LOW, _SIDE]."""
    angles = (2 * np.arange(_SIDE) + 1) * np.pi / (2 * _SIDE)
    rows = np.cos(np.arange(_LOW)[:, None] * angles) * np.sqrt(2 / _SIDE)
    rows[0] /= np.sqrt(2)
    return np.rint(rows * _COSINE_UNITS)


def _order() -> np.ndarray:
    """Returns the order in which DCT frequencies are assigned to the bits of a hash.

    Low frequencies precede high frequencies. Within each group, frequencies with left-right symmetry come first.
    """
    rows, columns = np.divmod(np.arange(_LOW * _LOW), _LOW)
    return np.lexsort((columns % 2, np.maximum(rows, columns) >= _LOWEST))


_COSINES = _cosines()
_ORDER = _order()
