"""Turns written shards into a published dataset: checks the counts, writes metadata and manifest, renames the output.

The result is either a complete dataset or a directory that no reader accepts. This package also finds the output of an
interrupted run, so that a later run can resume it.
"""
