"""Rotates and resizes boxes together with their image.

See `class_masks` for masks, and `array_values` for arrays.

Annotation tools display an image either before or after its EXIF rotation, so boxes can refer to either orientation. If
`SourceConfig.drawn_on` is not set, the image size in the annotations determines the orientation:

    image size in the annotations         boxes
    the size after rotation only          are not changed
    the size before rotation, missing     are rotated with the image; such images are counted, because some tools
    or 0 x 0                              write the size before rotation, but display the rotated image
    any other size                        are rejected with `size_mismatch`, even if `drawn_on` is set

Resizing does not change boxes, because they are relative to the image size. A box that extends up to one pixel beyond
the image is clipped without a warning, because some tools count pixels from 1, or include the last pixel. Boxes that
extend further are rejected, or clipped if `bad_boxes` is `clip`.
"""

from typing import Any, Mapping, NamedTuple

import numpy as np

from beam_pipelines.errors import InvalidInput, printable
from beam_pipelines.images.resize import Geometry
from tf_input.dataset_format import LABEL


class Objects(NamedTuple):
    """The objects in an image as described by the source.

    Attributes:
        boxes: The (ymin, xmin, ymax, xmax) of each object, in pixels, or from 0 to 1 if `is_relative`.
        labels: The class name of each object.
        flags: A mapping from the name of another feature, such as `is_crowd`, to the number or the class name for each
            object. Names are without the prefix `objects/`.
        image_size: The (height, width) in pixels of the image that the boxes refer to. None if unknown.
        is_relative: Whether boxes are relative to the image size instead of in pixels.
        points: A mapping from the name of a keypoints feature, without the prefix `objects/`, to the points of each
            object. A point is (x, y) or (x, y, visibility), in the unit of the boxes. Visibility 0 means that the
            point has no position.
    """

    boxes: tuple[tuple[float, float, float, float], ...]
    labels: tuple[str, ...]
    flags: Mapping[str, tuple[float | str, ...]] = {}
    image_size: tuple[int, int] | None = None
    is_relative: bool = False
    points: Mapping[str, tuple[tuple[tuple[float, ...], ...], ...]] = {}

    def classes(self, feature: str) -> tuple[Any, ...]:
        """Returns the class name of each object, given the name of a class feature such as `objects/label`."""
        name = feature.rpartition("/")[2]
        return self.labels if name == LABEL else self.flags[name]


class DrawnPoints(NamedTuple):
    """The keypoints of an image that were drawn in an annotation tool.

    Attributes:
        points: The x, the y and optionally the visibility of each point, in pixels, float64 [num_points, 2 or 3].
        image_size: The (height, width) in pixels of the image that the points refer to. None if unknown.
    """

    points: np.ndarray
    image_size: tuple[int, int] | None


class Regions(NamedTuple):
    """A mask as polygons or run-length encodings, in COCO's format.

    Attributes:
        labels: The class name of each region. Later regions are drawn over earlier regions.
        regions: The regions. A region is a list of polygons, each [x, y, x, y, …] in pixels, or a run-length encoding
            {"size": …, "counts": …}.
        image_size: The (height, width) in pixels of the image that the regions refer to. None if unknown.
        is_relative: Whether the polygons are relative to the image size instead of in pixels.
        are_values: Whether labels are pixel values, written as digits, instead of class names. If so, a region can also
            be a string of (start, length) pairs, where the start is a one-based pixel index in column-major order.
    """

    labels: tuple[str, ...]
    regions: tuple[Any, ...]
    image_size: tuple[int, int] | None = None
    is_relative: bool = False
    are_values: bool = False


class Segments(NamedTuple):
    """A mask in COCO's panoptic format. The color of a pixel encodes a segment id as red + 256 * green + 65536 * blue.

    Attributes:
        path: The path of the PNG, relative to the root of the source.
        ids: The id of each segment. Pixels with the id 0 have no segment.
        labels: The class name of each segment.
    """

    path: str
    ids: tuple[int, ...]
    labels: tuple[str, ...]


class PlacedObjects(NamedTuple):
    """The objects in an image, with boxes relative to the stored image.

    Attributes:
        boxes: The boxes of the kept objects, (ymin, xmin, ymax, xmax) from 0 to 1, float32 [num_objects, 4].
        kept: The indices of the kept objects in the source, in ascending order.
        num_clipped: The number of kept objects that were clipped by more than one pixel.
        num_dropped: The number of dropped objects.
    """

    boxes: np.ndarray
    kept: tuple[int, ...]
    num_clipped: int
    num_dropped: int


