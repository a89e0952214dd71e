"""Implements `recordmill repair`, which finds corrupt shard files of a dataset and rebuilds them from the sources.

The rebuilt files have the same bytes as the originals. If a file cannot be rebuilt, the command reports the reason.
Shards are rebuilt one at a time, without Beam.
"""
