"""Converts arrays that other tools store as raw bytes in TFRecords to images, masks and tensors."""

from __future__ import annotations

import dataclasses
import math
from typing import Callable, Mapping, Sequence

from tf_input import first_records
from tf_input.dataset_format import IMAGE, MASK, Feature
from tf_input.first_records import NUM_CHANNELS, FieldValues, Stored
from tf_input.foreign.record_columns import Column
from tf_input.lazy_tensorflow import tf
from tf_input.record_layouts import DTYPES, Item, Layout

_MASK_DTYPES = ("uint8", "uint16")  # the dtypes that PNG supports


@dataclasses.dataclass(frozen=True)
class NumberReader:
    """Reads arrays that are stored as raw bytes.

    Attributes:
        layout: The layout of the records.
        sides: The items of the layout that define shapes; see `first_records.side_items`.
        examples: The stored features of each of the first records.
        seen: The values of each feature in the first records, by feature name.
    """

    layout: Layout
    sides: Sequence[str]
    examples: Sequence[Stored]
    seen: Mapping[str, FieldValues]

    def column(self, name: str, item: Item) -> Column:
        """Returns the column of an item, which is an image, a mask or a tensor. Masks and images of varying size are
        converted to PNGs.

        Raises:
            ValueError: The values do not match the layout. The caller adds the name of the feature to the message.
        """
        (data,), dtype = self.seen[item.name].values, item.dtype or "uint8"
        shapes = first_records.record_shapes(self.layout, self.sides, item, self.examples)
        common, num_channels, is_planar = first_records.common_shape(shapes, item.is_list), 1, False
        if name == MASK:
            if dtype not in _MASK_DTYPES or len(common) < 2:
                raise ValueError(
                    f"{item} has shape {shapes[0]}, but needs a height and a width, and type "
                    f"{' or '.join(_MASK_DTYPES)}"
                )
            common = common[:2]
        if name == IMAGE:
            *_, num_channels, is_planar = first_records.as_pixels(shapes[0], len(data) // DTYPES[dtype], dtype)
        first = shapes[0][: len(common)]
        if name in (IMAGE, MASK) and len(first) == 2:
            first, common = (*first, num_channels), (*common, num_channels)
        if math.prod(first) * DTYPES[dtype] != len(data):
            raise ValueError(first_records.wrong_size(item.name, len(data), first, dtype))
        num_stated = min(len(shapes[0]), 2 if name == MASK else 3) if name in (IMAGE, MASK) else len(first)
        stated = _Stated(item.name, dtype, common, num_stated, *self._stated(item, len(shapes[0])))
        parts = (Feature(item.name, "text"), *stated.parts)
        if name == MASK or name == IMAGE and dtype == "uint8" and num_channels in NUM_CHANNELS:
            if name == MASK or is_planar or None in common:
                return Column(Feature(name, name), parts, stated.encoder(is_planar))
            return Column(Feature(IMAGE, "pixels", common), parts, stated.check)
        feature = Feature(name, "tensor", common, dtype=dtype)
        if common.count(None) < 2:
            return Column(feature, parts, stated.check)
        return Column(feature, parts, lambda data, *others: {name: data, f"{name}/shape": stated.shapes(data, *others)})

    def _stated(self, item: Item, num_sides: int) -> tuple[tuple[int | str, ...], tuple[Feature, ...]]:
        """Returns the sizes of the dimensions of an array, and the stored features that contain unknown sizes. If a
        size is unknown, the dtype of the stored integers takes its place.
        """
        if item.shape:
            return item.shape, ()
        numbers, parts = [], []
        for side in map(self.layout.items.get, self.sides):
            if side.number is not None:
                numbers.append(side.number)
                continue
            values = self.seen[side.name].values
            is_int32 = isinstance(values[0], bytes) and len(values[0]) <= tf.int32.size * num_sides
            numbers.append("int32" if is_int32 else "int64")
            parts.append(Feature(side.name, self.seen[side.name].kind, () if len(values) == 1 else (len(values),)))
        return tuple(numbers), tuple(parts)


@dataclasses.dataclass(frozen=True)
class _Stated:
    """Computes the shapes of a raw array from values in the records.

    Attributes:
        name: The name of the feature with the bytes.
        dtype: The dtype of the values.
        shape: The common shape of all records, with None for sides that differ.
        num_stated: The number of leading dimensions whose sizes the records contain.
        numbers, parts: The sizes of the dimensions, and the stored features with sizes; see `NumberReader._stated`.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...]
    num_stated: int
    numbers: tuple[int | str, ...]
    parts: tuple[Feature, ...]

    def shapes(self, data: tf.Tensor, *stated: tf.Tensor) -> tf.Tensor:
        """Returns the shapes of raw arrays, string [batch], as int64 [batch, dimensions].

        Raises:
            tf.errors.InvalidArgumentError: A shape differs from those of the first records, or from the number of
                bytes. Raised when the tensor is computed.
        """
        parsed = iter(stated)
        numbers = [_integers(next(parsed), number) if isinstance(number, str) else _fill(data, number) for number in self.numbers]
        numbers = [tf.concat(numbers, axis=1)[:, : self.num_stated], *(_fill(data, side) for side in self.shape[self.num_stated :])]
        shapes = tf.ensure_shape(tf.concat(numbers, axis=1), (None, len(self.shape)))
        wanted = tf.constant([-1 if side is None else side for side in self.shape], tf.int64)
        shown = ", ".join("?" if side is None else str(side) for side in self.shape)
        message = f"{self.name} must have the shape ({shown}), as in the first records. "
        message += f"For any size, use a layout with {self.name}:{self.dtype}[]."
        bytes_message = f"{self.name}: the number of bytes in a record does not fit its shape"
        num_bytes = tf.reduce_prod(shapes, axis=1) * DTYPES[self.dtype]
        checks = [
            tf.debugging.Assert(tf.reduce_all((wanted < 0) | (shapes == wanted)), [message, shapes]),
            tf.debugging.assert_equal(tf.cast(tf.strings.length(data), tf.int64), num_bytes, bytes_message),
        ]
        with tf.control_dependencies(checks):
            return tf.identity(shapes)

    def check(self, data: tf.Tensor, *stated: tf.Tensor) -> tf.Tensor:
        """Checks that the number of bytes matches the shape of each array, and returns the bytes unchanged."""
        with tf.control_dependencies([self.shapes(data, *stated)]):
            return tf.identity(data)

    def encoder(self, is_planar: bool) -> Callable[..., tf.Tensor]:
        """Returns a function that encodes raw images of varying size as PNGs. Raw pixels would need equal sizes."""

        def encode_one(data_and_shape: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
            pixels = tf.reshape(tf.io.decode_raw(data_and_shape[0], tf.as_dtype(self.dtype)), data_and_shape[1])
            return tf.io.encode_png(tf.transpose(pixels, (1, 2, 0)) if is_planar else pixels, compression=0)

        return lambda data, *stated: tf.map_fn(encode_one, (data, self.shapes(data, *stated)), fn_output_signature=tf.string)


def _fill(data: tf.Tensor, number: int) -> tf.Tensor:
    return tf.fill([tf.size(data), 1], tf.constant(number, tf.int64))


def _integers(side: tf.Tensor, dtype: str) -> tf.Tensor:
    """Converts integers, or the bytes of an integer array, to int64 [batch, numbers]."""
    numbers = tf.io.decode_raw(side, tf.as_dtype(dtype)) if side.dtype == tf.string else tf.reshape(side, (tf.shape(side)[0], -1))
    return tf.cast(numbers, tf.int64)
