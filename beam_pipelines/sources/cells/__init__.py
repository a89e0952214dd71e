"""Cells of rows, whatever the rows are of: what a column's kind makes of them.

What comes in are text of a CSV file, values of JSON or Parquet, or features of a record; what goes out are the values of an example's
features, as `source` describes them. What is not what its column expects is a `Refusal`, which becomes a dead letter.
"""
