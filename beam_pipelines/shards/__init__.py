"""Writes the shards of a dataset from the plan.

The input is references in rank order. The output of a shard is a TFRecord file, an index, a catalog and statistics. A
shard depends only on its section of the plan and on the sources. Each image is read once, or twice if images are
compared before the plan is made (`hash_images`). A bad image becomes a dead letter. A disk error fails the bundle.
"""
