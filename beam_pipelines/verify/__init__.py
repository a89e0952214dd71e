"""Implements `recordmill verify`, which checks all files and records of a dataset.

The dataset can be local or remote. Its sources are not needed. The command reports each error with the file, the
record, the byte offset and the reason. A Beam pipeline reads each shard once, together with its index and its catalog.
"""
