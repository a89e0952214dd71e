"""Creates `report.html`, a report with the properties, the quality checks and sample images of a dataset.

The input consists of the files of a dataset whose shards are written. The sources are not needed. The output is a page
of limited size that loads no other files. Equal runs give equal pages, except for the times and paths of `run.json`.
"""
