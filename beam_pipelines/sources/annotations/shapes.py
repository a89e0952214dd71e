"""Computes the boxes, areas and regions of the shapes that were drawn in an annotation tool.

All coordinates are in pixels. The x axis points right, and the y axis points down. A box is (ymin, xmin, ymax, xmax).
"""

import math
from typing import Any, Mapping, NamedTuple, Sequence

import numpy as np

from beam_pipelines.errors import InvalidInput
from beam_pipelines.columns.keypoints import Points
from beam_pipelines.images.image_headers import check_size
from beam_pipelines.sources.cells.cells import shown

_MAX_COORDINATE = 1 << 31
_MAX_CORNERS = 720  # of a polygon that approximates an ellipse

_FLAGS = {"": 0, "0": 0, "false": 0, "unspecified": 0, "1": 1, "true": 1}

Point = tuple[float, float]


class Outline(NamedTuple):
    """The geometry of a shape.

    Attributes:
        box: The smallest box around the shape.
        area: The area in pixels.
        region: The region in COCO's format: a list of polygons [x, y, x, y, …], or a run-length encoding.
    """

    box: tuple[float, float, float, float]
    area: float
    region: Any


class Shape(NamedTuple):
    """An object in an image.

    Attributes:
        label: The class name.
        outline: The geometry.
        flags: A mapping from the name of each additional feature to its value.
        points: The keypoints. Empty if objects have no keypoints.
        has_area: Whether the shape is an object. Otherwise, it consists of points.
    """

    label: str
    outline: Outline
    flags: Mapping[str, int | float | str] = {}
    points: Points = ()
    has_area: bool = True


