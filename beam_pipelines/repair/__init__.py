"""Implements `recordmill repair`, which finds corrupt shard files of a dataset and rebuilds them from the sources.

The rebuilt files have the same bytes as before, or the command reports the reason why they cannot. This package uses
the functions of `sources` and `shards`, one shard at a time, without Beam.
"""
