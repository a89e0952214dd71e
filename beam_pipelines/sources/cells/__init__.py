"""Converts the cells of a row to feature values, according to the kind of each column.

Cells can be strings from CSV files, values from JSON or Parquet, or features of records. The module `source` describes
the types of the feature values. An invalid cell raises `InvalidInput`, and its row becomes a dead letter.
"""
