"""Implements `recordmill verify`, which compares a dataset with its manifest, down to each record.

The input is a local or remote dataset without its sources. The output is a report of corrupt files, with the record,
the byte offset and the reason. A Beam pipeline reads each shard once, together with its index and its catalog.
"""
