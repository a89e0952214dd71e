"""The registry of the feature kinds that have their own module."""

from typing import Mapping

from tf_input.features.feature_kind import PositionKind
from tf_input.features.keypoints import Keypoints

KINDS: Mapping[str, PositionKind] = {"keypoints": Keypoints()}
