"""Sources for files whose rows or lines are examples: `table`, `text` and `text_lines`.

Supported files are CSV, TSV, JSON Lines and Parquet, and text files with one example per line. Each source yields
references to the images that rows name, or rows of values without an image. Invalid rows become dead letters. Images
that are stored in Parquet files are copied to temporary files.
"""
