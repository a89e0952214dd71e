"""Computes the rank of each example and divides the examples among shards.

The rank of an example is its index in the shuffled order of its split (see `shuffle_keys`). The rank determines the
shard. No worker needs all keys in memory. The first bits of a shuffle key determine its bucket. The rank of the first
example in a bucket is the number of examples in all lower buckets. A block is a range of buckets. One worker sorts the
examples of a block and computes their ranks.
"""

import dataclasses
from fractions import Fraction
from typing import Iterator, Mapping

import numpy as np

from beam_pipelines.config.image_config import ImageConfig
from beam_pipelines.config.source_config import SourceConfig
from beam_pipelines.config.stage_spec import StageSpec
from beam_pipelines.elements.shuffle_keys import BUCKET_BITS, NUM_BUCKETS
from beam_pipelines.errors import UserError

# Approximate number of references to sort in memory at a time, and their size in bytes.
BLOCK_REFERENCES = 1 << 19
BLOCK_BYTES = 96 << 20

# Even small inputs are divided into several blocks, so that sorting needs little memory.
FEW_BLOCKS, SMALL_BLOCK_REFERENCES = 16, 1 << 16

# Readers interleave shards, so a small dataset gets several. The shards of a large dataset have a size that is
# convenient to copy and to cache.
PREFERRED_SHARDS = 16
MIN_SHARD_BYTES = 1 << 20
MAX_SHARD_BYTES = 128 << 20


@dataclasses.dataclass(frozen=True)
class SplitRanks:
    """The shards of a split, and the rank of the first input in each bucket of shuffle keys.

    Attributes:
        split: The name of the split.
        num_inputs: The number of inputs of the split.
        num_shards: The number of shards of the split. Shard sizes differ by at most one input.
        before: The rank of the first input in each bucket, followed by `num_inputs`, int64 [NUM_BUCKETS + 1].
    """

    split: str
    num_inputs: int
    num_shards: int
    before: np.ndarray

    def first_rank(self, shard_index: int) -> int:
        """Returns the rank of the first input of a shard. If `shard_index` is `num_shards`, returns `num_inputs`."""
        return shard_index * self.num_inputs // self.num_shards

    def cut(self, first: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yields the index and the range of ranks of each shard that overlaps the ranks from `first` to `stop - 1`."""
        shard = ((first + 1) * self.num_shards - 1) // self.num_inputs
        while first < stop:
            end = min(stop, self.first_rank(shard + 1))
            yield shard, first, end
            first, shard = end, shard + 1


@dataclasses.dataclass(frozen=True)
class ShufflePlan:
    """Describes the shards of each split, and the blocks of shuffle keys that workers sort.

    Attributes:
        splits: A mapping from split name to the ranks and shards of the split.
        block_bounds: The first bucket of each block, followed by the total number of buckets, int64 [num_blocks + 1].
    """

    splits: Mapping[str, SplitRanks]
    block_bounds: np.ndarray

    def order_bounds(self) -> np.ndarray:
        """Returns the smallest possible shuffle key of each block, uint64 [num_blocks]."""
        return self.block_bounds[:-1].astype(np.uint64) << np.uint64(64 - BUCKET_BITS)


def plan_shuffle(counts: Mapping[str, np.ndarray], num_shards: Mapping[str, int], reference_bytes: int = 0) -> ShufflePlan:
    """Computes the blocks of shuffle keys that workers sort, and the rank of the first input in each bucket.

    Args:
        counts: A mapping from split to the histogram of its keys, int64 [NUM_BUCKETS].
        num_shards: A mapping from split to its number of shards.
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


@dataclasses.dataclass(frozen=True)
class ShuffleSpec(StageSpec):
    """The options that the workers of the shuffle need. See `PrepareOptions`."""

    input: str
    source: SourceConfig
    images: ImageConfig
    seed: int
    num_shards: int | Mapping[str, int] | None
    shard_bytes: int | None
    max_bad_fraction: float
    texts: Mapping[str, str]


def choose_num_shards(
    given: int | Mapping[str, int] | None, shard_bytes: int | None, num_examples: Mapping[str, int], num_bytes: Mapping[str, int]
) -> dict[str, int]:
    """Chooses the number of shards of each split.

    With `--num_shards N`, the shards are divided in proportion to the examples, and each split gets at least one
    shard. `--shard_size` limits the size of a shard. By default, a split has up to `PREFERRED_SHARDS` shards with
    `MIN_SHARD_BYTES` to `MAX_SHARD_BYTES` each.
    """
    if isinstance(given, Mapping):
        return _by_name(given, num_examples)
    if given is not None:
        return share_out(given, num_examples)
    num_shards = {}
    for split, size in num_bytes.items():
        preferred = min(max(-(-size // PREFERRED_SHARDS), MIN_SHARD_BYTES), MAX_SHARD_BYTES)
        wanted = -(-size // (shard_bytes or preferred))
        num_shards[split] = min(max(wanted, 1), num_examples[split])
    return num_shards


def _by_name(num_shards: Mapping[str, int], num_examples: Mapping[str, int]) -> dict[str, int]:
    text = ",".join(f"{split}={count}" for split, count in num_shards.items())
    if set(num_shards) != set(num_examples):
        raise UserError(
            f"--num_shards={text} does not match the splits. Give a number for each of {', '.join(num_examples)}."
        )
    for split, count in num_shards.items():
        if count > num_examples[split]:
            raise UserError(
                f"--num_shards={text}: split {split!r} has only {num_examples[split]} examples for {count} shards. "
                f"Give at most {num_examples[split]}."
            )
    return {split: num_shards[split] for split in num_examples}


def share_out(num_shards: int, num_examples: Mapping[str, int]) -> dict[str, int]:
    """Divides shards among splits in proportion to the number of examples. Each split gets at least one shard."""
    total = sum(num_examples.values())
    if not len(num_examples) <= num_shards <= total:
        raise UserError(
            f"--num_shards={num_shards} is out of range. Give {len(num_examples)} (one per split: "
            f"{', '.join(num_examples)}) "
            f"to {total} (one per example)."
        )
    exact = {split: Fraction(num_shards * count, total) for split, count in num_examples.items()}
    shares = {split: max(1, int(share)) for split, share in exact.items()}
    while (missing := num_shards - sum(shares.values())) != 0:
        step = 1 if missing > 0 else -1
        can_move = [split for split in exact if step > 0 or shares[split] > 1]
        split = max(can_move, key=lambda s: (step * (exact[s] - shares[s]), s))
        shares[split] += step
    return shares
