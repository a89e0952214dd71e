"""Converts the cells of a row to feature values, according to the kind of each column.

The module `source` describes the types of feature values. An invalid cell raises `InvalidInput`, and its row becomes a
dead letter.
"""
