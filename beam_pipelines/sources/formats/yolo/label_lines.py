"""Parses the label file of one image.

Each line has a class id and numbers from 0 to 1, which are relative to the width and height of the image:

    class x y width height          a box with the center (x, y)
    class x1 y1 x2 y2 x3 y3 …       a polygon with three or more points, or the four corners of an oriented box
    class x y width height x1 y1 …  a box, and the x and y (and optionally the visibility) of each keypoint

The box of a polygon is the smallest box that contains its points.
"""

import math
from typing import NamedTuple, Sequence

from beam_pipelines.errors import InvalidInput, printable
from beam_pipelines.features.feature_kind import Points, to_points
from beam_pipelines.features.keypoints import Keypoints
from beam_pipelines.images.annotations import Objects, Regions
from beam_pipelines.sources.cells.box_forms import Box, box_sides

MAX_LABEL_BYTES = 4 << 20
POINTS = "keypoints"  # the name of the feature without the prefix `objects/`
_MAX_CLASS = 1_000_000
# Ultralytics accepts numbers up to 1 % outside the image. A later step compares the boxes with the size of the image.
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


class Line(NamedTuple):
    """A parsed line, which describes one object.

    Attributes:
        class_id: The index of the class.
        values: The four numbers of a box, or the x and y of each point of a polygon.
        points: The keypoints.
    """

    class_id: int
    values: tuple[float, ...]
    points: Points = ()

    @property
    def is_polygon(self) -> bool:
        """Whether the line describes a polygon instead of a box."""
        return len(self.values) > 4

    def box(self) -> Box:
        """Returns (ymin, xmin, ymax, xmax), relative to the image size."""
        if not self.is_polygon:
            return box_sides(self.values, "cxcywh")
        xs, ys = self.values[::2], self.values[1::2]
        return min(ys), min(xs), max(ys), max(xs)

    def area(self) -> float:
        """Returns the area of a polygon, relative to the area of the image."""
        xs, ys = self.values[::2], self.values[1::2]
        return abs(sum(xs[index - 1] * ys[index] - xs[index] * ys[index - 1] for index in range(len(xs)))) / 2


class ImageLabels(NamedTuple):
    """The objects of an image.

    Attributes:
        objects: The objects with their boxes, in the order of the file.
        regions: The polygons, in the order of descending area, so that small polygons are drawn over large polygons.
        num_duplicates: The number of skipped lines that repeat an earlier line.
    """

    objects: Objects
    regions: Regions
    num_duplicates: int = 0


def parse_labels(data: bytes, form: LineFormat) -> ImageLabels:
    """Parses a label file.

    Args:
        data: The content of the file.
        form: The expected format of lines.

    Raises:
        InvalidInput: A line is invalid. The message contains the line number.
    """
    if len(data) > MAX_LABEL_BYTES:
        raise InvalidInput("bad_annotation", f"more than {MAX_LABEL_BYTES} bytes, too large for the labels of one image")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInput("not_utf8", f"not valid UTF-8 at byte {error.start}") from None
    lines: list[Line] = []
    for number, content in enumerate(text.splitlines(), 1):
        if fields := content.split():
            try:
                lines.append(_read_line(fields, form))
            except InvalidInput as error:
                raise InvalidInput(error.reason, f"line {number}: {error}") from None
    distinct = list(dict.fromkeys(lines))
    return ImageLabels(*_describe(distinct, form), len(lines) - len(distinct))


def _describe(lines: Sequence[Line], form: LineFormat) -> tuple[Objects, Regions]:
    labels = [form.names[line.class_id] if form.names else str(line.class_id) for line in lines]
    points = {POINTS: tuple(line.points for line in lines)} if form.points else {}
    objects = Objects(tuple(line.box() for line in lines), tuple(labels), is_relative=True, points=points)
    polygons = sorted((index for index, line in enumerate(lines) if line.is_polygon), key=lambda index: (-lines[index].area(), index))
    regions = tuple([lines[index].values] for index in polygons)
    return objects, Regions(tuple(labels[index] for index in polygons), regions, None, is_relative=True)


def _read_line(fields: Sequence[str], form: LineFormat) -> Line:
    class_id, *values = map(_read_number, fields)
    if not class_id.is_integer() or not 0 <= class_id < _MAX_CLASS:
        raise InvalidInput("bad_label", f"the class id is {printable(fields[0][:80])}; it must be an integer of at least 0")
    if form.names and class_id >= len(form.names):
        last = len(form.names) - 1
        raise InvalidInput("bad_label", f"the class id is {int(class_id)}, but the {last + 1} class names have the ids 0 to {last}")
    if form.points:
        line = Line(int(class_id), tuple(values[:4]), _read_points(values, *form.points))
    else:
        _check_count(len(values))
        line = Line(int(class_id), tuple(values))
    if form.needs_polygons and not line.is_polygon:
        raise InvalidInput("bad_mask", "has a box, but --masks needs a polygon for each object")
    _check_range(line, form.is_clipped)
    return line


def _read_points(values: Sequence[float], num_points: int, num_columns: int) -> Points:
    expected = 4 + num_points * num_columns
    if len(values) != expected:
        raise InvalidInput(
            "bad_keypoints",
            f"has {len(values) + 1} columns; with the kpt_shape [{num_points}, {num_columns}] it must have {expected + 1}",
        )
    return to_points(Keypoints().read(values[4:], (num_points, num_columns)))


def _check_count(num_values: int) -> None:
    if num_values == 5:
        raise InvalidInput(
            "bad_annotation",
            "has 6 columns; the sixth column is probably the confidence of a prediction. Labels have 5 columns",
        )
    if num_values != 4 and (num_values < 6 or num_values % 2):
        expected = "5 (class, x, y, width, height), or 7, 9, 11, … (class, and x and y of each point). Keypoints need kpt_shape in data.yaml"
        raise InvalidInput("bad_annotation", f"has {num_values + 1} columns; it must have {expected}")


def _check_range(line: Line, is_clipped: bool) -> None:
    low, high = (1 - _MAX_CLIPPED, _MAX_CLIPPED) if is_clipped else (-_TOLERANCE, 1 + _TOLERANCE)
    positions = (side for point in line.points if point[2:] != (0.0,) for side in point[:2])
    outside = [value for value in (*line.values, *positions) if not low <= value <= high]
    if outside:
        pixels = "; numbers must be relative to the image, not pixels" if outside[0] > _MAX_CLIPPED else "; it must be from 0 to 1"
        raise InvalidInput("bad_box", f"has {outside[0]:g}{pixels}")
    ymin, xmin, ymax, xmax = line.box()
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
