"""Publishes written shards as a dataset: checks the counts, writes metadata and manifest, and renames the output.

The result is either a complete dataset or a directory that no reader accepts. The package also finds the output of
interrupted runs, so that later runs can resume them.
"""
