"""Feature kind `keypoints`: named points in an image, such as the joints of a person or the landmarks of a face.

A value has the shape [num_points, 2] with x and y, or [num_points, 3] with x, y and visibility. x and y are stored as
fractions of the width and height of the upright image: 0 is the left or upper edge of the image, and 1 is the right or
lower edge, as for boxes. Resizing an image therefore does not change its keypoints.

Visibility has the values of COCO: 0 for a point that is not labeled, 1 for a labeled point that is hidden, and 2 for a
visible point. A point with visibility 0 is stored as 0, 0, 0. A point whose x and y are both -1 is missing, like an empty
point.

A point up to one pixel outside the image is moved to the edge, as for boxes. Points that are farther outside are
rejected. However, with `--bad_boxes clip`, points that have a visibility are kept, and their visibility becomes 0.
"""

import dataclasses
import itertools
from collections import Counter
from typing import Any, Callable, Iterable, Iterator, Sequence

import numpy as np

from beam_pipelines.config.source_config import SourceConfig
from beam_pipelines.elements.statistics import ImageStatistics, SplitStatistics
from beam_pipelines.errors import InvalidInput, UserError, printable
from beam_pipelines.features.feature_kind import EncodedExample, Encoder, EncoderOptions, FeatureKind, Mark, ObjectEncoder, PositionFacts, ToPixels
from beam_pipelines.images.annotations import DrawnPoints, Objects, place_points
from tf_input.dataset_format import OBJECTS, Feature
from tf_input.serialized_example import SerializedExample

_NOT_LABELED, _VISIBLE = 0.0, 2.0
_BAD = "bad_keypoints"


