"""Converts the objects of an example to the conventions of Hugging Face's libraries.

    objects/bbox     `bbox`: x, y, width, height in pixels of the stored image, float64; rounded as far as possible
                     without changing the stored float32 box, for example 23 instead of 23.0000006
    objects/label    `category`
    keypoints        x, y in pixels of the stored image, and the visibility, float64
    objects/NAME     `NAME`
"""

import functools
from typing import Any

import numpy as np

from beam_pipelines.errors import InvalidInput, UserError
from beam_pipelines.export.examples import ExportedExample
from beam_pipelines.features.kinds import kind_of
from beam_pipelines.images.images import check_image
from tf_input.dataset_format import IMAGE, LABEL, OBJECTS, Feature, Manifest
from tf_input.serialized_example import BadExampleError

_MAX_DECIMALS = 6


def object_field(feature: Feature) -> str:
    """Returns the name of an object feature in the export, or an empty string for other features."""
    group, slash, name = feature.name.partition("/")
    return "" if not slash or group != OBJECTS else "category" if name == LABEL else name


class ExportedValues:
    """Converts the boxes and other object features of examples to the format of Hugging Face's libraries.

    Args:
        manifest: The manifest of the dataset.

    Raises:
        UserError: Examples have boxes or keypoints but no image.
    """

    def __init__(self, manifest: Manifest) -> None:
        features = manifest.features
        sides = [features.get(name) for name in ("height", "width")]
        self._sides = [side for side in sides if side is not None and side.is_integer and not side.shape]
        self._image = features.get(IMAGE)
        has_size = len(self._sides) == 2 or (self._image is not None and (self._image.is_file or len(self._image.shape) > 1))
        if any(item.has_positions for item in manifest.schema) and not has_size:
            raise UserError(
                "--to: boxes and keypoints are exported in pixels of their image, and the examples have no image. Choose another "
                "format."
            )

    def of(self, feature: Feature, example: ExportedExample) -> Any:
        """Returns the value of a feature. Unlike in `ExportedExample.value`, boxes are float64 [num_objects, 4] in
        pixels, and keypoints are float64 in pixels.

        Raises:
            BadExampleError: The example has no such value, or the size of its image is unknown.
        """
        value = example.value(feature)
        return kind_of(feature).export(value, functools.partial(self._size, example), _shortest)

    def _size(self, example: ExportedExample) -> tuple[int, int]:
        if len(self._sides) == 2:
            height, width = (int(example.value(side)) for side in self._sides)
            return height, width
        image = example.value(self._image)
        if isinstance(image, np.ndarray):
            return image.shape[:2]
        try:
            checked = check_image(image, "header")
        except InvalidInput as error:
            raise BadExampleError(f"record {example.number}: {error}") from None
        return checked.height, checked.width


def _shortest(sides: np.ndarray, size: int) -> np.ndarray:
    """Converts relative coordinates to pixels, with the fewest decimals that preserve the relative coordinates."""
    pixels = exact = sides.astype(np.float64) * size
    for num_decimals in reversed(range(_MAX_DECIMALS + 1)):
        rounded = np.round(exact, num_decimals)
        pixels = np.where((rounded / size).astype(np.float32) == sides, rounded, pixels)
    return pixels
