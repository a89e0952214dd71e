"""Feature kind `integer`: integers, or lists and arrays of integers, stored as int64."""

from beam_pipelines.features.feature_kind import FeatureKind


class Integer(FeatureKind):
    """The feature kind `integer`."""

