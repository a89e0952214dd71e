"""Feature kind `tensor`: arrays of any dtype and shape, stored as little-endian bytes.

Tensors with three dimensions are images or dense targets, and follow the crops of `image`. If other tensors differ in
shape, they are padded.
"""

from __future__ import annotations

import math
from typing import Any, Mapping

from tf_input.dataset_format import IMAGE, Feature
from tf_input.features.crop_geometry import CropGeometry, crop_dense_targets, crop_pixels
from tf_input.features.feature_kind import BatchContext, Decoder, FeatureKind
from tf_input.features.roles import is_dense_target, is_grid, is_list, is_of_any_size
from tf_input.lazy_tensorflow import tf

_FIELDS = ("sizes", "boxes", "flipped", "extents")  # fields of CropGeometry with one value per image


class Tensor(FeatureKind):
    """The feature kind `tensor`."""

    def decode(self, value: Any, feature: Feature, decoder: Decoder, batch_size: int | None = None) -> Any:
        sized = decoder.with_static_shape(feature)
        return value if value.dtype != tf.string or is_of_any_size(sized) or is_grid(sized) else decode_tensors(value, sized)

    def output(self, feature: Feature, batch: BatchContext) -> Any:
        if is_list(feature):
            return super().output(feature, batch)
        name, config, crops = feature.name, batch.decoder.config, batch.crops.get(IMAGE)
        if is_grid(feature):
            value, shapes = batch.parsed[name], stored_shapes(batch.parsed, feature)
            sizes = grid_sizes(shapes, config.pads.length_of(name), feature)
            padded = pad_tensors(value, shapes, feature, sizes, config.pads.value_of(name))
            return tf.ensure_shape(padded, (value.shape[0], *static_grid(config.pads.length_of(name), feature)))
        sized, value = batch.decoder.with_static_shape(feature), self.decode(batch.parsed[name], feature, batch.decoder)
        if crops is None or not is_dense_target(sized):
            return value
        if is_of_any_size(sized):
            return crop_tensors(value, stored_shapes(batch.parsed, feature), sized, crops)
        numbers = tf.cast(value, tf.float32)
        return of_dtype(crop_pixels(numbers, crops) if name == IMAGE else crop_dense_targets(numbers, crops), value.dtype)

    def padding_mask(self, feature: Feature, batch: BatchContext) -> tf.Tensor | None:
        if not is_grid(feature):
            return super().padding_mask(feature, batch)
        shapes = stored_shapes(batch.parsed, feature)
        return grid_mask(shapes, grid_sizes(shapes, batch.decoder.config.pads.length_of(feature.name), feature), len(feature.shape))


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


def grid_sizes(shapes: tf.Tensor, max_length: int | tuple[int, ...] | None, feature: Feature) -> tf.Tensor:
    """Returns the shape to which the tensors of a batch are padded, int64 [dimensions].

    Args:
        shapes: The shapes of the tensors, int64 [batch, dimensions].
        max_length: One length for all unknown dimensions, or a tuple with one length for each unknown dimension. None
            stands for the largest size in the batch.
        feature: The feature.
    """
    static = static_grid(max_length, feature)
    largest = tf.maximum(tf.reduce_max(shapes, axis=0), 1)
    return tf.stack([largest[axis] if side is None else tf.constant(side, tf.int64) for axis, side in enumerate(static)])


def static_grid(max_length: int | tuple[int, ...] | None, feature: Feature) -> tuple[int | None, ...]:
    """Returns the shape of padded tensors, with None for dimensions that differ between batches."""
    lengths = iter(max_length if isinstance(max_length, tuple) else [max_length] * len(feature.shape))
    return tuple(next(lengths) if side is None else side for side in feature.shape)
