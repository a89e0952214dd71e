"""Encoded images of any size -> pixels, as the reader shows them: for preprocessing functions, and for serving."""

import tensorflow as tf

from tf_input.dataset_format import IMAGE, Feature
from tf_input.decoding.example_decoder import ExampleDecoder
from tf_input.read_config import ReadConfig

_MAX_BATCH = 1 << 20


def decode_images(images: tf.Tensor, image_size: int | tuple[int, int], fit: str = "crop", channels: int = 3, antialias: bool = False) -> tf.Tensor:
    """Decodes images, and crops or resizes them, by the operations of `batches(image_size=..., fit=...)` without augmentation.

    Args:
        images: string [batch], the bytes of JPEGs, PNGs or what else `tf.io.decode_image` takes; of any sizes.
        image_size: (height, width) of what is returned, or one integer for both.
        fit: What is seen of an image, as in `ReadConfig`: "crop", "stretch" or "pad".
        channels: The number of channels: 1, 3 or 4, as in `ReadConfig`.
        antialias: Whether to average all pixels when images are made smaller, as in `ReadConfig`.

    Returns:
        uint8 [batch, height, width, channels].

    Raises:
        ValueError: An option has a wrong value.
        tf.errors.InvalidArgumentError: An image is damaged. Raised when the tensor is computed.
    """
    config = ReadConfig(_MAX_BATCH, image_size=image_size, fit=fit, channels=channels, antialias=antialias)
    decoder = ExampleDecoder(
        parse=lambda *unused: {},
        features={IMAGE: Feature(IMAGE, "image")},
        config=config,
        targets=(),
        image_size=config.height_and_width,
        stored_size=None,
    )
    return decoder.outputs({IMAGE: images})
