"""Parses the lines of the label file of one image.

Each line has a class id and numbers from 0 to 1, which are relative to the width and height of the image:

    class x y width height          a box with the center (x, y)
    class x1 y1 x2 y2 x3 y3 …       a polygon with three or more points, or the four corners of an oriented box
    class x y width height x1 y1 …  a box, and the x and y (and optionally the visibility) of each keypoint

The box of a polygon is the smallest box that contains its points.
"""

import math
from typing import NamedTuple, Sequence

from beam_pipelines.errors import InvalidInput, printable
from beam_pipelines.columns.keypoints import KEYPOINTS_FORM, Points, to_points
from beam_pipelines.sources.annotations.shapes import Outline, Shape, polygon
from beam_pipelines.sources.cells.box_forms import box_sides

_MAX_CLASS = 1_000_000
# Ultralytics accepts numbers up to 1% outside the image. A later step compares the boxes with the size of the image.
_TOLERANCE = 0.01
# The limit with `--bad_boxes clip`. Larger numbers are probably in pixels.
_MAX_CLIPPED = 2.0


class LineFormat(NamedTuple):
    """The expected format of lines.

    Attributes:
        names: The class names in the order of the class ids. If empty, the class ids become the class names.
        points: The number of keypoints, and the number of values per keypoint; None if objects have no keypoints.
        needs_polygons: Whether to reject lines with boxes.
        is_clipped: Whether boxes and points may extend beyond the image.
    """

    names: Sequence[str]
    points: tuple[int, int] | None = None
    needs_polygons: bool = False
    is_clipped: bool = False


def read_line(line: str, form: LineFormat) -> Shape | None:
    """Parses a line, which describes one object. Returns None if the line is blank.

    Raises:
        InvalidInput: The line is invalid.
    """
    fields = line.split()
    if not fields:
        return None
    class_id, *values = map(_read_number, fields)
    if not class_id.is_integer() or not 0 <= class_id < _MAX_CLASS:
        raise InvalidInput("bad_label", f"has the class id {printable(fields[0][:80])}; it must be an integer of at least 0")
    if form.names and class_id >= len(form.names):
        last = len(form.names) - 1
        raise InvalidInput("bad_label", f"has the class id {int(class_id)}, but the {last + 1} class names have the ids 0 to {last}")
    points = _read_points(values, *form.points) if form.points else ()
    values = values[:4] if form.points else values
    _check_count(len(values))
    if len(values) > 4:
        outline = polygon(list(zip(values[::2], values[1::2])))
    elif form.needs_polygons:
        raise InvalidInput("bad_mask", "has a box, but --masks needs a polygon for each object")
    else:
        outline = Outline(box_sides(values, "cxcywh"), 0.0, [])
    _check_range(values, outline, points, form.is_clipped)
    return Shape(form.names[int(class_id)] if form.names else str(int(class_id)), outline, {}, points)


def _read_points(values: Sequence[float], num_points: int, num_columns: int) -> Points:
    expected = 4 + num_points * num_columns
    if len(values) != expected:
        columns = f"with the kpt_shape [{num_points}, {num_columns}] it must have {expected + 1}"
        raise InvalidInput("bad_keypoints", f"has {len(values) + 1} columns; {columns}")
    return to_points(KEYPOINTS_FORM.read(values[4:], (num_points, num_columns)))


def _check_count(num_values: int) -> None:
    if num_values == 5:
        expected = "the sixth column is probably the confidence of a prediction. Labels have 5 columns"
        raise InvalidInput("bad_annotation", f"has 6 columns; {expected}")
    if num_values != 4 and (num_values < 6 or num_values % 2):
        expected = "5 (class, x, y, width, height), or 7, 9, 11, … (class, and x and y of each point)"
        message = f"has {num_values + 1} columns; it must have {expected}. Keypoints need kpt_shape in data.yaml"
        raise InvalidInput("bad_annotation", message)


def _check_range(values: Sequence[float], outline: Outline, points: Points, is_clipped: bool) -> None:
    low, high = (1 - _MAX_CLIPPED, _MAX_CLIPPED) if is_clipped else (-_TOLERANCE, 1 + _TOLERANCE)
    positions = (side for point in points if point[2:] != (0.0,) for side in point[:2])
    outside = [value for value in (*values, *positions) if not low <= value <= high]
    if outside:
        pixels = "; numbers must be relative to the image, not pixels" if outside[0] > _MAX_CLIPPED else "; it must be from 0 to 1"
        raise InvalidInput("bad_box", f"has {outside[0]:g}{pixels}")
    ymin, xmin, ymax, xmax = outline.box
    if not is_clipped and not (ymin < ymax and xmin < xmax):
        raise InvalidInput("bad_box", f"has a width of {xmax - xmin:g} and a height of {ymax - ymin:g}; they must be above 0")


def _read_number(text: str) -> float:
    try:
        value = float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InvalidInput("bad_annotation", f"has {printable(text[:80])!r}; it must be a finite number")
    return value
