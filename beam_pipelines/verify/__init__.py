"""Implements `recordmill verify`, which checks all files and records of a dataset.

The input is a local or remote dataset. The sources of the dataset are not needed. The command reports each error with
the file, the record, the byte offset and the reason. A Beam pipeline reads each shard with its index and its catalog
once.
"""
