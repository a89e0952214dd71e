"""Sources for files whose rows or lines are examples: `table`, `text` and `text_lines`.

The input is CSV, TSV, JSON Lines or Parquet files, or text files with one example per line. The output is references to
the images that rows name, or rows of values without an image. Invalid rows become dead letters. Images that are stored
in Parquet files are copied to the spool.
"""
