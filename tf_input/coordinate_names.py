"""Detects features that probably contain image coordinates, such as keypoints, by their names and values.

Writer and reader share this module. It uses only the standard library.
"""

import re

from tf_input.dataset_format import Feature

NUM_DISTINCT = 5  # with fewer distinct values, the range of the values is not considered
_MAX_FRACTION = 1.5  # larger values are pixels, not fractions of a side
_MAX_DIMENSIONS = 2
_VECTOR_NAMES = re.compile(
    r"key_?points?|landmarks?|points?|coords?|coordinates?|joints?|corners?|skeleton|polygon|contour|vertices|"
    r"b?box(es)?|xy(xy|wh)?|centers?"
)
_SCALAR_NAMES = re.compile(r"[xy]\d*|[xy]_?(min|max|center)|c[xy]")


def is_number_or_list(feature: Feature) -> bool:
    """Returns whether a feature is a number, or a list or matrix of numbers, but not a dense target."""
    is_number = feature.is_numeric and not feature.is_of_objects
    return is_number and len(feature.shape) <= _MAX_DIMENSIONS


def has_name_of_coordinates(feature: Feature) -> bool:
    """Returns whether the name of a feature suggests coordinates, such as `landmarks`, or `x1` for a single number."""
    separated = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", feature.name).lower()
    words = [word for word in re.split(r"[^a-z0-9]+", separated) if word]
    if feature.shape:
        return any(_VECTOR_NAMES.fullmatch(word) for word in (*words, "_".join(words)))
    return any(_SCALAR_NAMES.fullmatch("_".join(words[-count:])) for count in (1, 2))


def are_pixels(smallest: float, largest: float, num_distinct: int, has_name: bool, longest_side: int | None) -> bool:
    """Returns whether the name and the range of values of a feature suggest pixel coordinates.

    Args:
        smallest, largest: The range of the values.
        num_distinct: The number of distinct values, or `NUM_DISTINCT` if there are more.
        has_name: Whether the name of the feature suggests coordinates.
        longest_side: The longest side of the images, in pixels; None if it is unknown.
    """
    if not largest > _MAX_FRACTION:  # also for NaN
        return False
    if has_name:
        return True
    is_within = longest_side is not None and 0 <= smallest and longest_side / 4 <= largest <= longest_side
    return is_within and num_distinct >= NUM_DISTINCT
