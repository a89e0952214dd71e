"""Feature kind `keypoints`: named points in an image, such as the joints of a person or the landmarks of a face.

A value has the shape [num_points, 2] with x and y, or [num_points, 3] with x, y and visibility. x and y are stored as
fractions of the width and height of the upright image: 0 is the left or upper edge of the image, and 1 is the right or
lower edge, as for boxes. Resizing an image therefore does not change its keypoints.

Visibility has the values of COCO: 0 for a point that is not labeled, 1 for a labeled point that is hidden, and 2 for a
visible point. A point with visibility 0 is stored as 0, 0, 0. A point whose x and y are both -1 is missing, like an empty
point.

A point up to one pixel outside the image is moved to the edge, as for boxes. Points that are farther outside are
rejected. With `--bad_boxes clip`, they get the visibility 0 if the value has three columns.
"""

import dataclasses
import itertools
import re
from collections import Counter
from typing import Any, Iterator, Mapping, Sequence

import numpy as np

from beam_pipelines.errors import InvalidInput, UserError, printable
from beam_pipelines.features.feature_kind import FeatureKind, Mark, Placement, SourceUnits, ToPixels
from tf_input.dataset_format import Feature

_MAX_POINTS = 10_000  # maximum number of points in one value
_NOT_LABELED, _VISIBLE = 0.0, 2.0
_NUM_POSITION = 2  # x and y
_MISSING_POSITION = -1  # x and y of a missing point, as in the MPII dataset
_BAD = "bad_keypoints"
# Column names that consist of the name of a point and an axis, such as `left_eye_x`, `noseX`, `x_nose` or `y1`.
_AXIS = r"(?i:x|y|v|vis|visible|visibility)"
_POINT_FIRST = re.compile(rf"(?:(?P<point>.*)[_. -])?(?P<axis>{_AXIS})|(?P<camel>.*[a-z0-9])(?P<upper>[XYV])")
_AXIS_FIRST = re.compile(rf"(?P<axis>{_AXIS})(?:[_. -](?P<point>.+)|(?P<number>\d+))")
_AXES = {"x": 0, "y": 1, "v": 2}


