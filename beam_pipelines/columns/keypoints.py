"""Reads keypoints from cells: nested or flat lists of numbers, or a column for each number. See `features.keypoints`."""

import re
from typing import Any, Sequence

import numpy as np

from beam_pipelines.columns.column import Column, ColumnForm
from beam_pipelines.errors import InvalidInput, UserError
from tf_input.dataset_format import Feature

_MAX_POINTS = 10_000  # maximum number of points in one value
_NUM_POSITION = 2  # x and y
_MISSING_POSITION = -1  # x and y of a missing point, as in the MPII dataset
_SYNONYMS = ("keypoint", "landmarks", "landmark", "points", "pose", "joints")
# Column names that consist of the name of a point and an axis, such as `left_eye_x`, `noseX`, `x_nose` or `y1`.
_AXIS = r"(?i:x|y|v|vis|visible|visibility)"
_POINT_FIRST = re.compile(rf"(?:(?P<point>.*)[_. -])?(?P<axis>{_AXIS})|(?P<camel>.*[a-z0-9])(?P<upper>[XYV])")
_AXIS_FIRST = re.compile(rf"(?P<axis>{_AXIS})(?:[_. -](?P<point>.+)|(?P<number>\d+))")
_AXES = {"x": 0, "y": 1, "v": 2}
_NOT_LABELED, _VISIBLE = 0.0, 2.0
_BAD = "bad_keypoints"

# The points of one object in `annotations.Objects`: (x, y) or (x, y, visibility) of each point.
Points = tuple[tuple[float, ...], ...]


