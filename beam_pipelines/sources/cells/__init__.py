"""Converts the cells of a row to feature values, according to the kind of each column.

Cells can be texts from CSV files, values from JSON or Parquet, or features of records. The module `source` describes
the types of the feature values. An invalid cell raises `InvalidInput`, and the row that contains the cell becomes a
dead letter.
"""
