"""Runs: the stretches of shards that are read at once."""

import dataclasses
from typing import Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class Runs:
    """A table of runs, which follow each other.

    Attributes:
        counts: int64 [num_runs], how many records a run has; at least one.
        num_bytes: int64 [num_runs], about how long it is: records of a shard are taken to be of one length.
        starts: int64 [num_runs], the number of its first record, counted through all of them.
    """

    counts: np.ndarray
    num_bytes: np.ndarray
    starts: np.ndarray

    @property
    def num_examples(self) -> int:
        """The number of records."""
        return int(self.counts.sum())

    def __len__(self) -> int:
        return len(self.counts)


@dataclasses.dataclass(frozen=True)
class ShardRuns(Runs):
    """The runs of a whole split, in the order in which they lie in its shards.

    Attributes:
        shards: int64 [num_runs], the index of the shard in which a run lies.
        firsts: int64 [num_runs], the index of its first record in that shard.
    """

    shards: np.ndarray
    firsts: np.ndarray


def cut_runs(counts: Sequence[int], num_bytes: Sequence[int], run_bytes: int) -> ShardRuns:
    """Cuts shards into runs of about equal length; a shard that is not much longer than that is one run.

    Only numbers of records are needed for it, no index: where in its shard a run begins is looked up when it is read.

    Args:
        counts: Records of each shard.
        num_bytes: Bytes of each shard.
        run_bytes: How long a run should be: those of a shard that is cut have from 3/4 to 3/2 of it.
    """
    records, sizes = np.asarray(counts, np.int64), np.asarray(num_bytes, np.int64)
    pieces = np.clip((sizes + run_bytes // 2) // run_bytes, np.minimum(records, 1), records)
    shards = np.repeat(np.arange(len(records)), pieces)
    place = np.arange(len(shards)) - np.repeat(np.cumsum(pieces) - pieces, pieces)  # of a run in its shard
    of_shard = pieces[shards]
    firsts, stops = (at * records[shards] // of_shard for at in (place, place + 1))
    lengths = sizes[shards] * (stops - firsts) // np.maximum(records[shards], 1)
    return ShardRuns(stops - firsts, lengths, (np.cumsum(records) - records)[shards] + firsts, shards, firsts)
