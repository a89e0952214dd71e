"""Defines how the reader handles feature kinds, one module per kind.

    feature_kind   the protocol through which other packages use a kind
    kinds          the registry: name of a kind -> kind
    keypoints      points in an image, such as the joints of a person

Kinds that are not in the registry, such as `bbox`, are still handled where they are used.
"""
