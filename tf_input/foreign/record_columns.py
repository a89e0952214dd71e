"""Converts parsed values from other tools' TFRecords to feature values."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Callable

from tf_input.dataset_format import Feature
from tf_input.lazy_tensorflow import tf


@dataclasses.dataclass(frozen=True)
class Column:
    """A feature, and the stored features from which it is computed.

    Attributes:
        feature: The feature as the model receives it.
        stored: The stored features, by their names in the records.
        convert: A function from the parsed stored values to the value of the feature. It may return a dictionary with
            the keys NAME and `NAME/shape`, as `schema.parse_examples` does.
    """

    feature: Feature
    stored: tuple[Feature, ...]
    convert: Callable[..., Any] = lambda value: value


def renamed_column(feature: Feature, stored: str) -> Column:
    """Returns the column of a feature that is stored under a different name."""
    return Column(feature, (dataclasses.replace(feature, name=stored),))


def fold(values: tf.RaggedTensor, shape: tuple[int, ...], message: str) -> tf.Tensor:
    """Reshapes lists of equal length, [batch, None], to [batch, *shape]. `message` is the error for other lengths."""
    size = tf.constant(math.prod(shape), values.row_splits.dtype)
    with tf.control_dependencies([tf.debugging.assert_equal(values.row_lengths(), size, message)]):
        return tf.ensure_shape(tf.reshape(values.values, (-1, *shape)), (values.shape[0], *shape))


def fill(values: tf.RaggedTensor, default: bytes | int | float, message: str) -> tf.RaggedTensor:
    """Replaces missing values with a default, so that each example has exactly one value. Returns a ragged tensor."""
    at_most_one = tf.debugging.assert_less_equal(values.row_lengths(), tf.constant(1, values.row_splits.dtype), message)
    with tf.control_dependencies([at_most_one]):
        filled = values.to_tensor(default, shape=(None, 1))
    return tf.RaggedTensor.from_tensor(filled, row_splits_dtype=values.row_splits.dtype)


def class_indices(flags: tf.Tensor) -> tf.RaggedTensor:
    """Converts multi-hot labels, int64 [batch, classes], to class indices."""
    message = "labels must be a 0 or 1 for each class, as in the first records"
    check = tf.debugging.Assert(tf.reduce_all((flags == 0) | (flags == 1)), [message, flags])
    with tf.control_dependencies([check]):
        classes = tf.broadcast_to(tf.range(tf.shape(flags, tf.int64)[1]), tf.shape(flags))
    return tf.ragged.boolean_mask(classes, flags > 0)


def stack_sides(*sides: tf.RaggedTensor) -> tf.RaggedTensor:
    """Stacks the four coordinates of boxes, each [batch, None], into one tensor [batch, None, 4]."""
    message = "a record has different numbers of values for the four sides of boxes"
    checks = [tf.debugging.assert_equal(side.row_splits, sides[0].row_splits, message) for side in sides[1:]]
    with tf.control_dependencies(checks):
        return sides[0].with_values(tf.stack([tf.identity(side.values) for side in sides], axis=1))


def look_up(names: tuple[str, ...]) -> Callable[[Any], Any]:
    """Returns a function that converts class names to indices in `names`."""
    pairs = tf.lookup.KeyValueTensorInitializer(tf.constant(names), tf.range(len(names), dtype=tf.int64))
    table = tf.lookup.StaticHashTable(pairs, -1)

    def find(texts: tf.Tensor) -> tf.Tensor:
        labels = table.lookup(texts)
        return _reject(labels, texts, labels < 0, "label_names does not contain these class names:")

    return lambda texts: tf.ragged.map_flat_values(find, texts)


def check_labels(num_classes: int) -> Callable[[Any], Any]:
    """Returns a function that checks that labels are valid class indices."""

    def check(labels: tf.Tensor) -> tf.Tensor:
        are_wrong = (labels < 0) | (labels >= num_classes)
        message = f"label_names has only labels 0 to {num_classes - 1}, and not these:"
        return _reject(labels, labels, are_wrong, message)

    return lambda labels: tf.ragged.map_flat_values(check, labels)


def _reject(labels: tf.Tensor, shown_values: tf.Tensor, is_invalid: tf.Tensor, message: str) -> tf.Tensor:
    check = tf.debugging.Assert(~tf.reduce_any(is_invalid), [message, tf.boolean_mask(shown_values, is_invalid)])
    with tf.control_dependencies([check]):
        return tf.identity(labels)
