"""Divides shards into chunks, which are byte ranges that are read with a single request."""

import dataclasses
from typing import Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class Runs:
    """A table of consecutive chunks.

    Attributes:
        counts: The number of records in each chunk, at least 1, int64 [num_runs].
        num_bytes: The approximate size of each chunk in bytes, int64 [num_runs]. Records of a shard are assumed to have
            equal sizes.
        starts: The index of the first record of each chunk among all records, int64 [num_runs].
    """

    counts: np.ndarray
    num_bytes: np.ndarray
    starts: np.ndarray

    def __len__(self) -> int:
        return len(self.counts)


def cut_runs(counts: Sequence[int], num_bytes: Sequence[int], run_bytes: int) -> Runs:
    """Divides shards into chunks of about equal size. A shard that is not much larger than a chunk is not divided.

    Only numbers of records are needed. When a chunk is read, its byte offset is looked up in the index file.

    Args:
        counts: The number of records of each shard.
        num_bytes: The size of each shard, in bytes.
        run_bytes: The target size of a chunk, in bytes. Chunks of a divided shard have between 3/4 and 3/2 of this
            size.
    """
    records, sizes = np.asarray(counts, np.int64), np.asarray(num_bytes, np.int64)
    chunks = np.clip((sizes + run_bytes // 2) // run_bytes, np.minimum(records, 1), records)
    shards = np.repeat(np.arange(len(records)), chunks)
    chunk_index = np.arange(len(shards)) - np.repeat(np.cumsum(chunks) - chunks, chunks)  # of a chunk in its shard
    of_shard = chunks[shards]
    firsts, stops = (at * records[shards] // of_shard for at in (chunk_index, chunk_index + 1))
    lengths = sizes[shards] * (stops - firsts) // np.maximum(records[shards], 1)
    return Runs(stops - firsts, lengths, (np.cumsum(records) - records)[shards] + firsts)
