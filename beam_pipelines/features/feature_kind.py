"""Defines the protocol of feature kinds.

Other packages look up a kind by its name in `kinds.KINDS` and call its methods. The methods follow the data flow, from
the user's option to the stored values and their descriptions.
"""

import abc
from collections import Counter
from typing import Any, Callable, Mapping, NamedTuple, Protocol, Sequence

import numpy as np

from tf_input.dataset_format import Feature

# Converts fractions of an image's height or width (float32) to pixels. The integer is the height or width in pixels.
ToPixels = Callable[[np.ndarray, int], np.ndarray]


# The value of one object in `annotations.Objects`: (x, y) or (x, y, visibility) of each point.
Points = tuple[tuple[float, ...], ...]


def to_points(value: np.ndarray) -> Points:
    """Converts a value from `FeatureKind.read` to the form of `annotations.Objects`."""
    return tuple(map(tuple, value.tolist()))


class Placement(Protocol):
    """Transforms positions in the source image to positions in the stored image."""

    def __call__(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Transforms positions.

        Args:
            positions: The x and y of each position in the unit of the source, float64 [..., 2].

        Returns:
            x and y as fractions of the width and height of the upright image, float64 [..., 2]; and the width and height
            of a pixel as such fractions, float64 [2].
        """


class SourceUnits(Protocol):
    """The option of a source for the unit of coordinates: `pixels`, `relative`, or None if it is not given."""

    box_unit: str | None


class PositionFacts(Protocol):
    """Facts about the listed values of one feature, for checking whether the options fit the values."""

    def merge(self, other: Any) -> None:
        """Adds the facts of another part."""

    def check(self, name: str, source: SourceUnits) -> None:
        """Raises `UserError` if the values contradict the options."""

    def warnings(self, name: str, source: SourceUnits) -> Sequence[str]:
        """Returns warnings about unlikely values."""


class Mark(NamedTuple):
    """A point or a line to draw on an image, in fractions of the width and height. The two ends of a point are equal."""

    x: float
    y: float
    end_x: float
    end_y: float
    name: str
    color_index: int


class FeatureKind(abc.ABC):
    """A kind of features whose values are positions in the image of the example.

    Attributes:
        name: The name of the kind, a key of `dataset_format.FEATURE_KINDS`.
        noun: The plural noun for the values in messages and summaries.
    """

    name: str
    noun: str

    # Options and cells

    @abc.abstractmethod
    def parse_shape(self, given: str, names: Sequence[str], shape: tuple[int | None, ...]) -> tuple[int, ...]:
        """Returns the shape of the values of a column, or () if the first value determines the shape.

        Args:
            given: The option and its value, for messages.
            names: The names of the columns from which the feature is made.
            shape: The numbers in brackets after the kind; empty without brackets.

        Raises:
            UserError: The shape is not possible, or does not fit the number of columns.
        """

    @abc.abstractmethod
    def resolve_shape(self, numbers: list[Any], is_of_object: bool = False) -> tuple[int, ...]:
        """Returns the shape of a value, which is given as nested lists of numbers. The value of an object may also be a
        flat list, as in COCO. Raises `InvalidInput` if the lists do not determine the shape."""

    @abc.abstractmethod
    def make_feature(self, name: str, columns: Sequence[str], shape: tuple[int, ...]) -> Feature:
        """Returns the feature that is made from columns."""

    @abc.abstractmethod
    def read(self, numbers: list[Any], shape: tuple[int, ...]) -> np.ndarray:
        """Converts flat or nested lists of numbers, in which None is a missing number, to a value for `encode`. Raises
        `InvalidInput` if the numbers do not form a value of the given shape."""

    @abc.abstractmethod
    def listed_facts(self, values: Sequence[np.ndarray]) -> PositionFacts:
        """Returns facts about listed values."""

    # Stored values

    @abc.abstractmethod
    def encode(self, feature: Feature, value: np.ndarray, place: Placement, bad_boxes: str) -> tuple[np.ndarray, int]:
        """Converts a value to the numbers that an example stores.

        Args:
            feature: The feature.
            value: A value; or the values of several objects, as an array with an additional first dimension.
            place: Transforms positions in the source image to positions in the stored image.
            bad_boxes: The action for positions outside the image, as in `SourceConfig`.

        Returns:
            The numbers, float32 of the shape of the value; and the number of positions that were removed because they
            are outside the image.

        Raises:
            InvalidInput: The value is invalid, or has positions outside the image.
        """

    @abc.abstractmethod
    def of_objects(self, feature: Feature, values: Sequence[Any] | None, num_objects: int) -> np.ndarray:
        """Converts the values of all objects in an image to an array for `encode`.

        Args:
            feature: The feature, whose shape begins with None.
            values: The value of each object, as nested sequences of numbers; None if the source has no values.
            num_objects: The number of objects.

        Raises:
            InvalidInput: The values do not have the shape of the feature, or are missing.
        """

    @abc.abstractmethod
    def count(self, feature: Feature, numbers: np.ndarray) -> Counter[str]:
        """Returns counts that summarize the stored numbers of an example, by name."""

    @abc.abstractmethod
    def check(self, feature: Feature, numbers: np.ndarray) -> None:
        """Raises `InvalidInput` if the stored numbers of an example are not values of this kind."""

    # Descriptions

    @abc.abstractmethod
    def describe_tfds(self, feature: Feature) -> Mapping[str, Any]:
        """Returns the description of the feature in the format of TensorFlow Datasets' `features.json`."""

    @abc.abstractmethod
    def export(self, numbers: np.ndarray, size: tuple[int, int], to_pixels: ToPixels) -> np.ndarray:
        """Converts the stored numbers of an example to pixels, float64 of the same shape, given the (height, width) of the
        stored image."""

    @abc.abstractmethod
    def marks(self, feature: Feature, numbers: np.ndarray, max_marks: int) -> list[Mark]:
        """Returns up to `max_marks` marks that show the stored numbers on the image. Invalid numbers are skipped."""
