"""Which features are decoded, and which depend on what is seen of an image."""

from tf_input.dataset_format import Feature

SIDES = ("height", "width")
STORED_KINDS = ("image", "pixels", "mask")  # of features that are decoded here
_SEEN_KINDS = (*STORED_KINDS, "bbox")
NUM_MAP_DIMENSIONS = 3


def is_seen(feature: Feature) -> bool:
    """Whether a feature's values depend on what is seen of the image."""
    return feature.kind in _SEEN_KINDS or is_map(feature)


def is_map(feature: Feature) -> bool:
    """Whether a feature is numbers that lie over the image; or `image` itself, transformed."""
    return feature.kind == "float" and not feature.is_ragged and len(feature.shape) == NUM_MAP_DIMENSIONS
