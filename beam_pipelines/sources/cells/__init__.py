"""Cells of rows, whatever the rows are of: each is read as the kind of its column expects.

What comes in are texts of a CSV file, values of JSON or Parquet, or features of a record; what goes out are the values of an example's
features, as `source` describes them. A cell that is not what its column expects is a `Refusal`, which becomes a dead letter.
"""
