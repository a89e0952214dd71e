"""Boxes and arrays, and how they follow an image through orientation and resizing; for masks see `class_masks`. Plain.

Boxes were drawn on the image as it is found, or on the upright one; the size that a source states tells which:

    stated size                     boxes
    that of the image as found      are turned with it, also where the upright image has the same size
    none, or 0 x 0                  likewise
    that of the upright image       stay: whoever drew them saw it upright
    another                         are refused, `size_mismatch`

Resizing changes nothing, since boxes are stored relative to the image. A side up to one pixel outside is moved to the edge
without a word: some tools count pixels from 1, or to the last one inclusive. What is worse is refused, or clipped, as asked.
"""

import math
import re
from typing import Any, Mapping, NamedTuple

import numpy as np

from beam_pipelines.errors import printable
from beam_pipelines.resize import Geometry

_NPY_MAGIC = b"\x93NUMPY"
_MAX_HEADER_BYTES = 65_000
_MAX_ARRAY_VALUES = 2**28  # a GiB of float32: a serialized example must be smaller than two
_NPY_FIELDS = {
    "descr": re.compile(r"'descr'\s*:\s*'([<>|=]?(?:b1|[iu][1248]|f[248]))'"),
    "fortran_order": re.compile(r"'fortran_order'\s*:\s*(True|False)"),
    "shape": re.compile(r"'shape'\s*:\s*\(((?:\d{1,12}L?, ?){0,31}(?:\d{1,12}L?)?)\)"),
}


class Objects(NamedTuple):
    """The objects in one image, as a source states them.

    Attributes:
        boxes: (ymin, xmin, ymax, xmax) of each.
        labels: Class name of each.
        flags: Name of a feature behind `objects/`, such as `is_crowd` -> an integer of each.
        image_size: (height, width) of the image that the boxes were drawn on, if it is stated.
        is_relative: Whether boxes are in 0..1; else in pixels.
    """

    boxes: tuple[tuple[float, float, float, float], ...]
    labels: tuple[str, ...]
    flags: Mapping[str, tuple[int, ...]] = {}
    image_size: tuple[int, int] | None = None
    is_relative: bool = False


class Regions(NamedTuple):
    """A mask that has to be drawn: outlines and run lengths, as COCO has them.

    Attributes:
        labels: Class name of each region; later ones lie over earlier ones.
        regions: Each a list of polygons, [x, y, x, y, …] in pixels, or a run-length encoding, {"size", "counts"}.
        image_size: (height, width) that they were drawn on.
    """

    labels: tuple[str, ...]
    regions: tuple[Any, ...]
    image_size: tuple[int, int]


