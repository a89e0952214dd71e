"""Shows images in a terminal with two pixels per character, or saves them to files."""

import re
import sys
import tempfile
from typing import Any

import numpy as np
import tensorflow as tf

_MAX_COLUMNS = 80
_KEPT_LINES = 4  # terminal lines that the image does not use


def show_image(pixels: np.ndarray, name: str) -> str:
    """Renders an image for a color terminal, or saves the image to a file if no color terminal is available.

    Args:
        pixels: The pixels, uint8 or uint16 [height, width, channels], with 1 to 4 channels.
        name: A string from which the file name is made.

    Returns:
        The text to print: lines for a terminal, or the path of the file.
    """
    console = _console()
    if console is not None:
        return _half_blocks(pixels, console)
    prefix = f"recordmill-{re.sub('[^A-Za-z0-9]+', '-', name)[:80]}-"
    with tempfile.NamedTemporaryFile(prefix=prefix, suffix=".png", delete=False) as file:
        file.write(tf.io.encode_png(pixels).numpy())
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


def _console() -> Any:
    """Returns a console from the package `rich`, or None if `rich` is not installed or the terminal has no colors."""
    if not sys.stdout.isatty():
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    console = Console()
    return console if console.color_system and not console.no_color else None


def _half_blocks(pixels: np.ndarray, console: Any) -> str:
    """Returns lines of upper half blocks. Each character shows the upper pixel in its foreground color, and the lower
    pixel in its background color."""
    from rich.color import Color
    from rich.segment import Segment, Segments
    from rich.style import Style

    columns = min(console.width, _MAX_COLUMNS)
    most_rows = max(1, console.height - _KEPT_LINES) * 2
    scale = min(columns / pixels.shape[1], most_rows / pixels.shape[0])
    height, width = (max(1, round(side * scale)) for side in pixels.shape[:2])
    resized = np.rint(tf.image.resize(to_rgb(pixels), (height + height % 2, width), "area")).astype(np.uint8)
    segments = []
    for upper, lower in zip(resized[::2], resized[1::2]):
        for above, below in zip(upper.tolist(), lower.tolist()):
            segments.append(Segment("▀", Style(color=Color.from_rgb(*above), bgcolor=Color.from_rgb(*below))))
        segments.append(Segment.line())
    with console.capture() as captured:
        console.print(Segments(segments), end="")
    return captured.get().rstrip("\n")


def to_rgb(pixels: np.ndarray) -> np.ndarray:
    """Converts an image to uint8 [height, width, 3]. Transparent pixels become black."""
    if pixels.dtype == np.uint16:
        pixels = (pixels >> 8).astype(np.uint8)
    channels = pixels.shape[-1]
    if channels in (2, 4):
        pixels = (pixels[..., :-1] * (pixels[..., -1:] / 255)).astype(np.uint8)
    return np.repeat(pixels, 3, axis=-1) if channels < 3 else pixels
