"""Implements the global shuffle, which assigns each input to a shard and to an index within the shard.

The input is sorted runs of references. The output is the plan: the references of each shard, ordered by shuffle key. No
worker needs all keys in memory. No images are read, except a small sample to test whether the inputs are valid.
"""
