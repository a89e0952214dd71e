"""Implements the global shuffle, which assigns each input to a shard and to an index within the shard.

The shuffle reads references to inputs from sorted temporary files. It writes the plan, which lists the references of
each shard in shuffled order. No worker needs all keys in memory. Only a small sample of the images is read, to check
that most inputs are valid.
"""
