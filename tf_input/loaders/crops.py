"""Decodes, crops, flips and resizes single images with simplejpeg and Pillow."""

import math
from typing import NamedTuple

import numpy as np
from PIL import Image

from tf_input.image_files import JPEG_START, decode_image, decode_jpeg, read_size
from tf_input.read_config import Augmentation

_NUM_ATTEMPTS = 10
_MAX_STRETCH = math.log(4 / 3)
_REDUCTIONS = (8, 4, 2)  # Factors by which a JPEG can be downscaled during decoding.

Box = tuple[int, int, int, int]


class Crop(NamedTuple):
    """The crop of an image.

    Attributes:
        box: The (top, left, height, width) of the crop in pixels.
        is_flipped: Whether the crop is flipped left to right.
    """

    box: Box
    is_flipped: bool = False


def choose_crop(
    size: tuple[int, int], image_size: tuple[int, int], fit: str, augmentation: Augmentation | None, rng: np.random.Generator
) -> Crop:
    """Chooses the crop of an image.

    Args:
        size: The (height, width) of the image in pixels.
        image_size: The (height, width) to which the crop will be resized.
        fit: `crop` for the central part with the aspect ratio of `image_size`, or `stretch` for the whole image.
        augmentation: The options of random crops and flips. None disables them.
        rng: The source of random numbers.
    """
    is_random = augmentation is not None and augmentation.crop
    box = _random_box(size, image_size, augmentation.min_area, rng) if is_random else None
    if box is None:
        box = _central_box(size, image_size) if fit == "crop" or is_random else (0, 0, *size)
    return Crop(box, augmentation is not None and augmentation.flip and bool(rng.random() < 0.5))


def _random_box(size: tuple[int, int], image_size: tuple[int, int], min_area: float, rng: np.random.Generator) -> Box | None:
    """Draws a box of random area, aspect ratio and position, as in https://arxiv.org/abs/1409.4842. Returns None if ten
    boxes do not fit into the image."""
    height, width = size
    areas, stretches = rng.uniform(min_area, 1, _NUM_ATTEMPTS), rng.uniform(-_MAX_STRETCH, _MAX_STRETCH, _NUM_ATTEMPTS)
    aspects = np.exp(stretches) * (image_size[1] / image_size[0])
    pixels = areas * (height * width)
    heights = np.maximum(np.round(np.sqrt(pixels / aspects)), 1).astype(int)
    widths = np.maximum(np.round(np.sqrt(pixels * aspects)), 1).astype(int)
    fitting = np.flatnonzero((heights <= height) & (widths <= width))
    if not len(fitting):
        return None
    box_height, box_width = int(heights[fitting[0]]), int(widths[fitting[0]])
    return int(rng.integers(height - box_height + 1)), int(rng.integers(width - box_width + 1)), box_height, box_width


def _central_box(size: tuple[int, int], image_size: tuple[int, int]) -> Box:
    """Returns the largest central box with the aspect ratio of `image_size`."""
    scale = min(size[0] / image_size[0], size[1] / image_size[1])
    height, width = (min(side, max(1, round(wanted * scale))) for side, wanted in zip(size, image_size))
    return (size[0] - height) // 2, (size[1] - width) // 2, height, width


def decode_crop(data: bytes, crop: Crop, image_size: tuple[int, int], channels: int) -> np.ndarray:
    """Decodes the crop of an image file and resizes it. Each output pixel averages over its area.

    Args:
        data: The contents of an image file with 8 bits per channel.
        crop: The crop.
        image_size: The (height, width) of the result in pixels.
        channels: The number of channels: 1 or 3.

    Returns:
        The pixels, uint8 [height, width, channels].

    Raises:
        ValueError: The file is corrupt, or its format is not supported.
    """
    if not data.startswith(JPEG_START):
        return resize(decode_image(data, channels), crop, image_size)
    height, width = read_size(data)
    factor = min(crop.box[2] // image_size[0], crop.box[3] // image_size[1])
    reduction = next((item for item in _REDUCTIONS if item <= factor), 1)
    pixels = decode_jpeg(data, channels, (-(-height // reduction), -(-width // reduction)))
    return resize(pixels, crop, image_size, (pixels.shape[0] / height, pixels.shape[1] / width))


def resize(
    pixels: np.ndarray, crop: Crop, image_size: tuple[int, int], scale: tuple[float, float] = (1.0, 1.0), nearest: bool = False
) -> np.ndarray:
    """Crops, resizes and flips decoded pixels.

    Args:
        pixels: The pixels, uint8 [height, width, 1 or 3]. With `nearest`, also int32 [height, width, 1].
        crop: The crop.
        image_size: The (height, width) of the result in pixels.
        scale: The height and width of `pixels` as fractions of the image's height and width. Default: (1, 1).
        nearest: Whether to take the value of the nearest pixel, which never mixes classes of a mask. Default: False.

    Returns:
        The pixels, [*image_size, channels], with the dtype of `pixels`.
    """
    top, left, height, width = crop.box
    edges = np.array([top * scale[0], left * scale[1], (top + height) * scale[0], (left + width) * scale[1]])
    first = np.floor(edges[:2]).astype(int)
    stop = np.ceil(edges[2:]).astype(int)
    part = pixels[first[0] : stop[0], first[1] : stop[1]]  # Pillow copies the pixels that it gets.
    image = Image.fromarray(part[..., 0] if part.shape[-1] == 1 else part)
    method = Image.Resampling.NEAREST if nearest else Image.Resampling.BILINEAR
    box = edges - np.tile(first, 2)
    resized = image.resize(image_size[::-1], method, (box[1], box[0], min(box[3], image.width), min(box[2], image.height)))
    if crop.is_flipped:
        resized = resized.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return np.array(resized).reshape(*image_size, -1)  # A copy, which functions of the user can change.
