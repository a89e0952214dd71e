"""Global shuffle: assigns each input to a shard and to an index within the shard.

The input is sorted runs of references. The output is the plan: the references of each shard, ordered by shuffle key. No
worker needs all keys in memory. No image is read, except for a small sample that shows whether the inputs are usable.
"""
