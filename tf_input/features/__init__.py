"""Defines how the reader handles feature kinds, one module per kind.

    feature_kind   the base class through which other packages use a kind
    kinds          the registry: name of a kind -> kind
    keypoints      points in an image, such as the joints of a person

Kinds without a module, such as `integer`, have the defaults of the base class and the properties of `stored_kinds`.
"""