def transform_boxes(objects: Objects, geometry: Geometry, bad_boxes: str, drawn_on: str | None = None) -> PlacedObjects:
    """Transforms boxes in the source image to boxes in the stored image.

    Args:
        objects: The objects.
        geometry: The rotation and resizing of the image.
        bad_boxes: The treatment of a box that is empty or not inside the image. `reject` raises an error. `clip` clips
            the box, and drops the object if the result is empty.
        drawn_on: The image orientation that the boxes refer to, as in `SourceConfig`.

    Raises:
        InvalidInput: `size_mismatch`: the boxes refer to another image; `bad_box`: a box is not inside the image.
    """
    if bad_boxes not in ("reject", "clip"):
        raise ValueError(f"bad_boxes={bad_boxes!r} is neither reject nor clip")
    is_rotated = follows_rotation(objects.image_size, geometry, "boxes were", drawn_on)
    height, width = geometry.source_size if is_rotated else geometry.upright
    sides = np.array([height, width, height, width], np.float64)
    corners = np.array(objects.boxes, np.float64).reshape(-1, 4)
    corners = corners if objects.is_relative else corners / sides
    inside = np.clip(corners, 0, 1)
    boxes = (_rotate_boxes(inside, geometry.orientation) if is_rotated else inside).astype(np.float32)
    has_area = np.isfinite(corners).all(axis=1) & (boxes[:, :2] < boxes[:, 2:]).all(axis=1)
    # One pixel, plus a margin for rounding.
    is_clipped = (np.abs(corners - inside) > (1 + 1e-6) / sides).any(axis=1)
    if bad_boxes == "reject" and not (has_area & ~is_clipped).all():
        index = int(np.argmin(has_area & ~is_clipped))
        raise InvalidInput("bad_box", _describe_box(objects, index, height, width))
    num_kept = int(has_area.sum())
    num_clipped = int((is_clipped & has_area).sum())
    kept = tuple(np.flatnonzero(has_area).tolist())
    return PlacedObjects(boxes[has_area], kept, num_clipped, len(has_area) - num_kept)


def place_points(
    positions: np.ndarray, geometry: Geometry, is_relative: bool, size: tuple[int, int] | None = None, drawn_on: str | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Transforms positions in the source image to positions in the stored image.

    Args:
        positions: The x and y of each position, float64 [..., 2], in pixels, or from 0 to 1 if `is_relative`.
        geometry: The rotation and resizing of the image.
        is_relative: Whether positions are relative to the image size instead of in pixels.
        size: The (height, width) in pixels of the image that the positions refer to. None if unknown.
        drawn_on: The image orientation that the positions refer to, as in `SourceConfig`.

    Returns:
        The x and y as fractions of the width and height of the upright image, float64 [..., 2], and the width and
        height of a pixel in this unit, float64 [2]. Fractions are not clipped to 0..1.

    Raises:
        InvalidInput: `size_mismatch`: the positions refer to another image.
    """
    is_rotated = follows_rotation(size, geometry, "keypoints were", drawn_on)
    height, width = geometry.source_size if is_rotated else geometry.upright
    placed = positions if is_relative else positions / np.array([width, height], np.float64)
    if is_rotated:
        boxes = np.concatenate([placed[..., ::-1]] * 2, axis=-1).reshape(-1, 4)  # boxes without area: ymin, xmin, ymax, xmax
        placed = _rotate_boxes(boxes, geometry.orientation)[:, 1::-1].reshape(placed.shape)
    return placed, 1 / np.array(geometry.upright[::-1], np.float64)


def is_turn_guessed(size: tuple[int, int] | None, geometry: Geometry) -> bool:
    """Returns whether the orientation of the annotations is a guess, because their image size does not show whether
    they refer to the image before or after its EXIF rotation.

    Args:
        size: The (height, width) of the image according to the annotations. None if unknown.
        geometry: The rotation and resizing of the image.
    """
    return geometry.orientation != 1 and not _is_upright_size(size, geometry)


def follows_rotation(size: tuple[int, int] | None, geometry: Geometry, annotation: str, drawn_on: str | None = None) -> bool:
    """Returns whether annotations must be rotated with the image. Otherwise, they are already upright.

    Args:
        size: The (height, width) in pixels of the image according to the annotations. None if unknown.
        geometry: The rotation and resizing of the image.
        annotation: The start of the error message, such as `boxes were`.
        drawn_on: The image orientation that the annotations refer to, as in `SourceConfig`. If None, `size` determines
            it.

    Raises:
        InvalidInput: `size_mismatch`: the annotations refer to another image.
    """
    if size is not None and 0 not in size and tuple(size) not in (geometry.source_size, geometry.upright):
        raise InvalidInput(
            "size_mismatch", f"{annotation} drawn on {_size(size)} pixels, but the image has {_size(geometry.source_size)}"
        )
    return drawn_on != "upright" if drawn_on else not _is_upright_size(size, geometry)


def _is_upright_size(size: tuple[int, int] | None, geometry: Geometry) -> bool:
    """Returns whether the size in the annotations equals the image size after rotation, but not before rotation."""
    return size is not None and geometry.source_size != tuple(size) == geometry.upright


def _rotate_boxes(boxes: np.ndarray, orientation: int) -> np.ndarray:
    """Rotates and flips boxes, with coordinates from 0 to 1, according to the EXIF orientation of their image."""
    if orientation >= 5:  # Rows and columns are swapped.
        boxes = boxes[:, [1, 0, 3, 2]]
    if orientation in (3, 4, 7, 8):
        boxes = np.stack([1 - boxes[:, 2], boxes[:, 1], 1 - boxes[:, 0], boxes[:, 3]], axis=1)
    if orientation in (2, 3, 6, 7):
        boxes = np.stack([boxes[:, 0], 1 - boxes[:, 3], boxes[:, 2], 1 - boxes[:, 1]], axis=1)
    return boxes


def _describe_box(objects: Objects, index: int, height: int, width: int) -> str:
    ymin, xmin, ymax, xmax = (f"{value:g}" for value in objects.boxes[index])
    name = f"box {index + 1} of {len(objects.boxes)} ({printable(objects.labels[index])})"
    sides = "1 x 1" if objects.is_relative else f"{_size((height, width))} pixels"
    return f"{name}: x {xmin} to {xmax}, y {ymin} to {ymax}; it must have min < max, inside {sides}"


def _size(size: tuple[int, int]) -> str:
    return f"{size[1]} x {size[0]}"
