"""Writes the shards of a dataset from the plan.

The input is references in rank order. The output of a shard is a TFRecord file, an index, a catalog and statistics. The
content of a shard depends only on the sources and on the shard's section of the plan. Each image is read once, or twice
if images are compared before the shards are planned (see `hash_images`). A bad image becomes a dead letter. A disk
error fails the bundle.
"""
