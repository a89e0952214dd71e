"""Implements `recordmill repair`, which finds corrupt shard files and rebuilds them from the sources.

A rebuilt file has the same bytes as the original. If a file cannot be rebuilt, the command reports the reason. Shards
are rebuilt one at a time, without Beam.
"""
