"""Creates `report.html`, which shows the properties, the quality checks and sample images of a dataset.

The report is made from the dataset alone, without its sources. It is one HTML file of limited size that loads no other
files. Identical runs produce identical reports, except for the times and paths in the section about the run.
"""
