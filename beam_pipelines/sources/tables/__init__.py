"""Files whose rows or lines are the examples: the sources `table`, `text` and `text_lines`.

What comes in are CSV, TSV, JSON Lines or Parquet files, or text files with a line for each example; what goes out are references to the
images that the rows name, or rows of values alone, and dead letters for rows that do not fit. Images that lie in Parquet go into the spool.
"""
