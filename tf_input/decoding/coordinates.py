"""Detects features that probably contain image coordinates, such as keypoints. They are not adjusted to crops."""

from __future__ import annotations

from typing import Callable, Sequence

import numpy as np

from tf_input.coordinate_names import are_pixels, has_name_of_coordinates, is_number_or_list
from tf_input.dataset_format import IMAGE
from tf_input.decoding.example_decoder import ExampleDecoder
from tf_input.lazy_tensorflow import tf

_NUM_RECORDS = 64


def describe_unmoved(decoder: ExampleDecoder, read_sample: Callable[[], Sequence[bytes]]) -> str:
    """Returns a warning about coordinate features. They are not adjusted when images are cropped, flipped or resized.

    Args:
        decoder: The decoder of a split.
        read_sample: A function that returns the first records. It is called only if the names of the features are not
            conclusive.

    Returns:
        A message; "" if no feature looks like coordinates.
    """
    changes = _changes(decoder)
    names = [name for name in decoder.feature_names if is_number_or_list(decoder.features[name])] if changes else []
    named = [name for name in names if has_name_of_coordinates(decoder.features[name])]
    unmoved = named if changes != ["resized"] else []  # relative coordinates do not change when images are only resized
    if others := [name for name in names if name not in unmoved and (name in named or decoder.features[name].shape)]:
        ranges = _ranges(decoder, others, read_sample())
        size = decoder.max_size or decoder.stored_size
        unmoved = [*unmoved, *(name for name in others if _is_in_pixels(ranges.get(name), name in named, size))]
    if not unmoved:
        return ""
    return (
        f"These features look like coordinates, but stay as stored while images are {', '.join(changes)}: "
        f"{', '.join(map(repr, unmoved))}. Prepare "
        "points with `recordmill prepare --feature NAME:keypoints`, which follow their image, store fractions of its width "
        "and height (0 to 1) and read with fit='stretch' without augment, or move the numbers in map_batch."
    )


def _changes(decoder: ExampleDecoder) -> list[str]:
    """Returns the changes that the reading options make to images, as words such as "cropped" and "flipped"."""
    if IMAGE not in decoder.image_names or not decoder.changes_geometry():
        return []
    augmentation, fit = decoder.config.augmentation, decoder.config.fit
    is_cropped = augmentation is not None and augmentation.crop
    changes = ["cropped"] if is_cropped or fit == "crop" and _differ_in_proportions(decoder) else []
    changes += ["flipped"] if augmentation is not None and augmentation.flip else []
    changes += ["padded"] if fit == "pad" and not is_cropped and _differ_in_proportions(decoder) else []
    return changes + ["resized"] * (decoder.image_size != decoder.stored_size and fit != "unscaled")


def _differ_in_proportions(decoder: ExampleDecoder) -> bool:
    stored, shown = decoder.stored_size, decoder.image_size
    return stored is None or shown is None or stored[0] * shown[1] != stored[1] * shown[0]


def _ranges(decoder: ExampleDecoder, names: Sequence[str], records: Sequence[bytes]) -> dict[str, np.ndarray]:
    """Returns the values of features in the first records as flat lists. Features of kind `tensor` are skipped."""
    names = [name for name in names if not decoder.features[name].is_tensor]
    if not len(records) or not names:
        return {}
    with tf.device("CPU:0"):
        parsed = decoder.parse(tf.constant([*records[:_NUM_RECORDS]], tf.string), names)
        flat = {name: getattr(value, "flat_values", value) for name, value in parsed.items()}
        return {name: value.numpy().reshape(-1) for name, value in flat.items()}


def _is_in_pixels(values: np.ndarray | None, has_name: bool, size: tuple[int, int] | None) -> bool:
    """Returns whether the name and the range of values of a feature suggest pixel coordinates."""
    if values is None or not len(values):
        return False
    ends = float(values.min()), float(values.max())
    return are_pixels(*ends, len(np.unique(values)), has_name, None if size is None else max(size))
