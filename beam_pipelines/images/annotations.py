"""Rotates and resizes boxes in the same way as the image.

The module `class_masks` transforms masks, and `array_values` transforms arrays.

Annotation tools show the image either before or after its EXIF rotation, so boxes can refer to either orientation.
`SourceConfig.drawn_on` decides. Without this option, the image size that the source states decides:

    stated size                            boxes
    the size of the upright image only     are not changed
    the size in the file, none, or 0 x 0   are rotated with the image, and the image is counted, because some tools
                                           state the file's size although they show the upright image
    any other size                         are rejected with `size_mismatch`, also with `drawn_on`

Resizing does not change boxes, because they are stored relative to the image. A box that extends up to one pixel beyond
the image is clipped without a warning, because some tools count pixels from 1 or include the last pixel. Boxes that
extend further are rejected, or are clipped if `bad_boxes` is `clip`.
"""

from typing import Any, Mapping, NamedTuple

import numpy as np

from beam_pipelines.errors import InvalidInput, printable
from beam_pipelines.images.resize import Geometry


class Objects(NamedTuple):
    """The objects in one image as described by the source, before any transformation.

    Attributes:
        boxes: (ymin, xmin, ymax, xmax) of each object, in pixels, or in 0..1 if `is_relative`.
        labels: The class name of each object.
        flags: Feature name after `objects/`, such as `is_crowd` -> an integer for each object.
        image_size: (height, width) in pixels of the image that the boxes were drawn on; None if not stated.
        is_relative: Whether boxes are in 0..1 instead of pixels.
    """

    boxes: tuple[tuple[float, float, float, float], ...]
    labels: tuple[str, ...]
    flags: Mapping[str, tuple[int, ...]] = {}
    image_size: tuple[int, int] | None = None
    is_relative: bool = False


class Regions(NamedTuple):
    """A mask that is given as polygons or run-length encodings in COCO's format.

    Attributes:
        labels: The class name of each region. Later regions are drawn over earlier regions.
        regions: Each region: a list of polygons, [x, y, x, y, …] in pixels, or a run-length encoding, {"size",
            "counts"}.
        image_size: (height, width) in pixels of the image that the regions were drawn on.
    """

    labels: tuple[str, ...]
    regions: tuple[Any, ...]
    image_size: tuple[int, int]


class PlacedObjects(NamedTuple):
    """The objects in one image, with boxes in the coordinates of the stored image.

    Attributes:
        boxes: The kept boxes: float32 [num_objects, 4] of ymin, xmin, ymax, xmax in 0..1.
        kept: The indexes of the kept objects among the source's objects, ascending.
        num_clipped: The number of kept objects that were clipped by more than a pixel.
        num_dropped: The number of objects that are not kept.
    """

    boxes: np.ndarray
    kept: tuple[int, ...]
    num_clipped: int
    num_dropped: int


def transform_boxes(objects: Objects, geometry: Geometry, bad_boxes: str, drawn_on: str | None = None) -> PlacedObjects:
    """Transforms boxes in the source image to boxes in the stored image.

    Args:
        objects: The objects, which may be empty.
        geometry: The rotation and resizing of the image.
        bad_boxes: How to handle a box that has no area or is not inside the image. `reject` raises an error. `clip`
            clips the box, and drops the object if no area is left.
        drawn_on: The image that the boxes were drawn on, as in `SourceConfig`.

    Raises:
        InvalidInput: `size_mismatch`: the boxes were drawn on another image; `bad_box`: a box is not inside the image.
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


def is_turn_guessed(size: tuple[int, int] | None, geometry: Geometry) -> bool:
    """Returns whether annotations may refer to the image either before or after its EXIF rotation.

    Args:
        size: The stated (height, width) of the image that the annotations were drawn on; None if not stated.
        geometry: The geometry of the image.
    """
    return geometry.orientation != 1 and not _is_upright_size(size, geometry)


def follows_rotation(size: tuple[int, int] | None, geometry: Geometry, annotation: str, drawn_on: str | None = None) -> bool:
    """Returns whether the annotations have to be rotated together with the image. Otherwise, the annotations are
    already upright.

    Args:
        size: The stated (height, width) in pixels of the image that the annotations were drawn on; None if not stated.
        geometry: The geometry of the image.
        annotation: The name of the annotations with a verb, for the message.
        drawn_on: The image that the annotations were drawn on, as in `SourceConfig`. Overrides the stated size.

    Raises:
        InvalidInput: `size_mismatch`: the stated size is the size of another image.
    """
    if size is not None and 0 not in size and tuple(size) not in (geometry.source_size, geometry.upright):
        raise InvalidInput(
            "size_mismatch", f"{annotation} drawn on {_size(size)} pixels, but the image has {_size(geometry.source_size)}"
        )
    return drawn_on != "upright" if drawn_on else not _is_upright_size(size, geometry)


def _is_upright_size(size: tuple[int, int] | None, geometry: Geometry) -> bool:
    """Returns whether the size in an annotation file equals the image size after rotation but not before rotation."""
    return size is not None and geometry.source_size != tuple(size) == geometry.upright


def _rotate_boxes(boxes: np.ndarray, orientation: int) -> np.ndarray:
    """Rotates and flips boxes with coordinates from 0 to 1 according to the EXIF orientation of the image."""
    if orientation >= 5:  # rows and columns are swapped
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
