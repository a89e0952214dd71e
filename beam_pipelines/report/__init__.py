"""`report.html`, the report of a dataset: its properties, its quality checks and sample images, in one file.

The input is the files of a dataset whose shards are written. The sources are not needed. The output is a page of
limited size that loads no other files. Equal runs give equal pages, except for the times and paths of `run.json`.
"""
