"""Creates `report.html`, a report with the properties, the quality checks and sample images of a dataset.

The sources are not needed. The report is a single HTML file of limited size that does not load other files. Identical
runs produce identical reports, except for the times and paths in the section about the run.
"""
