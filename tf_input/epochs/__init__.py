"""Determines the order of examples in an epoch, and which examples of each batch a host reads.

The inputs are a seed, an epoch, and the number and size of the records in each shard of a split. The outputs are the
record at each index of the epoch, and the byte ranges (chunks) that contain the records. Nothing is read here.
"""
