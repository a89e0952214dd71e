"""Decodes tensors from little-endian bytes and applies the crops of images to dense targets."""

from __future__ import annotations

import math
from typing import Any, Mapping

from tf_input.dataset_format import Feature
from tf_input.decoding.crop_geometry import CropGeometry, crop_pixels
from tf_input.lazy_tensorflow import tf

_FIELDS = ("sizes", "boxes", "flipped", "extents")  # fields of CropGeometry with one value per image


def decode_tensors(stored: tf.Tensor, feature: Feature) -> tf.Tensor | tf.RaggedTensor:
    """Decodes a batch of tensors whose shapes are equal, or differ only in the first dimension.

    Args:
        stored: The stored tensors, string [batch].
        feature: The feature of kind `tensor`. Only its first side may be unknown.

    Returns:
        The tensors with the feature's dtype: [batch, *shape], or a ragged tensor [batch, None, *shape[1:]].

    Raises:
        tf.errors.InvalidArgumentError: A tensor has a wrong number of bytes. Raised when the tensor is computed.
    """
    dtype, is_ragged = tf.as_dtype(feature.dtype), None in feature.shape
    inner = feature.shape[is_ragged:]
    num_bytes = math.prod(inner) * dtype.size
    lengths = tf.strings.length(stored)
    num_excess_bytes = lengths % num_bytes if is_ragged else lengths
    size = f"{'a multiple of ' * is_ragged}{num_bytes} bytes"
    message = f"{feature.name} must have {size}, for {feature.dtype} in the shape {feature.shape}"
    with tf.control_dependencies([tf.debugging.assert_equal(num_excess_bytes, 0 if is_ragged else num_bytes, message)]):
        numbers = tf.io.decode_raw(tf.strings.reduce_join(stored, keepdims=True) if is_ragged else stored, dtype)
    values = tf.reshape(numbers, (-1, *inner))
    if is_ragged:
        return tf.RaggedTensor.from_row_lengths(values, lengths // num_bytes, validate=False)
    return tf.ensure_shape(values, (stored.shape[0], *inner))


def decode_tensor(stored: tf.Tensor, shape: tf.Tensor, feature: Feature) -> tf.Tensor:
    """Decodes one tensor. `stored` is string [], and `shape` is a row of `stored_shapes`, int64 [dimensions]."""
    with tf.control_dependencies(
        [tf.debugging.assert_equal(_fits(shape, feature), True, f"{feature.name} must have the shape {feature.shape}")]
    ):
        numbers = tf.io.decode_raw(stored, tf.as_dtype(feature.dtype))
    return tf.ensure_shape(tf.reshape(numbers, shape), feature.shape)


def _fits(shape: tf.Tensor, feature: Feature) -> tf.Tensor:
    wanted = tf.constant([-1 if side is None else side for side in feature.shape], tf.int64)
    return tf.reduce_all((wanted < 0) | (wanted == shape))


def stored_shapes(parsed: Mapping[str, Any], feature: Feature) -> tf.Tensor:
    """Returns the shapes of tensors, int64 [batch, dimensions], from the output of `schema.parse_examples`."""
    if (shapes := parsed.get(f"{feature.name}/shape")) is not None:
        return shapes
    lengths = tf.cast(tf.strings.length(parsed[feature.name]), tf.int64)
    num_bytes = math.prod(side for side in feature.shape if side is not None) * tf.as_dtype(feature.dtype).size
    sides = [lengths // num_bytes if side is None else tf.fill(tf.shape(lengths), tf.constant(side, tf.int64)) for side in feature.shape]
    return tf.stack(sides, axis=1)


def pad_tensors(stored: tf.Tensor, shapes: tf.Tensor, feature: Feature, sizes: tf.Tensor, padding_value: Any = None) -> tf.Tensor:
    """Pads or truncates tensors to a common shape. The tensors may differ in several dimensions.

    Args:
        stored: The stored tensors, string [batch].
        shapes: The shapes of the tensors, int64 [batch, dimensions].
        feature: The feature of kind `tensor`.
        sizes: The common sides, int64 [dimensions].
        padding_value: The padding value. Default: None, 0.

    Returns:
        The tensors, [batch, *sizes].
    """
    dtype = tf.as_dtype(feature.dtype)

    def pad_one(inputs: Mapping[str, Any]) -> tf.Tensor:
        numbers = decode_tensor(inputs["stored"], inputs["shape"], feature)
        numbers = tf.slice(numbers, tf.zeros_like(sizes), tf.minimum(inputs["shape"], sizes))
        missing = sizes - tf.shape(numbers, tf.int64)
        padding = tf.cast(0 if padding_value is None else padding_value, dtype)
        return tf.pad(numbers, tf.stack([tf.zeros_like(missing), missing], axis=1), constant_values=padding)

    signature = tf.TensorSpec([None] * len(feature.shape), dtype)
    return tf.map_fn(pad_one, {"stored": stored, "shape": shapes}, fn_output_signature=signature)


def grid_mask(shapes: tf.Tensor, sizes: tf.Tensor, num_dimensions: int) -> tf.Tensor:
    """Returns a mask that is False for the values that `pad_tensors` adds, bool [batch, *sizes]."""
    is_inside: Any = True
    for axis in range(num_dimensions):
        indices = tf.reshape(tf.range(sizes[axis]), [-1 if dimension == axis else 1 for dimension in range(num_dimensions)])
        is_inside &= indices < tf.reshape(shapes[:, axis], [-1, *[1] * num_dimensions])
    return is_inside


def crop_tensors(stored: tf.Tensor, shapes: tf.Tensor, feature: Feature, crops: CropGeometry) -> tf.Tensor:
    """Crops and resizes images or dense targets that are stored as tensors of varying size.

    Args:
        stored: The stored tensors, string [batch]. Each tensor is [height, width, channels].
        shapes: The shapes of the tensors, int64 [batch, 3], as returned by `stored_shapes`.
        feature: The feature of kind `tensor`, with a known number of channels.
        crops: The crops of the images.

    Returns:
        The resized crops, with the feature's dtype, [batch, *crops.image_size, channels].

    Raises:
        tf.errors.InvalidArgumentError: A tensor has a wrong number of bytes or channels. Raised when the tensor is
            computed.
    """
    given = {name: value for name in _FIELDS if (value := getattr(crops, name)) is not None}

    def crop_single(inputs: Mapping[str, Any]) -> tf.Tensor:
        single_crop = crops._replace(**{name: value[tf.newaxis] for name, value in inputs["crops"].items()})
        numbers = decode_tensor(inputs["stored"], inputs["shape"], feature)[tf.newaxis]
        return of_dtype(crop_pixels(tf.cast(numbers, tf.float32), single_crop), numbers.dtype)[0]

    signature = tf.TensorSpec((*crops.image_size, feature.shape[-1]), tf.as_dtype(feature.dtype))
    return tf.map_fn(crop_single, {"stored": stored, "shape": shapes, "crops": given}, fn_output_signature=signature)


def of_dtype(values: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Converts interpolated numbers to a dtype, with rounding for integer and bool dtypes."""
    if dtype.is_floating:
        return tf.cast(values, dtype)
    return tf.cast(tf.round(values), dtype) if dtype.is_bool else tf.saturate_cast(tf.round(values), dtype)
