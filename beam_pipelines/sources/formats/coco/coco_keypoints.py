"""Stores the keypoints of the annotations in a COCO file.

The categories, which name the points, may follow the annotations in the file. Therefore the keypoints of an annotation
are checked when its image is listed. Each point takes 24 bytes of memory.
"""

import array
import unicodedata
from typing import Any, Mapping

from beam_pipelines.errors import CONTROL, InvalidInput, UserError, printable
from beam_pipelines.features.feature_kind import Points, to_points
from beam_pipelines.features.keypoints import Keypoints
from tf_input.dataset_format import OBJECTS, Feature

FIELDS = ("keypoints", "num_keypoints")  # of annotations; `num_keypoints` is not used, because labeled points are counted
CATEGORY_FIELDS = ("keypoints", "skeleton")
NAME = "keypoints"  # of the feature, without the prefix `objects/`
_NUM_NUMBERS = 3  # of a point: x, y and visibility
_MAX_NAME_CHARACTERS = 256


class CocoKeypoints:
    """The keypoints of all annotations in a file.

    Args:
        name: The name of the file, for messages.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._feature: Feature | None = None
        self._first_category: Any = None
        self._num_points = 0  # of the first annotation with keypoints
        self._numbers = array.array("d")
        self._ends = array.array("q")

    def add_category(self, entry: Mapping[str, Any]) -> None:
        """Reads the names of the points and the skeleton of a category.

        Raises:
            UserError: The names or the skeleton are invalid, or differ from those of another category.
        """
        names = entry.get("keypoints")
        if not names:  # such a category has no keypoints
            return
        category = printable(str(entry.get("name"))[:80])
        if not isinstance(names, list) or not all(isinstance(name, str) and 0 < len(name) <= _MAX_NAME_CHARACTERS for name in names):
            raise UserError(f"{self._name}: 'keypoints' of the category {category!r} must be a list of names.")
        names = tuple(CONTROL.sub("?", unicodedata.normalize("NFC", name)) for name in names)
        pairs = entry.get("skeleton") or []
        are_pairs = isinstance(pairs, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in pairs)
        if not are_pairs or not all(type(index) is int and 1 <= index <= len(names) for pair in pairs for index in pair):
            raise UserError(f"{self._name}: 'skeleton' of the category {category!r} must be pairs of points, which are numbered from 1 to {len(names)}.")
        skeleton = tuple((first - 1, second - 1) for first, second in pairs)
        feature = Feature(f"{OBJECTS}/{NAME}", Keypoints.name, (None, len(names), _NUM_NUMBERS), point_names=names, skeleton=skeleton)
        if self._feature not in (None, feature):
            raise UserError(
                f"{self._name}: the categories {self._first_category!r} and {category!r} have different keypoints. Write one file for each."
            )
        self._feature, self._first_category = feature, category

    def add(self, entry: Mapping[str, Any]) -> None:
        """Adds the keypoints of an annotation, which may have none.

        Raises:
            InvalidInput: The keypoints are not a list of numbers.
        """
        numbers = entry.get("keypoints") or []
        if not isinstance(numbers, list) or len(numbers) % _NUM_NUMBERS or not all(type(number) in (int, float) for number in numbers):
            raise InvalidInput("bad_keypoints", "'keypoints' must be a list of x, y and visibility of each point")
        try:
            self._numbers.extend(map(float, numbers))
        except OverflowError:
            raise InvalidInput("bad_keypoints", "'keypoints' has a number that is too large") from None
        self._num_points = self._num_points or len(numbers) // _NUM_NUMBERS
        self._ends.append(len(self._numbers))

    def feature(self) -> Feature | None:
        """Returns the feature of the keypoints, or None if neither categories nor annotations mention keypoints."""
        if self._feature is None and self._num_points:
            return Feature(f"{OBJECTS}/{NAME}", Keypoints.name, (None, self._num_points, _NUM_NUMBERS))
        return self._feature

    def of(self, row: int) -> Points:
        """Returns the points of an annotation, given its index among the valid annotations.

        Raises:
            InvalidInput: The number of points differs from that of the categories or the first annotation, or a point is
                invalid.
        """
        start = self._ends[row - 1] if row else 0
        numbers = self._numbers[start : self._ends[row]].tolist()
        shape = self.feature().shape[1:]
        return to_points(Keypoints().read(numbers or [0.0] * (shape[0] * shape[1]), shape))
