"""The registry of the feature kinds that do more than the defaults of `FeatureKind`."""

from typing import Mapping

from tf_input.dataset_format import Feature
from tf_input.features.feature_kind import FeatureKind
from tf_input.features.keypoints import Keypoints

KINDS: Mapping[str, FeatureKind] = {"keypoints": Keypoints()}
_DEFAULT = FeatureKind()


def kind_of(feature: Feature) -> FeatureKind:
    """Returns the kind of a feature."""
    return KINDS.get(feature.kind, _DEFAULT)