def read_coordinate(value: Any, name: str) -> float:
    """Converts a number, or a string with a number, to a float. Raises `InvalidInput` if the number is not finite or
    too large, or if the value is not a number."""
    try:
        number = float(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if not abs(number) <= _MAX_COORDINATE or (isinstance(value, str) and ("_" in value or not value.isascii())):  # Also rejects NaN.
        raise InvalidInput("bad_box", f"has {name} {shown(value)}; it must be a finite number of pixels")
    return number


def read_flag(value: Any, name: str) -> int:
    """Converts the text of a flag in an XML file to 0 or 1. Raises `InvalidInput` if the text is not a flag."""
    flag = _FLAGS.get((value or "").strip().lower())
    if flag is None:
        raise InvalidInput("bad_annotation", f"has {name} {shown(value)}; it must be 0 or 1")
    return flag


def read_points(value: Any, minimum: int) -> list[Point]:
    """Converts a list of [x, y] pairs to points. Raises `InvalidInput` if the value is not such a list, or has fewer
    than `minimum` points."""
    if not isinstance(value, list) or not all(isinstance(point, (list, tuple)) and len(point) == 2 for point in value):
        raise InvalidInput("bad_box", f"has the points {shown(value)}; they must be a list of [x, y]")
    if len(value) < minimum:
        raise InvalidInput("bad_box", f"has {len(value)} points; it must have at least {minimum}")
    return [(read_coordinate(x, "x"), read_coordinate(y, "y")) for x, y in value]


def read_image_size(height: Any, width: Any) -> tuple[int, int] | None:
    """Converts the image size in an annotation to (height, width) in pixels. Returns None if a side is missing or 0.
    Raises `InvalidInput` if a side is not a number of pixels."""
    sides = [read_coordinate(side or 0, "an image side of") for side in (height, width)]
    if any(side < 0 or side % 1 for side in sides):
        raise InvalidInput("size_mismatch", f"image size {shown(width)} x {shown(height)}; it must be numbers of pixels")
    return (int(sides[0]), int(sides[1])) if all(sides) else None


def polygon(points: Sequence[Point]) -> Outline:
    """Returns the outline of a polygon with at least 3 corners."""
    xs, ys = zip(*points)
    doubled = sum(x * next_y - next_x * y for (x, y), (next_x, next_y) in zip(points, [*points[1:], points[0]]))
    return Outline((min(ys), min(xs), max(ys), max(xs)), abs(doubled) / 2, [[side for point in points for side in point]])


def rectangle(x: float, y: float, width: float, height: float) -> Outline:
    """Returns the outline of a rectangle with the top left corner (x, y). Raises `InvalidInput` if a side is negative."""
    if width < 0 or height < 0:
        raise InvalidInput("bad_box", f"is a box of {width:g} x {height:g} pixels; its sides must not be negative")
    return polygon([(x, y), (x + width, y), (x + width, y + height), (x, y + height)])


def rotated(outline: Outline, degrees: float, center: Point) -> Outline:
    """Returns the outline of a polygon after clockwise rotation about a point."""
    if not degrees % 360:
        return outline
    sine, cosine = math.sin(math.radians(degrees)), math.cos(math.radians(degrees))
    sides = outline.region[0]
    moved = [(x - center[0], y - center[1]) for x, y in zip(sides[::2], sides[1::2])]
    return polygon([(center[0] + x * cosine - y * sine, center[1] + x * sine + y * cosine) for x, y in moved])


def ellipse(center: Point, radius_x: float, radius_y: float, degrees: float = 0) -> Outline:
    """Returns the outline of an ellipse that is rotated clockwise about its center.

    The region is a polygon. Its corners are about one pixel apart, or further apart if it would otherwise have more
    than `_MAX_CORNERS` corners. Raises `InvalidInput` if a radius is negative.
    """
    if radius_x < 0 or radius_y < 0:
        raise InvalidInput("bad_box", f"has the radius {min(radius_x, radius_y):g}; it must not be negative")
    num_corners = min(_MAX_CORNERS, max(16, math.ceil(2 * math.pi * max(radius_x, radius_y))))
    angles = [2 * math.pi * corner / num_corners for corner in range(num_corners)]
    corners = [(center[0] + radius_x * math.cos(angle), center[1] + radius_y * math.sin(angle)) for angle in angles]
    sine, cosine = math.sin(math.radians(degrees)), math.cos(math.radians(degrees))
    reach_x, reach_y = math.hypot(radius_x * cosine, radius_y * sine), math.hypot(radius_x * sine, radius_y * cosine)
    box = center[1] - reach_y, center[0] - reach_x, center[1] + reach_y, center[0] + reach_x
    return Outline(box, math.pi * radius_x * radius_y, rotated(polygon(corners), degrees, center).region)


def bitmap(pixels: np.ndarray, top: int, left: int, image_size: tuple[int, int]) -> Outline:
    """Returns the outline of a bitmap.

    Args:
        pixels: The pixels of the object, bool [height, width].
        top: The row of the first pixel in the image.
        left: The column of the first pixel in the image.
        image_size: The (height, width) of the image.

    Raises:
        InvalidInput: The bitmap is empty or not inside the image, or the image is too large.
    """
    from pycocotools import mask as coco_masks

    check_size("mask", *image_size)
    (height, width), rows, columns = pixels.shape, np.flatnonzero(pixels.any(axis=1)), np.flatnonzero(pixels.any(axis=0))
    if not len(rows):
        raise InvalidInput("bad_mask", "is a mask without pixels")
    if top < 0 or left < 0 or top + height > image_size[0] or left + width > image_size[1]:
        place = f"{width} x {height} pixels at x {left}, y {top}"
        raise InvalidInput("bad_mask", f"is a mask of {place}; it must be inside {image_size[1]} x {image_size[0]} pixels")
    canvas = np.zeros(image_size, np.uint8, order="F")
    canvas[top : top + height, left : left + width] = pixels
    box = tuple(float(side) for side in (top + rows[0], left + columns[0], top + rows[-1] + 1, left + columns[-1] + 1))
    counts = coco_masks.encode(canvas)["counts"]
    return Outline(box, float(np.count_nonzero(pixels)), {"size": [*image_size], "counts": counts})


def corners(outline: Outline) -> list[float]:
    """Returns the x and y of the four corners of a box or a polygon, as [x, y, x, y, …]. Raises `InvalidInput` if the outline
    has another form."""
    if not outline.region:
        ymin, xmin, ymax, xmax = outline.box
        return [xmin, ymin, xmax, ymin, xmax, ymax, xmin, ymax]
    if isinstance(outline.region, dict) or len(outline.region[0]) != 8:
        raise InvalidInput("bad_box", "has an outline without four corners; --corners needs boxes, or polygons with four corners")
    return outline.region[0]


def divided(region: Any, height: int, width: int) -> Any:
    """Divides the coordinates of polygons by the image size. Run-length encodings are not changed."""
    if isinstance(region, dict):
        return region
    return [[value / (height if index % 2 else width) for index, value in enumerate(polygon)] for polygon in region]
