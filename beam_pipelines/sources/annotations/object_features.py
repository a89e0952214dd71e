"""Defines the features of the objects in an image."""

from typing import Mapping

from tf_input.dataset_format import LABEL, MASK, OBJECTS, Feature

CORNERS = "corners"  # the name of the feature without the prefix `objects/`
_MASK_VALUES = f"0: no object; other values: the class of {OBJECTS}/{LABEL}, plus 1"


def object_features(flags: Mapping[str, str], has_masks: bool = False, has_corners: bool = False) -> tuple[Feature, ...]:
    """Returns the features of objects.

    Args:
        flags: A mapping from the name of each additional feature to its kind.
        has_masks: Whether to add a mask, which is drawn from the outlines of the objects.
        has_corners: Whether to add the four corners of each object.
    """
    names, sides = tuple(f"corner {number}" for number in range(1, 5)), ((0, 1), (1, 2), (2, 3), (3, 0))
    corners = Feature(f"{OBJECTS}/{CORNERS}", "keypoints", (None, 4, 2), point_names=names, skeleton=sides)
    return (
        Feature(f"{OBJECTS}/bbox", "bbox", (None, 4)),
        *(Feature(f"{OBJECTS}/{name}", kind, (None,)) for name, kind in flags.items()),
        *([corners] if has_corners else ()),
        Feature(f"{OBJECTS}/{LABEL}", "class_label", (None,)),
        *((Feature(MASK, "mask", description=_MASK_VALUES),) if has_masks else ()),
    )
