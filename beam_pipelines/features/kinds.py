"""The registry of feature kinds. The module `features/NAME.py` defines the kind NAME."""

from typing import Mapping, Sequence

from beam_pipelines.features.bbox import Bbox
from beam_pipelines.features.class_label import ClassLabel
from beam_pipelines.features.feature_kind import FeatureKind
from beam_pipelines.features.float import Float
from beam_pipelines.features.image import Image
from beam_pipelines.features.integer import Integer
from beam_pipelines.features.keypoints import Keypoints
from beam_pipelines.features.mask import Mask
from beam_pipelines.features.pixels import Pixels
from beam_pipelines.features.tensor import Tensor
from beam_pipelines.features.text import Text
from tf_input.dataset_format import Feature

KINDS: Mapping[str, FeatureKind] = {
    "image": Image(),
    "pixels": Pixels(),
    "tensor": Tensor(),
    "mask": Mask(),
    "text": Text(),
    "class_label": ClassLabel(),
    "integer": Integer(),
    "float": Float(),
    "bbox": Bbox(),
    "keypoints": Keypoints(),
}


def kind_of(feature: Feature) -> FeatureKind:
    """Returns the kind of a feature."""
    return KINDS[feature.kind]


def kinds_of(schema: Sequence[Feature]) -> list[FeatureKind]:
    """Returns the kinds of a schema's features, in a fixed order."""
    return [KINDS[name] for name in KINDS if name in {feature.kind for feature in schema}]
