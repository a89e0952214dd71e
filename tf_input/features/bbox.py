"""Feature kind `bbox`: bounding boxes of objects, and the batches of objects with all of their features."""

from __future__ import annotations

from typing import Callable, Mapping

from tf_input.dataset_format import LABEL, OBJECTS
from tf_input.features.crop_geometry import CropGeometry, value_rows
from tf_input.lazy_tensorflow import tf

BBOX = "bbox"
VALID = "valid"
NO_LABEL = -1


def object_features(features: Mapping[str, object]) -> dict[str, str]:
    """Returns a dictionary of object features, which maps each name without the prefix `objects/` to the full name."""
    return {name.removeprefix(f"{OBJECTS}/"): name for name in features if name.startswith(f"{OBJECTS}/")}


def move_boxes(boxes: tf.RaggedTensor, crops: CropGeometry) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
    """Converts bounding boxes from the coordinates of the stored image to the coordinates of the crop.

    Args:
        boxes: float32 [batch, None, 4], (ymin, xmin, ymax, xmax) in 0..1 of the stored image.
        crops: The crops of the images.

    Returns:
        The boxes in 0..1 of the returned image, clipped to it; and whether a box's center is visible, bool [batch,
        None].
    """
    images = value_rows(boxes)
    canvas_boxes = tf.gather(crops.canvas_boxes(), images)  # [num_boxes, 4]
    starts, ends = tf.split(canvas_boxes, 2, axis=1)
    moved = (boxes.values - tf.tile(starts, [1, 2])) / tf.tile(ends - starts, [1, 2])
    if crops.flipped is not None:
        ymin, xmin, ymax, xmax = tf.unstack(moved, axis=1)
        flipped_boxes = tf.stack([ymin, 1 - xmax, ymax, 1 - xmin], axis=1)
        moved = tf.where(tf.gather(crops.flipped, images)[:, tf.newaxis], flipped_boxes, moved)
    centres = (moved[:, :2] + moved[:, 2:]) / 2
    seen = tf.reduce_all((centres >= 0) & (centres <= 1), axis=1)
    return boxes.with_values(tf.clip_by_value(moved, 0, 1)), boxes.with_values(seen)


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
