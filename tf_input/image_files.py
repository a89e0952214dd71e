"""Decodes image files with simplejpeg and Pillow, to the same pixels as `tf.io.decode_image`."""

from __future__ import annotations

import contextlib
import io
import re
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from PIL import Image

NUM_CHANNELS = 3  # The number of channels of an RGB image.
JPEG_START = b"\xff\xd8\xff"
_MISSING = re.compile("(?i)premature|truncated")  # libjpeg's warnings about pixels that are missing in the file
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
_LUMA = np.float32([0.299, 0.587, 0.114])


def decode_image(data: bytes, channels: int = NUM_CHANNELS, dtype: str = "uint8") -> np.ndarray:
    """Decodes an image file. Only the first frame of an animation is decoded.

    Args:
        data: The contents of a JPEG, PNG, WebP, GIF or BMP file.
        channels: The number of channels: 1 or 3. Default: 3.
        dtype: The dtype of the pixels: `uint8`, or `uint16`, to which 8-bit values are stretched. Default: `uint8`.

    Returns:
        The pixels, [height, width, channels], with the dtype `dtype`.

    Raises:
        ValueError: The file is corrupt, or its format is not supported.
    """
    if data.startswith(JPEG_START):
        pixels = decode_jpeg(data, channels)
    else:
        pixels = _decode_other(data, dtype)
    if pixels.dtype == np.uint8 and dtype == "uint16":
        pixels = pixels * np.uint16(257)
    return pixels if pixels.shape[-1] == channels else convert_channels(pixels, channels)


def decode_mask(data: bytes) -> np.ndarray:
    """Decodes a mask, which is a PNG with one channel.

    Returns:
        The class of each pixel, uint8 or uint16 [height, width, 1].

    Raises:
        ValueError: The file is corrupt, or has several channels.
    """
    image = _open(data)
    if image.mode not in ("1", "L", "I;16", "I"):
        raise ValueError("the mask is not a PNG with one channel")
    pixels = np.asarray(image)
    return pixels.astype(np.uint8 if image.mode in ("1", "L") else np.uint16)[..., np.newaxis]


def decode_jpeg(data: bytes, channels: int, min_size: tuple[int, int] | None = None) -> np.ndarray:
    """Decodes a JPEG.

    Args:
        data: The contents of the file.
        channels: The number of channels: 1 or 3.
        min_size: The (height, width) in pixels that are enough. The JPEG is then decoded at the smallest of its scales
            that has this size. Default: None, the full scale.

    Returns:
        The pixels, uint8 [height, width, channels].

    Raises:
        ValueError: The file is corrupt.
    """
    import simplejpeg

    # TensorFlow uses the fast DCT and the exact upsampling of chroma. Pixels of other settings differ by up to 20.
    options = {"colorspace": "GRAY" if channels == 1 else "RGB", "fastdct": True, "fastupsample": False}
    if min_size is not None:
        options |= {"min_height": min_size[0], "min_width": min_size[1], "min_factor": 1}
    try:
        return simplejpeg.decode_jpeg(data, **options)
    except ValueError as error:
        if _MISSING.search(str(error)):
            raise ValueError("the JPEG data is corrupt or truncated") from error
    try:
        return simplejpeg.decode_jpeg(data, **options, strict=False)  # Warnings about harmless bytes are ignored.
    except ValueError:
        pixels = _decode_other(data, "uint8")  # Pillow supports chroma subsampling that simplejpeg does not support.
        return pixels if pixels.shape[-1] == channels else convert_channels(pixels, channels)


def read_size(data: bytes) -> tuple[int, int]:
    """Reads the (height, width) of an image file in pixels, without decoding pixels.

    Raises:
        ValueError: The file is corrupt, or its format is not supported.
    """
    import simplejpeg

    if data.startswith(JPEG_START):
        with contextlib.suppress(ValueError):
            return simplejpeg.decode_jpeg_header(data)[:2]
    image = _open(data, loads=False)
    return image.height, image.width


def convert_channels(pixels: np.ndarray, channels: int) -> np.ndarray:
    """Converts pixels, [height, width, 1 or 3], to grayscale or RGB with the same dtype."""
    if channels == 1:
        return (pixels @ _LUMA + np.float32(0.5)).astype(pixels.dtype)[..., np.newaxis]
    return np.repeat(pixels, channels, axis=-1)


def _decode_other(data: bytes, dtype: str) -> np.ndarray:
    """Decodes a file with Pillow, [height, width, 1 or 3], without alpha. The dtype is uint8 or `dtype`."""
    image = _open(data)
    if image.mode[0] == "I":  # 16-bit grayscale
        pixels = np.asarray(image).astype(np.uint16)[..., np.newaxis]
        return pixels if dtype == "uint16" else (pixels >> 8).astype(np.uint8)
    if dtype == "uint16" and data[24:25] == b"\x10":  # a PNG with 16 bits per channel
        from tf_input.lazy_tensorflow import tf

        return tf.io.decode_png(data, NUM_CHANNELS, tf.uint16).numpy()  # Pillow reduces colors to 8 bits.
    if image.mode in ("1", "L"):
        return np.array(image.convert("L"))[..., np.newaxis]
    if image.mode == "LA":
        return np.asarray(image)[..., :1]
    if image.has_transparency_data:
        image = image.convert("RGBA")
    return np.array(image.convert("RGB"))


def _open(data: bytes, loads: bool = True) -> Image.Image:
    from PIL import Image

    try:
        image = Image.open(io.BytesIO(data), formats=_FORMATS)
        if loads:
            image.load()
        return image
    except (OSError, SyntaxError, ValueError, LookupError, ArithmeticError, Image.DecompressionBombError) as error:
        raise ValueError(f"the image data is corrupt, truncated or not supported: {error}") from error
