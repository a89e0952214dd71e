"""Feature kinds `image` and `pixels`: images with their own size, stored as files or as raw pixels.

A JPEG is decoded only within its crop. Small images of one size, cached images and raw pixels are decoded as a whole and
cropped afterwards, which rounds differently by at most 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tf_input.dataset_format import Feature
from tf_input.features import augment
from tf_input.features.crop_geometry import crop_pixels
from tf_input.features.decode_images import MAX_SMALL_SIDE, NUM_CHANNELS, convert_channels, decode_boxes, decode_image, decode_pixels
from tf_input.features.feature_kind import BatchContext, Decoder, FeatureKind, stored_size_of
from tf_input.features.roles import NUM_DENSE_DIMENSIONS
from tf_input.lazy_tensorflow import tf

_MIN_UNROLLED, _MAX_UNROLLED = 16, 256  # limits of the number of unrolled ops


class Image(FeatureKind):
    """The feature kinds `image` and `pixels`."""

    num_dimensions = NUM_DENSE_DIMENSIONS

    def pixel_bytes(self, feature: Feature, decoder: Decoder) -> int:
        return decoder.channels_of(feature) * np.dtype(feature.value_dtype).itemsize

    def decode(self, value: Any, feature: Feature, decoder: Decoder, batch_size: int | None = None) -> Any:
        if value.dtype != tf.string:
            return value
        channels = decoder.channels_of(feature)
        if not feature.is_file:
            return convert_channels(decode_pixels(value, feature.shape), channels)
        stored, are_grey = stored_size_of(feature, decoder), decoder.stored_channels == 1
        return decode_uncropped_images(value, stored, batch_size, channels, tf.as_dtype(feature.value_dtype), are_grey)

    def output(self, feature: Feature, batch: BatchContext) -> tf.Tensor:
        decoder, value, crops = batch.decoder, batch.parsed[feature.name], batch.crops[feature.name]
        stored = decoder.sizes_of(feature.name).stored
        if not feature.is_file or crops is None or stored and is_small(stored):
            value = self.decode(value, feature, decoder, decoder.max_batch_size)
        if value.dtype == tf.string:
            boxes = crops.boxes, crops.image_size, crops.flipped, crops.extents, crops.ratios
            value = decode_boxes(value, *boxes, decoder.channels_of(feature), tf.as_dtype(feature.value_dtype), crops.interpolation)
        elif crops is not None:
            value = tf.cast(crop_pixels(value, crops) + 0.5, value.dtype)
        augmentation = decoder.config.augmentation
        if augmentation is None or not augmentation.jitters:
            return value
        return augment.jitter_colors(value, augmentation, decoder.seed_of(feature.name, batch.seed), batch.slots)


def decode_uncropped_images(
    encoded: tf.Tensor,
    image_size: tuple[int, int],
    batch_size: int | None = None,
    channels: int = NUM_CHANNELS,
    dtype: tf.DType | str = "uint8",
    are_grey: bool = False,
) -> tf.Tensor:
    """Decodes images that all have one size.

    Args:
        encoded: The image files, string [batch].
        image_size: The (height, width) of the images in pixels.
        batch_size: The largest number of images, which most batches contain. If it is given, the loop over small images
            is unrolled. Default: None, any number.
        channels: The number of channels: 1, 3 or 4. Default: 3.
        dtype: The dtype of the pixels: uint8 or uint16. Default: uint8.
        are_grey: Whether all images are known to be grayscale. If so, small images are decoded without checking their
            formats, which takes as long as decoding. Default: False.

    Returns:
        The pixels, [batch, height, width, channels], with the dtype `dtype`.

    Raises:
        tf.errors.InvalidArgumentError: An image is corrupt or has another size, or there are too many images. Raised
            when the tensor is computed.
    """
    if are_grey and channels == 1 and is_small(image_size):
        return decode_uncropped_images(encoded, image_size, batch_size, dtype=dtype)[..., :1]
    shape = (*image_size, channels)
    width = _unrolled_width(batch_size) if batch_size and is_small(image_size) else 1

    def decode_one(encoded_image: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(decode_image(encoded_image, channels, dtype), shape)

    def decode_row(row: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(tf.stack([decode_image(item, channels, dtype) for item in tf.unstack(row)]), (width, *shape))

    if width == 1:
        return tf.map_fn(decode_one, encoded, fn_output_signature=tf.TensorSpec(shape, dtype))
    num_images = tf.shape(encoded)[0]
    black = tf.io.encode_png(tf.zeros(shape, dtype))  # pads an incomplete last batch
    filled = tf.concat([encoded, tf.fill([batch_size - num_images], black)], axis=0)  # fails if there are too many
    rows = tf.reshape(filled, (batch_size // width, width))
    if width == batch_size:
        images = decode_row(rows[0])
    else:
        images = tf.map_fn(decode_row, rows, fn_output_signature=tf.TensorSpec((width, *shape), dtype))
    images = tf.reshape(images, (batch_size, *shape))[:num_images]
    return tf.ensure_shape(images, (encoded.shape[0], *shape))


def is_small(image_size: tuple[int, int]) -> bool:
    """Returns whether images are so small that decoding them whole is faster than cropping them while decoding."""
    return max(image_size) <= MAX_SMALL_SIDE


def _unrolled_width(batch_size: int) -> int:
    """Returns the number of unrolled ops, which divides the batch size; 1 if no divisor is suitable."""
    width = next(width for width in range(min(batch_size, _MAX_UNROLLED), 0, -1) if batch_size % width == 0)
    return width if width >= min(batch_size, _MIN_UNROLLED) else 1
