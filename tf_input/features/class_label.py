"""Feature kind `class_label`: class indices. Lists of any length become multi-hot vectors."""

from __future__ import annotations

from typing import Any

from tf_input.dataset_format import Feature
from tf_input.features.crop_geometry import value_rows
from tf_input.features.feature_kind import BatchContext, FeatureKind
from tf_input.lazy_tensorflow import tf


class ClassLabel(FeatureKind):
    """The feature kind `class_label`."""

    def output(self, feature: Feature, batch: BatchContext) -> Any:
        value = batch.parsed[feature.name]
        return multi_hot(value, len(feature.label_names)) if feature.is_ragged else value


def multi_hot(labels: tf.RaggedTensor, num_classes: int) -> tf.Tensor:
    """Converts variable-length label lists to multi-hot vectors.

    Args:
        labels: int64 [batch, None], each below `num_classes`.
        num_classes: The number of classes.

    Returns:
        float32 [batch, num_classes].

    Raises:
        tf.errors.InvalidArgumentError: A label is out of range. Raised when the tensor is computed.
    """
    rows = tf.cast(value_rows(labels), tf.int64)
    zeros = tf.zeros(tf.stack([tf.cast(labels.nrows(), tf.int32), num_classes]))
    ones = tf.ones_like(labels.values, tf.float32)
    hot = tf.tensor_scatter_nd_max(zeros, tf.stack([rows, labels.values], axis=1), ones)
    return tf.ensure_shape(hot, (None, num_classes))
