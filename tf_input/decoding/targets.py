"""Prepares the inputs and targets of a model: default inputs, multi-hot labels and padded objects."""

from __future__ import annotations

import dataclasses
from typing import Callable, Collection, Mapping

from tf_input.dataset_format import IMAGE, LABEL, OBJECTS, Feature, input_names
from tf_input.decoding.crop_geometry import CropGeometry, move_boxes, value_rows
from tf_input.lazy_tensorflow import tf
from tf_input.read_config import ReadConfig

BBOX = "bbox"
VALID = "valid"
NO_LABEL = -1


def object_features(features: Mapping[str, object]) -> dict[str, str]:
    """Returns a dictionary of object features, which maps each name without the prefix `objects/` to the full name."""
    return {name.removeprefix(f"{OBJECTS}/"): name for name in features if name.startswith(f"{OBJECTS}/")}


def with_inputs(config: ReadConfig, features: Mapping[str, Feature], target_names: Collection[str]) -> ReadConfig:
    """Returns `config`, with the default of `ReadConfig.inputs` filled in if there is no feature `image`.

    Raises:
        ValueError: There is no feature for the inputs.
    """
    if config.inputs is not None or IMAGE in features:
        return config
    inputs = input_names(features, target_names)
    if not inputs:
        raise ValueError(f"inputs=None: the dataset has no {IMAGE!r}. Choose inputs from {', '.join(features)}.")
    return dataclasses.replace(config, inputs=inputs)


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


# Moves the values of objects, given the index of the image of each value.
Move = Callable[["tf.Tensor", "tf.Tensor"], "tf.Tensor"]


def pad_objects(
    columns: Mapping[str, tf.RaggedTensor],
    crops: CropGeometry | None,
    max_objects: int | None = None,
    moves: Mapping[str, Move] = {},
) -> dict[str, tf.Tensor]:
    """Returns the visible objects in dense tensors. Boxes are clipped to the visible part of the image.

    Objects whose center is not visible are dropped.

    Args:
        columns: The features of objects by name, [batch, None, ...], with equal numbers of objects. `bbox` is required.
        crops: The crops of the images; None if images are not cropped.
        max_objects: The number of objects per image; further objects are dropped. Default: None, the largest number in
            the batch.
        moves: The functions that move the values of columns besides `bbox` to the crops, by name. Not used without
            crops.

    Returns:
        Tensors [batch, max_objects, ...] by the same names, padded with 0, and labels with -1. In addition `valid`,
        bool [batch, max_objects], which is False for padding.

    Raises:
        tf.errors.InvalidArgumentError: Features of an image have different numbers of objects. Raised when the tensors
            are computed.
    """
    boxes = columns[BBOX]
    checks = [
        tf.debugging.assert_equal(column.row_splits, boxes.row_splits, f"{OBJECTS}/{name} and {OBJECTS}/{BBOX} differ in number")
        for name, column in columns.items()
        if name != BBOX
    ]
    with tf.control_dependencies(checks):
        # All columns share one row partition.
        columns = {name: boxes.with_values(tf.identity(column.values)) for name, column in columns.items()}
    if crops is not None:
        moved, seen = move_boxes(boxes, crops)
        images = value_rows(boxes)
        columns |= {name: columns[name].with_values(move(columns[name].values, images)) for name, move in moves.items()}
        # `tf.ragged.boolean_mask` would compute the kept rows again for each column, with a hundred ops.
        kept = tf.where(seen.values)[:, 0]
        # number of kept objects before each object
        num_kept = tf.cumsum(tf.pad(tf.cast(seen.values, boxes.row_splits.dtype), [[1, 0]]))
        splits = tf.gather(num_kept, boxes.row_splits)
        columns = {
            name: tf.RaggedTensor.from_row_splits(tf.gather(column.values, kept), splits, validate=False)
            for name, column in {**columns, BBOX: moved}.items()
        }
    columns[VALID] = columns[BBOX].with_values(tf.ones_like(columns[BBOX].values[:, 0], tf.bool))
    return {name: _dense(column, max_objects, NO_LABEL if name == LABEL else None) for name, column in columns.items()}


def _dense(column: tf.RaggedTensor, max_objects: int | None, default: int | None) -> tf.Tensor:
    return column.to_tensor(default, shape=(None, max_objects, *column.shape[2:]))
