"""Selects the points that were drawn in an annotation tool by their labels.

`--label left_eye,right_eye:keypoints[2]` names points with different labels. `--label cell:keypoints[7]` selects seven
points with the same label, in the order in which they were drawn.
"""

import shlex
from collections import Counter
from typing import Collection, Sequence

import numpy as np

from beam_pipelines.columns.column import Column
from beam_pipelines.columns.keypoints import KEYPOINTS_FORM
from beam_pipelines.errors import InvalidInput, UserError, printable
from beam_pipelines.sources.cells.unused_fields import MAX_CHARACTERS, UnusedFields
from tf_input.dataset_format import OBJECTS

# The label of a point, and its x, y and visibility.
LabeledPoint = tuple[str, Sequence[float]]

_MAX_SHOWN = 20  # labels in a message


def check_point_column(column: Column) -> None:
    """Raises `UserError` if the number of points is unknown, or differs from the number of labels."""
    if not column.shape or len(column.names) not in (1, column.shape[0]):
        labels, num_labels = printable(",".join(column.names)), len(column.names)
        form = f"{labels}:keypoints[{num_labels}]" if num_labels > 1 else f"{labels}:keypoints[N] for N points with this label"
        problem = "the number of points differs from the number of labels, or is missing"
        raise UserError(f"--label={labels}: {problem}. Pass --label {form}.")


def check_point_labels(columns: Sequence[Column], found: Collection[str]) -> None:
    """Raises `UserError` if a column names a label that is not in `found`, the labels of the points of all images."""
    if missing := [name for column in columns for name in column.names if name not in found]:
        labels = ", ".join(map(printable, sorted(found)[:_MAX_SHOWN])) or "none"
        more = f" and {len(found) - _MAX_SHOWN:,} more" if len(found) > _MAX_SHOWN else ""
        raise UserError(f"--label={printable(missing[0])}: no image has a point with this label. The labels of points are: {labels}{more}.")


def select_points(points: Sequence[LabeledPoint], column: Column) -> np.ndarray:
    """Returns the points that a column selects, float64 [num_points, 2 or 3].

    Raises:
        InvalidInput: Two points have the same label, the number of points is wrong, or a point is missing although the
            column has no visibility.
    """
    found: list[Sequence[float] | None] = [point for label, point in points if label in column.names]
    if len(column.names) > 1:
        of_label = {label: point for label, point in points if label in column.names}
        if len(of_label) < len(found):
            expected = f"there must be one for each of {printable(','.join(column.names))}"
            raise InvalidInput("bad_keypoints", f"has several points with the same label; {expected}")
        found = [of_label.get(name) for name in column.names]
    num_columns = column.shape[1]
    return KEYPOINTS_FORM.read([[*point[:num_columns]] if point else [None] * num_columns for point in found], column.shape)


class UnusedPoints:
    """The labels of points that are not stored."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()  # label -> the maximum number of points in an image
        self._shown = ""

    def add(self, points: Sequence[LabeledPoint], columns: Sequence[Column], fields: UnusedFields, has_objects: bool) -> None:
        """Adds the points of an image to the unused fields. If each image has at most one point of each label, the option
        that stores the points is shown, unless it is too long.

        Args:
            points: The points of the image.
            columns: The columns that select the stored points.
            fields: The unused fields of the dataset.
            has_objects: Whether the objects of the image are stored.
        """
        used = {name for column in columns for name in column.names}
        unused = Counter(label for label, _ in points if label not in used)
        if unused <= self._counts:
            return
        self._counts |= unused
        names = ",".join(sorted(self._counts))
        option = f"--label {OBJECTS} --label" if has_objects else "--label"
        stored = f" (stored with {option} {shlex.quote(f'{names}:keypoints[{len(self._counts)},3]')})"
        fields.names.discard(self._shown)
        has_advice = max(self._counts.values()) == 1 and len(stored) <= MAX_CHARACTERS
        self._shown = printable(f"points {names[:80]}" + stored * has_advice)
        fields.names.add(self._shown)
