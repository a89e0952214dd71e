"""The registry of the feature kinds that do more than the defaults of `FeatureKind`."""

from typing import Mapping

from tf_input.dataset_format import Feature
from tf_input.features.class_label import ClassLabel
from tf_input.features.feature_kind import FeatureKind
from tf_input.features.image import Image
from tf_input.features.keypoints import Keypoints
from tf_input.features.mask import Mask
from tf_input.features.tensor import Tensor

KINDS: Mapping[str, FeatureKind] = {
    **dict.fromkeys(("image", "pixels"), Image()),
    "class_label": ClassLabel(),
    "keypoints": Keypoints(),
    "mask": Mask(),
    "tensor": Tensor(),
}
_DEFAULT = FeatureKind()


def kind_of(feature: Feature) -> FeatureKind:
    """Returns the kind of a feature."""
    return KINDS.get(feature.kind, _DEFAULT)
