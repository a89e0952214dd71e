"""Decodes, crops, flips and resizes single images with simplejpeg, Pillow and OpenCV."""

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from tf_input.image_files import JPEG_START, decode_image, decode_jpeg
from tf_input.read_config import Augmentation

_NUM_ATTEMPTS = 10
_MAX_STRETCH = math.log(4 / 3)
_REDUCTIONS = (8, 4, 2)  # Factors by which a JPEG can be downscaled during decoding.

Box = tuple[int, int, int, int]


class Crop(NamedTuple):
    """The crop of an image, and its position on a canvas.

    Attributes:
        size: The (height, width) of the image in pixels.
        box: The (top, left, height, width) of the crop in pixels.
        image_size: The (height, width) of the canvas in pixels.
        extent: The (height, width) to which the crop is resized, centered on the black canvas. It is at most `image_size`.
        is_flipped: Whether the canvas is flipped left to right.
    """

    size: tuple[int, int]
    box: Box
    image_size: tuple[int, int]
    extent: tuple[int, int]
    is_flipped: bool = False

    @property
    def margins(self) -> tuple[int, int]:
        """The height and width in pixels of the part of the canvas above and to the left of the crop."""
        return (self.image_size[0] - self.extent[0]) // 2, (self.image_size[1] - self.extent[1]) // 2

    def canvas_box(self) -> np.ndarray:
        """Returns the edges of the canvas, (ymin, xmin, ymax, xmax) in fractions of the image, float32 [4]."""
        starts, sides = np.split(np.array(self.box, np.float32), 2)
        scale = sides / np.array(self.extent, np.float32)  # Pixels of the image per pixel of the canvas.
        starts = starts - scale * np.array(self.margins, np.float32)
        edges = np.concatenate([starts, starts + scale * np.array(self.image_size, np.float32)])
        return edges / np.tile(np.array(self.size, np.float32), 2)


def choose_crop(
    size: tuple[int, int], image_size: tuple[int, int], fit: str, augmentation: Augmentation | None, rng: np.random.Generator
) -> Crop:
    """Chooses the crop of an image.

    Args:
        size: The (height, width) of the image in pixels.
        image_size: The (height, width) to which the crop will be resized.
        fit: How images without a random crop are fitted, as in `ReadConfig.fit`.
        augmentation: The options of random crops and flips. None disables them.
        rng: The source of random numbers.
    """
    is_random = augmentation is not None and augmentation.crop
    box = _random_box(size, image_size, augmentation.min_area, rng) if is_random else None
    if box is None:
        box = _central_box(size, image_size) if fit == "crop" or is_random else (0, 0, *size)
    extent = image_size if is_random or fit in ("crop", "stretch") else _fitting_extent(size, image_size, may_enlarge=fit == "pad")
    return Crop(size, box, image_size, extent, augmentation is not None and augmentation.flip and bool(rng.random() < 0.5))


def follow_crop(leader: Crop, size: tuple[int, int], fit: str, augmentation: Augmentation | None) -> Crop:
    """Returns the crop of an image or mask that has the same random crop and flip as another image of the example.

    Args:
        leader: The crop of the other image.
        size: The (height, width) of this image in pixels.
        fit, augmentation: As in `choose_crop`.
    """
    if augmentation is None or not augmentation.crop:
        own = choose_crop(size, leader.image_size, fit, None, np.random.default_rng(0))
        return own._replace(is_flipped=leader.is_flipped)
    edges = [(leader.box[0], leader.box[2]), (leader.box[1], leader.box[3])]
    parts = [
        (round(start * side / whole), max(1, round((start + length) * side / whole) - round(start * side / whole)))
        for (start, length), side, whole in zip(edges, size, leader.size)
    ]
    (top, height), (left, width) = ((min(start, side - length), length) for (start, length), side in zip(parts, size))
    return Crop(size, (top, left, height, width), leader.image_size, leader.extent, leader.is_flipped)


def _fitting_extent(size: tuple[int, int], image_size: tuple[int, int], may_enlarge: bool) -> tuple[int, int]:
    """Returns the largest (height, width) within `image_size` with the aspect ratio of the image."""
    scale = min(np.float32(side) / np.float32(own) for own, side in zip(size, image_size))
    height, width = (min(max(1, int(np.round(np.float32(own) * scale))), side) for own, side in zip(size, image_size))
    return (height, width) if may_enlarge else (min(height, size[0]), min(width, size[1]))


def _random_box(size: tuple[int, int], image_size: tuple[int, int], min_area: float, rng: np.random.Generator) -> Box | None:
    """Draws a box of random area, aspect ratio and position, as in https://arxiv.org/abs/1409.4842. Returns None if ten
    boxes do not fit into the image."""
    for _ in range(_NUM_ATTEMPTS):
        area = rng.uniform(min_area, 1) * size[0] * size[1]
        aspect = math.exp(rng.uniform(-_MAX_STRETCH, _MAX_STRETCH)) * image_size[1] / image_size[0]
        height, width = max(1, round(math.sqrt(area / aspect))), max(1, round(math.sqrt(area * aspect)))
        if height <= size[0] and width <= size[1]:
            return int(rng.integers(size[0] - height + 1)), int(rng.integers(size[1] - width + 1)), height, width
    return None


