"""Implements `recordmill verify`, which compares a dataset with its manifest, down to each record.

The input is a local or remote dataset. Its sources are not needed. The output is a report that lists each error with
its file, record, byte offset and reason. A Beam pipeline reads each shard once, together with its index and its
catalog.
"""