class Keypoints(FeatureKind):
    """The feature kind `keypoints`."""

    noun = "keypoints"
    has_recount = False  # The statistics of this kind count points that were removed.

    def listed_facts(self, values: Iterable[np.ndarray | DrawnPoints]) -> "PointFacts":
        points = [value.points if isinstance(value, DrawnPoints) else value for value in values]
        return PointFacts.of(np.concatenate([value.reshape(-1, value.shape[-1]) for value in points]))

    def encoder(self, feature: Feature, options: EncoderOptions) -> Encoder:
        is_relative = options.source.box_unit == "relative"

        def encode(value: np.ndarray | DrawnPoints, example: EncodedExample) -> np.ndarray:
            points, size = value if isinstance(value, DrawnPoints) else (value, None)
            stored = self._encode(feature, points, is_relative, size, example)
            example.note_rotation(size)
            return stored

        return encode

    def object_encoder(self, feature: Feature) -> ObjectEncoder:
        name = feature.name.removeprefix(f"{OBJECTS}/")

        def encode(objects: Objects, kept: Sequence[int], example: EncodedExample) -> np.ndarray:
            points = _of_objects(feature, objects.points.get(name), len(objects.boxes))
            return self._encode(feature, points[list(kept)], objects.is_relative, objects.image_size, example)

        return encode

    def check(self, feature: Feature, example: SerializedExample, decodes: bool, is_sampled: bool) -> None:
        check_points(feature, np.array(example.values(feature.name), np.float32))

    def recount(
        self, feature: Feature, example: SerializedExample, decoded: Any, split: SplitStatistics, statistics: ImageStatistics, is_sampled: bool
    ) -> None:
        self.count(feature, (count_points(feature, np.array(example.values(feature.name), np.float32)), 0), split, statistics)

    def count(self, feature: Feature, fact: tuple[Counter[str], int], split: SplitStatistics, statistics: ImageStatistics) -> None:
        points, num_outside = fact
        split.counts.setdefault(feature.name, Counter()).update(points)
        statistics.num_outside[feature.name] += num_outside

    def statistics(self, statistics: ImageStatistics) -> dict[str, Any]:
        return {"num_outside": dict(sorted(statistics.num_outside.items()))} if statistics.num_outside else {}

    def _encode(
        self, feature: Feature, value: np.ndarray, is_relative: bool, size: tuple[int, int] | None, example: EncodedExample
    ) -> np.ndarray:
        """Encodes points, and adds them to the statistics. See `_place`."""
        stored, num_outside = _place(feature, value, is_relative, size, example)
        example.facts.append((self, feature, (count_points(feature, stored), num_outside)))
        return stored

    def export(self, value: np.ndarray, size: Callable[[], tuple[int, int]], to_pixels: ToPixels) -> np.ndarray:
        """Returns points in pixels, float64 of the same shape."""
        points = value.astype(np.float64)
        for axis, side in enumerate(reversed(size())):
            points[..., axis] = to_pixels(value[..., axis], side)
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
class PointFacts(PositionFacts):
    """Counts of listed keypoints, for checking whether the unit of the coordinates is right.

    Attributes:
        num_labeled: The number of points with a position.
        num_relative: The number of points with a position whose x and y are from 0 to 1.
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

    def check(self, name: str, source: SourceConfig) -> None:
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

    def warnings(self, name: str, source: SourceConfig) -> Sequence[str]:
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


def _place(
    feature: Feature, value: np.ndarray, is_relative: bool, size: tuple[int, int] | None, example: EncodedExample
) -> tuple[np.ndarray, int]:
    """Converts points to fractions of the stored image, float32 of the same shape. Also returns the number of points
    that were removed because they are outside the image.

    Args:
        feature: The feature.
        value: The points of an example, or of several objects, float64 [..., num_points, 2 or 3].
        is_relative: Whether x and y are fractions of the source image instead of pixels.
        size: The (height, width) in pixels of the image that the points refer to. None if unknown.
        example: The example.

    Raises:
        InvalidInput: A point is outside the image.
    """
    source = example.options.source
    points = np.array(value, np.float64)
    has_visibility = points.shape[-1] == 3
    positions, pixel = place_points(points[..., :2], example.geometry, is_relative, size, source.drawn_on)
    inside = np.clip(positions, 0, 1)
    is_labeled = points[..., 2] > _NOT_LABELED if has_visibility else np.ones(points.shape[:-1], bool)
    is_outside = is_labeled & ~(np.abs(positions - inside) <= (1 + 1e-6) * pixel).all(axis=-1)  # also NaN
    if is_outside.any() and not (has_visibility and source.bad_boxes == "clip"):
        raise InvalidInput(_BAD, _describe_outside(feature, points, is_outside, pixel, source.bad_boxes))
    points[..., :2] = inside
    if has_visibility:
        points[~is_labeled | is_outside] = 0.0
    return points.astype(np.float32), int(is_outside.sum())


def _of_objects(feature: Feature, values: Sequence[Any] | None, num_objects: int) -> np.ndarray:
    """Returns the points of all objects in an image, float64 [num_objects, num_points, 2 or 3]. Raises `InvalidInput` if points are
    missing or do not have the shape of the feature."""
    shape = feature.shape[1:]
    if values is None and shape[-1] == 3:
        return np.zeros((num_objects, *shape))
    if len(values or ()) != num_objects:
        raise InvalidInput(_BAD, f"{feature.name}: {len(values or ())} objects have keypoints, and {num_objects} have boxes")
    try:
        return np.array([list(map(list, value)) for value in values or ()], np.float64).reshape(num_objects, *shape)
    except ValueError:
        raise InvalidInput(_BAD, f"{feature.name}: an object has other keypoints than {shape[0]} points of {shape[1]} numbers") from None


def check_points(feature: Feature, numbers: np.ndarray) -> None:
    """Raises `InvalidInput` if a stored keypoint has an invalid position or visibility."""
    points = numbers.reshape(-1, feature.shape[-1])
    if not ((points[:, :2] >= 0) & (points[:, :2] <= 1)).all():
        raise InvalidInput(_BAD, "a keypoint is not inside the image: x and y must be from 0 to 1")
    if feature.shape[-1] == 3:
        if not np.isin(points[:, 2], (0, 1, 2)).all():
            raise InvalidInput(_BAD, "a keypoint has a visibility other than 0, 1 and 2")
        if points[points[:, 2] == 0].any():
            raise InvalidInput(_BAD, "a keypoint has the visibility 0 and a position other than 0, 0")


def count_points(feature: Feature, numbers: np.ndarray) -> Counter[str]:
    """Returns the number of points and the number of labeled points, which have a position, for the statistics."""
    num_points = numbers.size // feature.shape[-1]
    num_labeled = int((numbers.reshape(-1, 3)[:, 2] > 0).sum()) if feature.shape[-1] == 3 else num_points
    return Counter(num_points=num_points, num_labeled=num_labeled)


def _describe_outside(feature: Feature, points: np.ndarray, is_outside: np.ndarray, pixel: np.ndarray, bad_boxes: str) -> str:
    index = tuple(int(side[0]) for side in np.nonzero(is_outside))
    name = f" ({printable(feature.point_names[index[-1]])})" if feature.point_names else ""
    x, y = (f"{value:g}" for value in points[index][:2])
    width, height = (f"{1 / side:g}" for side in pixel)
    text = f"{feature.name}: point {index[-1] + 1} of {points.shape[-2]}{name} has x {x}, y {y}, outside the image of {width} x {height} pixels"
    if points.shape[-1] == 2 and bad_boxes == "clip":
        return f"{text}; only points with a visibility, as in keypoints[{points.shape[-2]},3], can be removed"
    return text