class BadAnnotationError(ValueError):
    """What does not fit its image: one line, what was found against what was expected.

    Attributes:
        reason: A short code: `bad_box`, `bad_mask`, `bad_array`, `size_mismatch`, …
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class PlacedObjects(NamedTuple):
    """Objects of an image as it is stored.

    Attributes:
        boxes: float32 [num_objects, 4]: ymin, xmin, ymax, xmax, in 0..1.
        kept: Their positions among the source's objects, ascending.
        num_clipped: How many of them were clipped, by more than a pixel.
        num_dropped: How many objects are not among them.
    """

    boxes: np.ndarray
    kept: tuple[int, ...]
    num_clipped: int
    num_dropped: int


def place_objects(objects: Objects, geometry: Geometry, bad_boxes: str) -> PlacedObjects:
    """The boxes relative to the image as it is stored.

    Args:
        objects: In any number, also none.
        geometry: How the image became what is stored.
        bad_boxes: `refuse`: a box that has no area, or is not inside the image, is an error; `clip`: it is cut to what is
            inside, and the object dropped if that has no area.

    Raises:
        BadAnnotationError: `size_mismatch`, `bad_box`.
    """
    if bad_boxes not in ("refuse", "clip"):
        raise ValueError(f"bad_boxes={bad_boxes!r}; expected refuse or clip")
    is_turned = follows_turn(objects.image_size, geometry, "boxes were")
    height, width = geometry.found if is_turned else geometry.upright
    sides = np.array([height, width, height, width], np.float64)
    found = np.array(objects.boxes, np.float64).reshape(-1, 4)
    found = found if objects.is_relative else found / sides
    inside = np.clip(found, 0, 1)
    boxes = (_turn_boxes(inside, geometry.orientation) if is_turned else inside).astype(np.float32)
    has_area = np.isfinite(found).all(axis=1) & (boxes[:, :2] < boxes[:, 2:]).all(axis=1)
    # A pixel, and what rounding may add to it.
    is_clipped = (np.abs(found - inside) > (1 + 1e-6) / sides).any(axis=1)
    if bad_boxes == "refuse" and not (has_area & ~is_clipped).all():
        index = int(np.argmin(has_area & ~is_clipped))
        raise BadAnnotationError("bad_box", _describe_box(objects, index, height, width))
    num_kept = int(has_area.sum())
    num_clipped = int((is_clipped & has_area).sum())
    kept = tuple(np.flatnonzero(has_area).tolist())
    return PlacedObjects(boxes[has_area], kept, num_clipped, len(has_area) - num_kept)


def follows_turn(size: tuple[int, int] | None, geometry: Geometry, what: str) -> bool:
    """Whether what was drawn on an image of this (height, width) is turned with it; else it is upright already.

    Args:
        what: With a verb, for the message.

    Raises:
        BadAnnotationError: `size_mismatch`: it was drawn on neither.
    """
    if size is None or 0 in size or tuple(size) == geometry.found:
        return True
    if tuple(size) == geometry.upright:
        return False
    message = f"{what} drawn on {_size(size)} pixels; the image has {_size(geometry.found)}"
    raise BadAnnotationError("size_mismatch", message)


def _turn_boxes(boxes: np.ndarray, orientation: int) -> np.ndarray:
    """Boxes in 0..1, as the EXIF orientation turns the image below them."""
    if orientation >= 5:  # rows become columns
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
    return f"{name}: x {xmin} to {xmax}, y {ymin} to {ymax}; expected min < max, inside {sides}"


def _size(size: tuple[int, int]) -> str:
    return f"{size[1]} x {size[0]}"


def array_shape(data: bytes) -> tuple[int, ...]:
    """The shape of the array in a `.npy` file, by the file's first bytes alone: 64 KiB are always enough.

    Raises:
        BadAnnotationError: `bad_array`: it is none, or not one of numbers.
    """
    return _read_npy_header(data)[1]


def read_array(data: bytes, shape: tuple[int, ...], geometry: Geometry) -> np.ndarray:
    """float32 of that shape, in C order: the numbers in a `.npy` file. Nothing is unpickled.

    The format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html

    Raises:
        BadAnnotationError: `bad_array`: it is no such file, or of another shape, or not all of its numbers are finite;
            `size_mismatch`: it lies on an image that is turned upright, and nothing says whether to turn it too.
    """
    dtype, found, is_fortran, start = _read_npy_header(data)
    if found != tuple(shape):
        raise BadAnnotationError("bad_array", f"an array of shape {found}; expected {tuple(shape)}")
    if len(data) - start != math.prod(found) * dtype.itemsize:
        sizes = f"{len(data) - start} bytes of {dtype.name} {found}; expected {math.prod(found) * dtype.itemsize}"
        raise BadAnnotationError("bad_array", sizes)
    if len(found) >= 2 and geometry.orientation != 1:
        turned = f"an array of shape {found} on an image that its EXIF orientation, {geometry.orientation}, turns"
        raise BadAnnotationError("size_mismatch", f"{turned}; expected an image that is upright as it is")
    values = np.frombuffer(data, dtype, offset=start).reshape(found, order="F" if is_fortran else "C")
    with np.errstate(over="ignore"):  # it becomes infinite, and is refused for that
        values = values.astype(np.float32, order="C")
    if not np.isfinite(values).all():
        raise BadAnnotationError("bad_array", "NaN, infinite or too large for float32; expected finite numbers")
    return values


def _read_npy_header(data: bytes) -> tuple[np.dtype, tuple[int, ...], bool, int]:
    """(dtype, shape, whether in Fortran order, where the numbers begin).

    By pattern: NumPy's own reader evaluates the header as Python, with warnings and errors of many kinds on bad ones.
    """
    if not data.startswith(_NPY_MAGIC) or len(data) < 12 or data[6] not in (1, 2, 3):
        raise BadAnnotationError("bad_array", f"starts with {data[:8]!r}; expected a .npy file")
    start = 10 if data[6] == 1 else 12
    end = start + int.from_bytes(data[8:start], "little")
    limit = min(len(data), _MAX_HEADER_BYTES)
    if end > limit:
        raise BadAnnotationError("bad_array", f"a .npy header that ends at byte {end}; expected at most {limit}")
    header = data[start:end].decode("latin-1")
    fields = {name: pattern.search(header) for name, pattern in _NPY_FIELDS.items()}
    if not all(fields.values()):
        message = f"a .npy header {header[:80].strip()!r}; expected one of an array of numbers"
        raise BadAnnotationError("bad_array", message)
    dtype, order, sides = (match[1] for match in fields.values())
    shape = tuple(int(side) for side in re.findall(r"\d+", sides))
    if not 0 < math.prod(shape) <= _MAX_ARRAY_VALUES:
        raise BadAnnotationError("bad_array", f"an array of shape {shape}; expected 1 to {_MAX_ARRAY_VALUES} numbers")
    return np.dtype(dtype), shape, order == "True", end