class KeypointsForm(ColumnForm):
    """The form of cells with keypoints."""

    @property
    def is_points(self) -> bool:
        return True

    def parse_shape(self, given: str, names: Sequence[str], shape: tuple[int | None, ...]) -> tuple[int, ...]:
        if len(shape) > 2 or not all(side and side <= _MAX_POINTS for side in shape) or shape[1:] not in ((), (2,), (3,)):
            raise UserError(
                f"{given}: invalid shape. Give the number of points, such as keypoints[17], with x and y for each, or "
                "keypoints[17,3] with x, y and visibility."
            )
        if len(names) == 1:
            return (*shape, 2) if len(shape) == 1 else shape
        if not shape:
            shape = (self._count_pairs(given, names), 2)
        num_points, num_columns = shape[0], shape[1] if len(shape) > 1 else 2
        if len(names) not in (num_points * num_columns, num_points * 2, num_points):  # `num_points`: the names of points
            raise UserError(
                f"{given}: {num_points} points of {num_columns} numbers need {num_points * num_columns} columns, but "
                f"{len(names)} are given. Give x and y{', and visibility,' * (num_columns == 3)} of each point."
            )
        return num_points, num_columns

    def _count_pairs(self, given: str, names: Sequence[str]) -> int:
        """Returns the number of points. Raises `UserError` if the columns do not seem to be the x and y of points."""
        axes = [_split_name(name)[1] for name in names]
        if axes[2::3] and all(axis == 2 for axis in axes[2::3]) and len(names) % 3 == 0:
            raise UserError(
                f"{given}: every third column seems to have a visibility. Use keypoints[{len(names) // 3},3] for x, y and "
                f"visibility of each point, or keypoints[{len(names) // 2}] for x and y."
            )
        if len(names) % 2:
            raise UserError(
                f"{given}: {len(names)} columns are not x and y of each point. Give an even number of columns, or "
                f"keypoints[N,3] for x, y and visibility of N points."
            )
        expected = [0, 1] * (len(names) // 2)
        if all(axis is not None for axis in axes) and axes != expected:
            raise UserError(
                f"{given}: the columns must be x and y of the first point, then x and y of the second point, and so on. "
                f"Give them in this order, or rename them if they have this order."
            )
        return len(names) // 2

    def resolve_shape(self, numbers: list[Any], is_of_object: bool = False) -> tuple[int, ...]:
        if len(numbers) and all(isinstance(point, list) for point in numbers):
            sides = {len(point) for point in numbers}
            if sides in ({2}, {3}):
                return len(numbers), sides.pop()
            raise InvalidInput(_BAD, f"points of {' and '.join(map(str, sorted(sides)))} numbers; each point must have 2 or 3")
        if is_of_object and numbers and not any(isinstance(number, list) for number in numbers):
            if len(numbers) % 3 == 0 and all(number in (None, 0, 1, 2) for number in numbers[2::3]):
                return len(numbers) // 3, 3
            if len(numbers) % 2 == 0:
                return len(numbers) // 2, 2
        raise InvalidInput(_BAD, f"{len(numbers)} numbers, which may be x, y or x, y, visibility of each point")

    def feature(self, column: Column) -> Feature:
        return Feature(column.name, self.kind, column.shape, point_names=_names_of_columns(column.names, column.shape))

    def read(self, numbers: list[Any], shape: tuple[int, ...]) -> np.ndarray:
        num_points, num_columns = shape
        flat = _flatten(numbers, num_points, num_columns)
        if num_columns == 3 and len(flat) == 2 * num_points:
            flat = _with_visibility(flat)
        if len(flat) != num_points * num_columns:
            raise InvalidInput(_BAD, f"has {len(flat)} numbers; it must have {num_points * num_columns}, {num_columns} for each of {num_points} points")
        points = np.array([np.nan if number is None else number for number in flat], np.float64).reshape(shape)
        points[(points[:, :2] == _MISSING_POSITION).all(axis=1)] = np.nan
        return normalize(points)


KEYPOINTS_FORM = KeypointsForm("keypoints", _SYNONYMS, None, needs_shape=True)


def to_points(value: np.ndarray) -> Points:
    """Converts an array from `KeypointsForm.read` to the points of one object in `annotations.Objects`."""
    return tuple(map(tuple, value.tolist()))


def normalize(points: np.ndarray) -> np.ndarray:
    """Replaces missing points by zeros.

    Args:
        points: The x, the y and optionally the visibility of each point, float64 [num_points, 2 or 3]. NaN stands for a
            missing number. Only points with a visibility may be missing.

    Raises:
        InvalidInput: A point has a missing or infinite number, or an invalid visibility.
    """
    missing = np.isnan(points)
    if points.shape[-1] == 3:
        is_absent = missing[:, :2].all(axis=1) & (missing[:, 2] | (points[:, 2] == _NOT_LABELED))
        points = np.where(is_absent[:, np.newaxis], 0.0, points)
        missing = np.isnan(points)
    if missing.any():
        index = int(np.argmax(missing.any(axis=1)))
        advice = f"; to allow missing points, use keypoints[{len(points)},3]" if points.shape[-1] == 2 else ""
        raise InvalidInput(_BAD, f"point {index + 1} of {len(points)} is missing, or one of its numbers; it must have {points.shape[-1]} numbers other than -1, -1{advice}")
    if not np.isfinite(points).all():
        raise InvalidInput(_BAD, "a point has an infinite number")
    if points.shape[-1] == 3 and not (is_valid := np.isin(points[:, 2], (0, 1, 2))).all():
        index = int(np.argmin(is_valid))
        raise InvalidInput(_BAD, f"point {index + 1} of {len(points)} has the visibility {points[index, 2]:g}; it must be 0, 1 or 2")
    return points


def _flatten(numbers: list[Any], num_points: int, num_columns: int) -> list[float | None]:
    """Flattens nested lists. Either all inner lists have `num_columns` numbers, or all have two."""
    if not any(isinstance(point, list) for point in numbers):
        return numbers
    given = [point for point in numbers if point is not None]  # None is a missing point
    if all(isinstance(point, list) and len(point) == _NUM_POSITION for point in given):
        num_columns = _NUM_POSITION
    if len(numbers) != num_points or not all(isinstance(point, list) and len(point) == num_columns for point in given):
        raise InvalidInput(_BAD, f"has {len(numbers)} points; it must have {num_points} points of {num_columns} numbers")
    flat = [number for point in numbers for number in (point or [None] * num_columns)]
    if any(isinstance(number, list) for number in flat):
        raise InvalidInput(_BAD, "has lists in a point; each point must be a list of numbers")
    return flat


def _with_visibility(flat: list[float | None]) -> list[float | None]:
    """Adds the visibility after the x and y of each point: 2 (visible), or None if the point is missing."""
    pairs = zip(flat[0::2], flat[1::2])
    return [number for x, y in pairs for number in (x, y, None if x is None and y is None else _VISIBLE)]


def _split_name(column: str) -> tuple[str, int | None]:
    """Splits a column name into the name of the point and the index of the number: 0 for x, 1 for y, 2 for visibility.

    The index is None if the name contains no axis.
    """
    if match := _POINT_FIRST.fullmatch(column):
        return match["point"] or match["camel"] or "", _AXES[(match["axis"] or match["upper"])[0].lower()]
    if match := _AXIS_FIRST.fullmatch(column):
        return match["point"] or match["number"], _AXES[match["axis"][0].lower()]
    return column, None


def _names_of_columns(columns: Sequence[str], shape: tuple[int, ...]) -> tuple[str, ...]:
    """Returns the names of the points, such as `left_eye` for the columns `left_eye_x` and `left_eye_y`. The result is
    empty if the columns do not name the points consistently."""
    if len(columns) == 1 or not shape:
        return ()
    width = len(columns) // shape[0]
    points = [_split_name(column)[0] for column in columns]
    names = points[::width]
    are_equal = all(points[offset::width] == names for offset in range(width))
    is_named = are_equal and all(names) and len(set(names)) == len(names) and not all(map(str.isdecimal, names))
    return tuple(names) if is_named else ()
