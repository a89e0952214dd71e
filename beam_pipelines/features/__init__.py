"""Defines feature kinds, one module per kind.

    feature_kind   the base class through which other packages use a kind
    kinds          the registry: name of a kind -> kind
    objects        encodes all features of the objects in an image
    NAME           the kind NAME, such as `mask`

`tf_input.stored_kinds` declares the properties of kinds that writer and reader share.
"""