class Keypoints(FeatureKind):
    """The feature kind `keypoints`."""

    name = "keypoints"
    noun = "keypoints"

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
        if len(names) not in (num_points * num_columns, num_points * 2):
            raise UserError(
                f"{given}: {num_points} points of {num_columns} numbers need {num_points * num_columns} columns, but "
                f"{len(names)} are given. Give x and y{', and visibility,' * (num_columns == 3)} of each point."
            )
        return num_points, num_columns

    def _count_pairs(self, given: str, names: Sequence[str]) -> int:
        """Returns the number of points. Raises `UserError` if the columns do not seem to be x and y of each point."""
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

    def make_feature(self, name: str, columns: Sequence[str], shape: tuple[int, ...]) -> Feature:
        return Feature(name, self.name, shape, point_names=_names_of_columns(columns, shape))

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

    def listed_facts(self, values: Sequence[np.ndarray]) -> "PointFacts":
        return PointFacts.of(np.concatenate([value.reshape(-1, value.shape[-1]) for value in values]))

    def encode(self, feature: Feature, value: np.ndarray, place: Placement, bad_boxes: str) -> tuple[np.ndarray, int]:
        points = np.array(value, np.float64)
        has_visibility = points.shape[-1] == 3
        positions, pixel = place(points[..., :2])
        inside = np.clip(positions, 0, 1)
        is_labeled = points[..., 2] > _NOT_LABELED if has_visibility else np.ones(points.shape[:-1], bool)
        is_outside = is_labeled & ~(np.abs(positions - inside) <= (1 + 1e-6) * pixel).all(axis=-1)  # also NaN
        if is_outside.any() and not (has_visibility and bad_boxes == "clip"):
            raise InvalidInput(_BAD, _describe_outside(feature, points, is_outside, pixel, bad_boxes))
        points[..., :2] = inside
        if has_visibility:
            points[~is_labeled | is_outside] = 0.0
        return points.astype(np.float32), int(is_outside.sum())

    def of_objects(self, feature: Feature, values: Sequence[Any] | None, num_objects: int) -> np.ndarray:
        shape = feature.shape[1:]
        if values is None and shape[-1] == 3:
            return np.zeros((num_objects, *shape))
        if len(values or ()) != num_objects:
            raise InvalidInput(_BAD, f"{feature.name}: {len(values or ())} objects have keypoints, and {num_objects} have boxes")
        try:
            return np.array([list(map(list, value)) for value in values or ()], np.float64).reshape(num_objects, *shape)
        except ValueError:
            raise InvalidInput(_BAD, f"{feature.name}: an object has other keypoints than {shape[0]} points of {shape[1]} numbers") from None

    def count(self, feature: Feature, numbers: np.ndarray) -> Counter[str]:
        num_points = numbers.size // feature.shape[-1]
        num_labeled = int((numbers.reshape(-1, 3)[:, 2] > 0).sum()) if feature.shape[-1] == 3 else num_points
        return Counter(num_points=num_points, num_labeled=num_labeled)

    def check(self, feature: Feature, numbers: np.ndarray) -> None:
        points = numbers.reshape(-1, feature.shape[-1])
        if not ((points[:, :2] >= 0) & (points[:, :2] <= 1)).all():
            raise InvalidInput(_BAD, "a keypoint is not inside the image: x and y must be from 0 to 1")
        if feature.shape[-1] == 3:
            if not np.isin(points[:, 2], (0, 1, 2)).all():
                raise InvalidInput(_BAD, "a keypoint has a visibility other than 0, 1 and 2")
            if points[points[:, 2] == 0].any():
                raise InvalidInput(_BAD, "a keypoint has the visibility 0 and a position other than 0, 0")

    def describe_tfds(self, feature: Feature) -> Mapping[str, Any]:
        sides = ["-1" if side is None else str(side) for side in feature.shape]
        tensor = {"shape": {"dimensions": sides}, "dtype": "float32", "encoding": "none"}
        return {"pythonClassName": "tensorflow_datasets.core.features.tensor_feature.Tensor", "tensor": tensor}

    def export(self, numbers: np.ndarray, size: tuple[int, int], to_pixels: ToPixels) -> np.ndarray:
        points = numbers.astype(np.float64)
        for axis, side in enumerate(reversed(size)):
            points[..., axis] = to_pixels(numbers[..., axis], side)
        return points

    def marks(self, feature: Feature, numbers: np.ndarray, max_marks: int) -> list[Mark]:
        num_points, num_columns = feature.shape[-2:]
        if not num_points or numbers.size % (num_points * num_columns):
            return []
        objects = numbers.astype(np.float64).reshape(-1, num_points, num_columns)
        marks = (mark for index, points in enumerate(objects) for mark in self._marks_of(feature, points, index))
        return list(itertools.islice(marks, max_marks))

    def _marks_of(self, feature: Feature, points: np.ndarray, object_index: int) -> Iterator[Mark]:
        """Yields the lines of the skeleton, then the labeled points of one object."""
        is_shown = ((points[:, :2] >= 0) & (points[:, :2] <= 1)).all(axis=1)
        if points.shape[1] == 3:
            is_shown &= points[:, 2] > _NOT_LABELED
        for start, end in feature.skeleton:
            if is_shown[start] and is_shown[end]:
                yield Mark(*points[start, :2].tolist(), *points[end, :2].tolist(), "", object_index)
        for index in np.flatnonzero(is_shown).tolist():
            x, y = points[index, :2].tolist()
            yield Mark(x, y, x, y, feature.point_names[index] if feature.point_names else str(index), index)


