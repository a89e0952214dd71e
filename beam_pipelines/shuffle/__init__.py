"""Implements the global shuffle, which assigns each input to a shard and to an index within the shard.

The input is sorted runs of references. The result is the plan, which lists references to the inputs of each shard in
shuffled order. No worker needs all keys in memory. Only a small sample of the images is read, to test whether the
inputs are valid.
"""
