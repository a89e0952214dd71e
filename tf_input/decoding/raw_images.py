"""Decodes encoded images of any size exactly like the reader, for preprocessing functions and serving."""

from __future__ import annotations

from tf_input.dataset_format import IMAGE, Feature
from tf_input.decoding.example_decoder import ExampleDecoder
from tf_input.lazy_tensorflow import tf
from tf_input.read_config import Fit, Interpolation, ReadConfig

_MAX_BATCH = 1 << 20


def decode_images(
    images: tf.Tensor,
    image_size: int | tuple[int, int],
    fit: Fit = "crop",
    channels: int = 3,
    interpolation: Interpolation = "bilinear",
) -> tf.Tensor:
    """Decodes images and crops or resizes them like `batches(image_size=..., fit=...)` without augmentation.

    Args:
        images: The encoded images of any sizes, string [batch]: JPEG, PNG or another format that `tf.io.decode_image`
            supports.
        image_size: The (height, width) of the results in pixels, or one integer for both.
        fit: How images are fitted to `image_size`, as in `ReadConfig`: "crop", "stretch", "pad" or "unscaled". Default:
            "crop".
        channels: The number of channels: 1, 3 or 4, as in `ReadConfig`. Default: 3.
        interpolation: How pixels are computed, as in `ReadConfig`: "bilinear", "antialiased", "bicubic" or "lanczos3".
            Default: "bilinear".

    Returns:
        uint8 [batch, height, width, channels].

    Raises:
        ValueError: An option has a wrong value.
        tf.errors.InvalidArgumentError: An image is corrupt. Raised when the tensor is computed.
    """
    config = ReadConfig(_MAX_BATCH, image_size=image_size, fit=fit, channels=channels, interpolation=interpolation)
    decoder = ExampleDecoder(
        parse=lambda *unused: {},
        features={IMAGE: Feature(IMAGE, "image")},
        config=config,
        targets=(),
        image_size=config.height_and_width,
        stored_size=None,
    )
    return decoder.outputs({IMAGE: images})
