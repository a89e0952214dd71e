"""Writes the shards of a dataset according to the plan of the run.

The input is references in rank order. Each shard consists of a TFRecord file, an index file, a catalog file and
statistics. The contents of a shard depend only on the sources and on the plan. Each image is read once, or twice if the
run searches for near-duplicates. A bad image becomes a dead letter. A disk error fails the bundle.
"""
