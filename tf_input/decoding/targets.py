"""What features are for a model, and become for it: its inputs, multi-hot vectors, padded objects."""

import dataclasses
from typing import Collection, Mapping

import tensorflow as tf

from tf_input.dataset_format import IMAGE, LABEL, OBJECTS, Feature, input_names
from tf_input.decoding.views import Views, move_boxes, value_rows
from tf_input.read_config import ReadConfig

BBOX = "bbox"
VALID = "valid"
NO_LABEL = -1


def object_features(features: Mapping[str, object]) -> dict[str, str]:
    """The names of the features that objects have: without what stands before the "/" -> with it."""
    return {name.removeprefix(f"{OBJECTS}/"): name for name in features if name.startswith(f"{OBJECTS}/")}


def with_inputs(config: ReadConfig, features: Mapping[str, Feature], target_names: Collection[str]) -> ReadConfig:
    """With the names of what a model is fed with, where nobody says them and there is no image: see `ReadConfig.inputs`.

    Raises:
        ValueError: Nothing is left.
    """
    if config.inputs is not None or IMAGE in features:
        return config
    found = input_names(features, target_names)
    if not found:
        raise ValueError(f"inputs=None: there is no {IMAGE!r}; expected some of {', '.join(features)}")
    return dataclasses.replace(config, inputs=found)


def multi_hot(labels: tf.RaggedTensor, num_classes: int) -> tf.Tensor:
    """Any number of labels an example -> 1 in the columns of its labels, else 0.

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


def pad_objects(
    columns: Mapping[str, tf.RaggedTensor], views: Views | None, max_objects: int | None = None
) -> dict[str, tf.Tensor]:
    """The objects in the views, in dense tensors.

    An object is taken out where its centre is not in the view; boxes are clipped to the view.

    Args:
        columns: What is known of objects, by name: [batch, None, ...], the same number in all; `bbox` is one.
        views: The views of the images; None: all of each is seen.
        max_objects: Room for as many; the first ones are kept where there are more. None: for those of the image that has most.

    Returns:
        By the same names, tensors of [batch, max_objects, ...]; where an image has fewer objects they are filled up with 0, a label
        with -1. Beside them `valid`, bool [batch, max_objects]: which are objects.

    Raises:
        tf.errors.InvalidArgumentError: Columns differ in how many objects an image has. Raised when the tensors are computed.
    """
    boxes = columns[BBOX]
    checks = [
        tf.debugging.assert_equal(one.row_splits, boxes.row_splits, f"{OBJECTS}/{name} and {OBJECTS}/{BBOX} differ in number")
        for name, one in columns.items()
        if name != BBOX
    ]
    with tf.control_dependencies(checks):
        # One partition for all.
        columns = {name: boxes.with_values(tf.identity(column.values)) for name, column in columns.items()}
    if views is not None:
        moved, seen = move_boxes(boxes, views)
        # As `tf.ragged.boolean_mask`, which finds out anew for each column what is kept, in a hundred ops.
        kept = tf.where(seen.values)[:, 0]
        num_kept = tf.cumsum(tf.pad(tf.cast(seen.values, boxes.row_splits.dtype), [[1, 0]]))  # of all objects before each
        splits = tf.gather(num_kept, boxes.row_splits)
        columns = {
            name: tf.RaggedTensor.from_row_splits(tf.gather(column.values, kept), splits, validate=False)
            for name, column in {**columns, BBOX: moved}.items()
        }
    columns[VALID] = columns[BBOX].with_values(tf.ones_like(columns[BBOX].values[:, 0], tf.bool))
    return {name: _dense(column, max_objects, NO_LABEL if name == LABEL else None) for name, column in columns.items()}


def _dense(column: tf.RaggedTensor, max_objects: int | None, default: int | None) -> tf.Tensor:
    return column.to_tensor(default, shape=(None, max_objects, *column.shape[2:]))
