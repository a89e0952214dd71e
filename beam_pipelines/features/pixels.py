"""Feature kind `pixels`: the pixels of images of one size, uint8, row by row."""

import math
from typing import Any

from beam_pipelines.features.feature_kind import FeatureKind, StoredImages
from beam_pipelines.features.image import Image
from tf_input.dataset_format import Feature
from tf_input.serialized_example import BadExampleError, SerializedExample


class Pixels(Image):
    """The feature kind `pixels`."""

    task = ""

    def check(self, feature: Feature, example: SerializedExample, decodes: bool, is_sampled: bool) -> None:
        ((_, num_bytes),) = example.spans(feature.name)
        if num_bytes != math.prod(feature.shape):
            raise BadExampleError(f"{num_bytes} bytes of pixels instead of {math.prod(feature.shape)}")

    def describe_tfds(self, feature: Feature, images: StoredImages) -> dict[str, Any]:
        return FeatureKind.describe_tfds(self, feature, images)
