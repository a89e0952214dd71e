"""The registry of feature kinds that have their own module."""

from typing import Mapping

from beam_pipelines.features.feature_kind import FeatureKind
from beam_pipelines.features.keypoints import Keypoints

KINDS: Mapping[str, FeatureKind] = {kind.name: kind for kind in (Keypoints(),)}
