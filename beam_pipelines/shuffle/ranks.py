"""The arithmetic of the global shuffle: exact ranks, shards, blocks.

An example's rank is its place in the order of its split (`shuffle_keys`), and decides its shard. Nobody holds all keys. A histogram
of the keys' first bits says how many examples come before each bucket of keys; the references of one block, which is a range of
buckets, sorted, then have exact ranks.
"""

import dataclasses
from fractions import Fraction
from typing import Iterator, Mapping

import numpy as np

from beam_pipelines.config.prepare_job import PrepareJob
from beam_pipelines.elements.shuffle_keys import BUCKET_BITS, NUM_BUCKETS
from beam_pipelines.errors import UserError

# References that are sorted at once, about, and their bytes.
BLOCK_REFERENCES = 1 << 19
BLOCK_BYTES = 96 << 20

# Of fewer there are so many blocks all the same, as far as each has some: what sorts them then needs little memory beside the engine's own.
FEW_BLOCKS, SMALL_BLOCK_REFERENCES = 4, 1 << 14

# Readers interleave shards, so a small data set gets several; a large one gets files that copy and cache well.
PREFERRED_SHARDS = 16
MIN_SHARD_BYTES = 1 << 20
MAX_SHARD_BYTES = 128 << 20


@dataclasses.dataclass(frozen=True)
class SplitRanks:
    """Where the inputs of one split go.

    Attributes:
        split: The name of the split.
        num_inputs: The number of inputs of the split.
        num_shards: The number of shards of the split, which have equal numbers of inputs, give or take one.
        before: The number of inputs in lower buckets, hence the rank of a bucket's first one: int64 [NUM_BUCKETS + 1].
    """

    split: str
    num_inputs: int
    num_shards: int
    before: np.ndarray

    def first_rank(self, shard_index: int) -> int:
        """The rank of a shard's first input; of shard `num_shards`: the number of inputs."""
        return shard_index * self.num_inputs // self.num_shards

    def cut(self, first: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """(shard index, rank at which its part begins, rank behind it) for each shard that has some of the ranks from `first` to `stop`."""
        shard = ((first + 1) * self.num_shards - 1) // self.num_inputs
        while first < stop:
            end = min(stop, self.first_rank(shard + 1))
            yield shard, first, end
            first, shard = end, shard + 1


@dataclasses.dataclass(frozen=True)
class ShufflePlan:
    """Where the shuffle puts all inputs: the shards of each split, and the blocks of keys that workers order.

    Attributes:
        splits: Split name -> its shards.
        block_bounds: int64 [num_blocks + 1]: the bucket at which each block begins, and the end.
    """

    splits: Mapping[str, SplitRanks]
    block_bounds: np.ndarray

    def order_bounds(self) -> np.ndarray:
        """Returns the smallest key that each block may have: uint64 [num_blocks]."""
        return self.block_bounds[:-1].astype(np.uint64) << np.uint64(64 - BUCKET_BITS)


def plan_shuffle(counts: Mapping[str, np.ndarray], num_shards: Mapping[str, int], reference_bytes: int = 0) -> ShufflePlan:
    """Turns each split's histogram of keys, int64 [NUM_BUCKETS], into the plan.

    Args:
        counts: Split -> its histogram of keys, int64 [NUM_BUCKETS].
        num_shards: Split -> the number of its shards.
        reference_bytes: The size of all references in memory, in bytes.
    """
    splits = {}
    for split, shards in num_shards.items():
        before = np.concatenate([[0], np.cumsum(counts[split], dtype=np.int64)])
        splits[split] = SplitRanks(split, int(before[-1]), shards, before)
    before = sum(plan.before for plan in splits.values())
    num = int(before[-1])
    few = min(FEW_BLOCKS, num // SMALL_BLOCK_REFERENCES)
    num_blocks = min(max(-(-num // BLOCK_REFERENCES), -(-reference_bytes // BLOCK_BYTES), few), NUM_BUCKETS)
    targets = np.arange(1, num_blocks) * num // num_blocks
    bounds = np.unique(np.concatenate([[0], np.searchsorted(before, targets), [NUM_BUCKETS]]))
    return ShufflePlan(splits, bounds)


def choose_num_shards(
    config: PrepareJob, num_examples: Mapping[str, int], num_bytes: Mapping[str, int]
) -> dict[str, int]:
    """Chooses the number of shards of each split.

    `--num_shards N` is shared out by examples, each split getting at least one; `--shard_size` bounds a shard's size;
    without either a split gets up to `PREFERRED_SHARDS` shards of `MIN_SHARD_BYTES` to `MAX_SHARD_BYTES` each.
    """
    if isinstance(config.num_shards, Mapping):
        return _by_name(config.num_shards, num_examples)
    if config.num_shards is not None:
        return share_out(config.num_shards, num_examples)
    num_shards = {}
    for split, size in num_bytes.items():
        preferred = min(max(-(-size // PREFERRED_SHARDS), MIN_SHARD_BYTES), MAX_SHARD_BYTES)
        wanted = -(-size // (config.shard_bytes or preferred))
        num_shards[split] = min(max(wanted, 1), num_examples[split])
    return num_shards


def _by_name(num_shards: Mapping[str, int], num_examples: Mapping[str, int]) -> dict[str, int]:
    text = ",".join(f"{split}={count}" for split, count in num_shards.items())
    if set(num_shards) != set(num_examples):
        raise UserError(f"--num_shards={text}: expected a number for each of the splits {', '.join(num_examples)}")
    for split, count in num_shards.items():
        if count > num_examples[split]:
            raise UserError(
                f"--num_shards={text}: {count} shards for the {num_examples[split]} examples of split {split!r}; "
                f"expected at most {num_examples[split]}"
            )
    return {split: num_shards[split] for split in num_examples}


def share_out(num_shards: int, num_examples: Mapping[str, int]) -> dict[str, int]:
    """Splits `num_shards` in proportion to the examples: by largest remainder, at least one each."""
    total = sum(num_examples.values())
    if not len(num_examples) <= num_shards <= total:
        raise UserError(
            f"--num_shards={num_shards}: expected {len(num_examples)} (one a split: {', '.join(num_examples)}) "
            f"to {total} (one an example)"
        )
    exact = {split: Fraction(num_shards * count, total) for split, count in num_examples.items()}
    shares = {split: max(1, int(share)) for split, share in exact.items()}
    while (missing := num_shards - sum(shares.values())) != 0:
        step = 1 if missing > 0 else -1
        can_move = [split for split in exact if step > 0 or shares[split] > 1]
        split = max(can_move, key=lambda s: (step * (exact[s] - shares[s]), s))
        shares[split] += step
    return shares
