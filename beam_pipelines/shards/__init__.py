"""Writes the shards of a dataset according to the plan of the run.

The plan lists references to the inputs of each shard in shuffled order. A shard consists of a TFRecord file, an index
file, a catalog file and statistics. Its contents depend only on the sources and on the plan. Each image is read once,
or twice if the run searches for near-duplicates. An invalid image becomes a dead letter. After a disk error, an
exception is raised, so that Beam retries.
"""
