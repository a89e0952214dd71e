"""The objects of an example in the form of Hugging Face's libraries, for the formats that hold objects.

    objects/bbox     `bbox`: x, y, width, height in pixels of the image as it is stored, float64, with the fewest
                     decimals that give the same box again: 23 and not 23.0000006, which is the float32 of the record in pixels
    objects/label    `category`
    objects/NAME     `NAME`
"""

from typing import Any

import numpy as np

from beam_pipelines.errors import Refusal, UserError
from beam_pipelines.export.examples import ExportedExample
from beam_pipelines.images.images import check_image
from beam_pipelines.tfrecord.example_reader import BadExampleError
from tf_input.dataset_format import IMAGE, LABEL, OBJECTS, Feature, Manifest

BBOX = f"{OBJECTS}/bbox"
_MAX_DECIMALS = 6


def object_field(feature: Feature) -> str:
    """The name that a feature has among the objects of an example; empty where it is none of theirs."""
    group, slash, name = feature.name.partition("/")
    return "" if not slash or group != OBJECTS else "category" if name == LABEL else name


class ExportedValues:
    """The values of features as formats have them that hold objects.

    Args:
        manifest: The manifest of the data set.

    Raises:
        UserError: Examples have boxes, and no image that these lie on.
    """

    def __init__(self, manifest: Manifest) -> None:
        features = manifest.features
        sides = [features.get(name) for name in ("height", "width")]
        self._sides = [one for one in sides if one is not None and (one.kind, one.shape) == ("integer", ())]
        self._image = features.get(IMAGE)
        has_size = len(self._sides) == 2 or (self._image is not None and (self._image.kind == "image" or len(self._image.shape) > 1))
        if BBOX in features and not has_size:
            raise UserError("--to: examples have boxes and no image; expected one, in whose pixels boxes are exported, or another format")

    def of(self, feature: Feature, example: ExportedExample) -> Any:
        """Returns the value of a feature as `ExportedExample.value` does; for boxes float64 [num_objects, 4] in pixels.

        Raises:
            BadExampleError: The example has no such value, or the size of its image is not known.
        """
        value = example.value(feature)
        if feature.name != BBOX or not len(value):
            return value.astype(np.float64) if feature.name == BBOX else value
        height, width = self._size(example)
        (x, box_width), (y, box_height) = (
            _in_pixels(value[:, sides].T, size) for sides, size in (([1, 3], width), ([0, 2], height))
        )
        return np.stack([x, y, box_width, box_height], axis=1)

    def _size(self, example: ExportedExample) -> tuple[int, int]:
        if len(self._sides) == 2:
            height, width = (int(example.value(side)) for side in self._sides)
            return height, width
        image = example.value(self._image)
        if isinstance(image, np.ndarray):
            return image.shape[:2]
        try:
            checked = check_image(image, "header")
        except Refusal as error:
            raise BadExampleError(f"record {example.number}: {error}") from None
        return checked.height, checked.width


def _in_pixels(sides: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Converts float32 sides in 0..1, [2, num_objects], into the first side and the length in pixels.

    These give the same sides again.
    """
    first, second = (_shortest(side, size) for side in sides)
    length = np.round(second - first, _MAX_DECIMALS)
    return first, np.where(((first + length) / size).astype(np.float32) == sides[1], length, second - first)


def _shortest(sides: np.ndarray, size: int) -> np.ndarray:
    """Converts float32 sides in 0..1 into the pixels with the fewest decimals from which the same float32 follows."""
    pixels = exact = sides.astype(np.float64) * size
    for num_decimals in reversed(range(_MAX_DECIMALS + 1)):
        rounded = np.round(exact, num_decimals)
        pixels = np.where((rounded / size).astype(np.float32) == sides, rounded, pixels)
    return pixels
