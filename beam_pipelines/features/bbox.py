"""Feature kind `bbox`: the boxes of the objects in an image, as ymin, xmin, ymax, xmax in fractions of its sides."""

from typing import Any, Callable

import numpy as np

from beam_pipelines.elements.statistics import ImageStatistics
from beam_pipelines.features.feature_kind import TFDS, FeatureKind, StoredImages, ToPixels
from tf_input.dataset_format import Feature

_MAX_DECIMALS = 6


class Bbox(FeatureKind):
    """The feature kind `bbox`. `ObjectsEncoder` encodes boxes together with the other features of objects."""

    has_recount = False

    def statistics(self, statistics: ImageStatistics) -> dict[str, Any]:
        """Returns the numbers of boxes outside and partly outside their image."""
        return {"boxes": {name: statistics.nums[f"{name}_boxes"] for name in ("num_dropped", "num_clipped")}}

    def describe_tfds(self, feature: Feature, images: StoredImages) -> dict[str, Any]:
        box = {"shape": {"dimensions": ["4"]}, "dtype": "float32", "bboxFormat": "REL_YXYX"}
        return {"pythonClassName": f"{TFDS}.bounding_boxes.BBoxFeature", "boundingBox": box}

    def export(self, value: np.ndarray, size: Callable[[], tuple[int, int]], to_pixels: ToPixels) -> np.ndarray:
        """Returns x, y, width and height in pixels, float64 [num_objects, 4]."""
        if not len(value):
            return value.astype(np.float64)
        height, width = size()
        (x, box_width), (y, box_height) = (
            _in_pixels(value[:, sides].T, side, to_pixels) for sides, side in (([1, 3], width), ([0, 2], height))
        )
        return np.stack([x, y, box_width, box_height], axis=1)


def _in_pixels(sides: np.ndarray, size: int, to_pixels: ToPixels) -> tuple[np.ndarray, np.ndarray]:
    """Converts relative start and end coordinates, float32 [2, num_objects], to starts and lengths in pixels."""
    first, second = (to_pixels(side, size) for side in sides)
    length = np.round(second - first, _MAX_DECIMALS)
    return first, np.where(((first + length) / size).astype(np.float32) == sides[1], length, second - first)
