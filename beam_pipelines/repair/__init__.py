"""Implements `recordmill repair`, which finds corrupt shard files and writes these shards again from the sources.

The steps are those of `recordmill prepare --resume`: the inputs are listed, and the missing shards of the plan are
written. A new file has the same bytes as the original, or the command reports which inputs have changed.
"""
