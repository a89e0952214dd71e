"""Rows with paths of images: `table` (`table_files`, `table_rows`, `table_columns`, `table_objects`) and `text`.

`lines` and `parquet_rows` read the formats.
"""
