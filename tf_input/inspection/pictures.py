"""Saves images to temporary files."""

import re
import tempfile
from typing import Any

import numpy as np

from PIL import Image


def save_image(pixels: np.ndarray, name: str) -> str:
    """Saves an image to a temporary file and returns a line that contains the path.

    Args:
        pixels: The pixels, uint8 or uint16 [height, width, channels], with 1 to 4 channels.
        name: A string from which the file name is made.
    """
    prefix = f"recordmill-{re.sub('[^A-Za-z0-9]+', '-', name)[:80]}-"
    with tempfile.NamedTemporaryFile(prefix=prefix, suffix=".png", delete=False) as file:
        # Pillow supports 16 bits for grayscale only.
        shown = to_rgb(pixels) if pixels.dtype == np.uint16 and pixels.shape[-1] > 1 else pixels
        Image.fromarray(shown[..., 0] if shown.shape[-1] == 1 else shown).save(file, "PNG")
    return f"saved to {file.name}"


def is_shown(value: Any) -> bool:
    """Returns whether a value has the shape and dtype of an image."""
    return (
        isinstance(value, np.ndarray)
        and value.dtype in (np.uint8, np.uint16)
        and value.ndim == 3
        and value.shape[-1] <= 4
        and value.size > 0
    )


def to_rgb(pixels: np.ndarray) -> np.ndarray:
    """Converts an image to uint8 [height, width, 3]. Transparent pixels become black."""
    if pixels.dtype == np.uint16:
        pixels = (pixels >> 8).astype(np.uint8)
    channels = pixels.shape[-1]
    if channels in (2, 4):
        pixels = (pixels[..., :-1] * (pixels[..., -1:] / 255)).astype(np.uint8)
    return np.repeat(pixels, 3, axis=-1) if channels < 3 else pixels
