"""Tests that single images are decoded without TensorFlow to the same pixels as in batches."""

import io

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tf_input.features import decode_images
from tf_input.image_files import decode_image, decode_mask

PIXELS = np.random.default_rng(0).integers(0, 256, (37, 51, 4), np.uint8)
DEEP = np.random.default_rng(1).integers(0, 65536, (21, 13), np.uint16)


def encode(mode: str, image_format: str, **options) -> bytes:
    image = Image.fromarray(DEEP if mode == "I;16" else PIXELS[..., :3], mode if mode == "I;16" else "RGB")
    if mode in ("LA", "RGBA"):
        image = Image.fromarray(PIXELS).convert(mode)
    elif mode != "I;16":
        image = image.convert(mode)
    file = io.BytesIO()
    image.save(file, image_format, **options)
    return file.getvalue()


FILES = {
    "jpeg": encode("RGB", "JPEG", quality=90),
    "jpeg 4:4:4": encode("RGB", "JPEG", subsampling=0),
    "jpeg 4:2:2": encode("RGB", "JPEG", subsampling=1),
    "jpeg progressive": encode("RGB", "JPEG", progressive=True),
    "jpeg gray": encode("L", "JPEG"),
    "png": encode("RGB", "PNG"),
    "png gray": encode("L", "PNG"),
    "png black and white": encode("1", "PNG"),
    "png gray with alpha": encode("LA", "PNG"),
    "png with alpha": encode("RGBA", "PNG"),
    "png palette": encode("P", "PNG"),
    "png palette with transparency": encode("P", "PNG", transparency=3),
    "png 16 bits": encode("I;16", "PNG"),
    "webp": encode("RGB", "WEBP", lossless=True),
    "gif": encode("P", "GIF"),
    "bmp": encode("RGB", "BMP"),
}


# Color images are read with one channel only if the user asks for it.
CASES = [(name, channels) for name in FILES for channels in (1, 3) if channels == 3 or any(word in name for word in ("gray", "black", "16 bits"))]


@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
@pytest.mark.parametrize(("name", "channels"), CASES)
def test_pixels_equal_those_of_tensorflow(name, channels, dtype):
    expected = decode_images.decode_image(tf.constant(FILES[name]), channels, dtype).numpy()
    actual = decode_image(FILES[name], channels, dtype)
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("name", FILES)
def test_truncated_files_are_rejected(name):
    for end in (0, 3, 30, len(FILES[name]) // 2):
        with pytest.raises(ValueError):
            decode_image(FILES[name][:end])


def test_masks_keep_their_values():
    np.testing.assert_array_equal(decode_mask(FILES["png 16 bits"])[..., 0], DEEP)
    np.testing.assert_array_equal(decode_mask(FILES["png gray"])[..., 0], np.asarray(Image.fromarray(PIXELS[..., :3]).convert("L")))
    with pytest.raises(ValueError, match="one channel"):
        decode_mask(FILES["png"])
