"""The objects of an example as Hugging Face's libraries have them, for the formats that hold them.

    objects/bbox     `bbox`: x, y, width, height, in pixels of the image as it is stored: float64, so that nothing is rounded away
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
        """The value of a feature, as `ExportedExample.value` has it; of boxes float64 [num_objects, 4] in pixels.

        Raises:
            BadExampleError: The example has no such value, or an image whose size can't be told.
        """
        value = example.value(feature)
        if feature.name != BBOX or not len(value):
            return value.astype(np.float64) if feature.name == BBOX else value
        height, width = self._size(example)
        top, left, bottom, right = value.astype(np.float64).T
        return np.stack([left * width, top * height, (right - left) * width, (bottom - top) * height], axis=1)

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
