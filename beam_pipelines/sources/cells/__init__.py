"""Converts cells of rows to feature values, according to the kind of their column.

The input is text of a CSV file, values of JSON or Parquet, or features of a record. The output is feature values, whose
types `source` describes. An invalid cell raises `InvalidInput`, and its row becomes a dead letter.
"""