@dataclasses.dataclass
class PointFacts:
    """Counts of listed keypoints, for checking whether the unit of the coordinates is right.

    Attributes:
        num_labeled: The number of points with a position.
        num_relative: The number of points with a position whose x and y are in 0..1.
        num_unlabeled_positions: The number of points with visibility 0 and a position other than 0, 0.
    """

    num_labeled: int = 0
    num_relative: int = 0
    num_unlabeled_positions: int = 0

    @classmethod
    def of(cls, points: np.ndarray) -> "PointFacts":
        """Returns the facts about points, float64 [n, 2 or 3]."""
        is_labeled = points[:, 2] > _NOT_LABELED if points.shape[1] == 3 else np.ones(len(points), bool)
        positions = points[is_labeled, :2]
        num_relative = int(((positions >= 0) & (positions <= 1)).all(axis=1).sum())
        return cls(len(positions), num_relative, int((points[~is_labeled, :2] != 0).any(axis=1).sum()))

    def merge(self, other: "PointFacts") -> None:
        """Adds the counts of another part."""
        self.num_labeled += other.num_labeled
        self.num_relative += other.num_relative
        self.num_unlabeled_positions += other.num_unlabeled_positions

    def check(self, name: str, source: SourceUnits) -> None:
        """Raises `UserError` if the coordinates contradict `--box_unit`."""
        if not self.num_labeled:
            return
        if source.box_unit is None and self.num_relative == self.num_labeled:
            raise UserError(
                f"{printable(name)}: x and y of all {self.num_labeled:,} keypoints are between 0 and 1, so they are probably not "
                "pixels. Pass --box_unit relative, or --box_unit pixels if they are pixels."
            )
        if source.box_unit == "relative" and not self.num_relative:
            raise UserError(
                f"--box_unit=relative: none of the {self.num_labeled:,} keypoints of {printable(name)} has both x and y between 0 "
                "and 1. Pass --box_unit pixels."
            )

    def warnings(self, name: str, source: SourceUnits) -> Sequence[str]:
        """Returns warnings about an unlikely unit, and about positions that are not stored."""
        lines = []
        if source.box_unit == "pixels" and self.num_labeled and self.num_relative == self.num_labeled:
            lines.append(
                f"{printable(name)}: x and y of all {self.num_labeled:,} keypoints are between 0 and 1, but are read as pixels. If "
                "they are relative to the image, pass --box_unit relative."
            )
        if num := self.num_unlabeled_positions:
            lines.append(
                f"{printable(name)}: {num:,} keypoints have the visibility 0 and a position. 0 means that a point is not labeled, so "
                "the position is not stored. Use 1 for a labeled point that is hidden, and 2 for a visible point."
            )
        return lines


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
    """Flattens nested lists. Inner lists must all have `num_columns` numbers, or all have two numbers."""
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
    """Adds a visibility after the x and y of each point: 2, or None if the point is missing."""
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
    """Returns the names of the points, such as `left_eye` for the columns `left_eye_x` and `left_eye_y`; or () if the
    columns of a point do not have the same name."""
    if len(columns) == 1 or not shape:
        return ()
    width = len(columns) // shape[0]
    points = [_split_name(column)[0] for column in columns]
    names = points[::width]
    are_equal = all(points[offset::width] == names for offset in range(width))
    is_named = are_equal and all(names) and len(set(names)) == len(names) and not all(map(str.isdecimal, names))
    return tuple(names) if is_named else ()


def _describe_outside(feature: Feature, points: np.ndarray, is_outside: np.ndarray, pixel: np.ndarray, bad_boxes: str) -> str:
    index = tuple(int(side[0]) for side in np.nonzero(is_outside))
    name = f" ({printable(feature.point_names[index[-1]])})" if feature.point_names else ""
    x, y = (f"{value:g}" for value in points[index][:2])
    width, height = (f"{1 / side:g}" for side in pixel)
    text = f"{feature.name}: point {index[-1] + 1} of {points.shape[-2]}{name} has x {x}, y {y}, outside the image of {width} x {height} pixels"
    if points.shape[-1] == 2 and bad_boxes == "clip":
        return f"{text}; only points with a visibility, as in keypoints[{points.shape[-2]},3], can be removed"
    return text