def _central_box(size: tuple[int, int], image_size: tuple[int, int]) -> Box:
    """Returns the largest central box with the aspect ratio of `image_size`."""
    scale = min(size[0] / image_size[0], size[1] / image_size[1])
    height, width = (min(side, max(1, round(wanted * scale))) for side, wanted in zip(size, image_size))
    return (size[0] - height) // 2, (size[1] - width) // 2, height, width


def move_boxes(boxes: np.ndarray, crop: Crop) -> tuple[np.ndarray, np.ndarray]:
    """Converts bounding boxes from the coordinates of the image to the coordinates of its crop.

    Args:
        boxes: float32 [n, 4], (ymin, xmin, ymax, xmax) in fractions of the image.
        crop: The crop.

    Returns:
        The boxes in fractions of the crop, clipped to it; and whether the center of each box is inside, bool [n].
    """
    starts, ends = np.split(crop.canvas_box(), 2)
    moved = (boxes - np.tile(starts, 2)) / np.tile(ends - starts, 2)
    if crop.is_flipped:
        ymin, xmin, ymax, xmax = moved.T
        moved = np.stack([ymin, 1 - xmax, ymax, 1 - xmin], axis=1)
    centers = (moved[:, :2] + moved[:, 2:]) / 2
    return moved.clip(0, 1), ((centers >= 0) & (centers <= 1)).all(axis=1)


def decode_crop(data: bytes, crop: Crop, channels: int) -> np.ndarray:
    """Decodes the crop of an image file and resizes it.

    Args:
        data: The contents of an image file with 8 bits per channel.
        crop: The crop.
        channels: The number of channels: 1 or 3.

    Returns:
        The pixels, uint8 [height, width, channels].

    Raises:
        ValueError: The file is corrupt, or its format is not supported.
    """
    if not data.startswith(JPEG_START):
        return resize(decode_image(data, channels), crop)
    height, width = crop.size
    factor = min(crop.box[2] // crop.extent[0], crop.box[3] // crop.extent[1])
    reduction = next((item for item in _REDUCTIONS if item <= factor), 1)
    pixels = decode_jpeg(data, channels, (-(-height // reduction), -(-width // reduction)))
    return resize(pixels, crop, (pixels.shape[0] / height, pixels.shape[1] / width))


def resize(pixels: np.ndarray, crop: Crop, scale: tuple[float, float] = (1.0, 1.0), nearest: bool = False) -> np.ndarray:
    """Crops, resizes and flips decoded pixels.

    Args:
        pixels: The pixels, uint8 [height, width, 1 or 3]. With `nearest`, also int32 [height, width, 1].
        crop: The crop.
        scale: The height and width of `pixels` as fractions of the image's height and width. Default: (1, 1).
        nearest: Whether to take the value of the nearest pixel, which never mixes classes of a mask. Default: False.

    Returns:
        The pixels, [*crop.image_size, channels], with the dtype of `pixels`.
    """
    top, left, height, width = crop.box
    edges = np.array([top * scale[0], left * scale[1], (top + height) * scale[0], (left + width) * scale[1]]).round().astype(int)
    top, left, bottom, right = (int(edge) for edge in edges)
    pixels = pixels[top : max(bottom, top + 1), left : max(right, left + 1)]
    resized = _pick_nearest(pixels, crop.extent) if nearest else _interpolate(pixels, crop.extent)
    if crop.extent != crop.image_size:
        canvas = np.zeros((*crop.image_size, resized.shape[-1]), resized.dtype)
        top, left = crop.margins
        canvas[top : top + crop.extent[0], left : left + crop.extent[1]] = resized
        resized = canvas
    return import_cv2().flip(resized, 1).reshape(resized.shape) if crop.is_flipped else resized


def _interpolate(pixels: np.ndarray, extent: tuple[int, int]) -> np.ndarray:
    """Resizes pixels to a (height, width): bilinear, or averaged over areas if they shrink to half the size or less."""
    cv2 = import_cv2()
    is_shrunk = any(side >= 2 * wanted for side, wanted in zip(pixels.shape, extent))
    return cv2.resize(pixels, extent[::-1], interpolation=cv2.INTER_AREA if is_shrunk else cv2.INTER_LINEAR).reshape(*extent, -1)


def _pick_nearest(pixels: np.ndarray, extent: tuple[int, int]) -> np.ndarray:
    rows, columns = (((np.arange(wanted) + 0.5) * side / wanted).astype(int) for side, wanted in zip(pixels.shape, extent))
    return pixels[rows[:, np.newaxis], columns]


@functools.cache
def import_cv2() -> Any:
    """Imports OpenCV, which resizes several times as fast as Pillow. Raises `ImportError` if it is missing."""
    try:
        import cv2
    except ImportError as error:
        raise ImportError("loader(image_size=...) needs OpenCV: pip install 'recordmill[loader]'") from error
    return cv2
