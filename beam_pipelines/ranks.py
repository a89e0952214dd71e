"""The arithmetic of the global shuffle: shuffle keys, exact ranks, shards. Plain functions, no Beam.

The order of a split is ascending `BLAKE2b-128(key=seed, example key)` (RFC 7693): a fixed, uniformly random permutation,
whatever order the inputs come in. An example's rank is its place in that order, and decides its shard.

Nobody holds all keys. A histogram of the keys' first bits says how many examples come before each bucket of
keys; the examples of one block of shards, sorted, then have exact ranks.
"""

import dataclasses
import hashlib
from fractions import Fraction
from typing import Iterator, Mapping

import numpy as np

from beam_pipelines.config import PrepareConfig
from beam_pipelines.errors import RunError, UserError
from beam_pipelines.references import References

BUCKET_BITS = 16
NUM_BUCKETS = 1 << BUCKET_BITS

# A block is the unit that goes through the runner's shuffle: enough of them for any cluster, few enough that a batch of
# references still falls into pieces worth sending.
MAX_BLOCKS = 1024

# Readers interleave shards, so a small data set gets several; a large one gets files that copy and cache well.
PREFERRED_SHARDS = 16
MIN_SHARD_BYTES = 1 << 20
MAX_SHARD_BYTES = 128 << 20


def shuffle_key(seed: int, key: bytes) -> bytes:
    """The 16 bytes by which examples are ordered."""
    return hashlib.blake2b(key, digest_size=16, key=seed.to_bytes(8, "big")).digest()


def shuffle_keys(seed: int, keys: list[bytes]) -> np.ndarray:
    """Each key's shuffle key, as uint64 [len(keys), 2]: in two halves of 8 bytes."""
    blake2b, seed_bytes = hashlib.blake2b, seed.to_bytes(8, "big")
    digests = b"".join([blake2b(key, digest_size=16, key=seed_bytes).digest() for key in keys])
    return np.frombuffer(digests, ">u8").reshape(-1, 2).astype(np.uint64)


def shuffle_orders(seed: int, keys: list[bytes]) -> np.ndarray:
    """The first 8 bytes of each key's shuffle key, as uint64 [len(keys)]."""
    return shuffle_keys(seed, keys)[:, 0]


def buckets(orders: np.ndarray) -> np.ndarray:
    """The histogram bucket of each key: its first bits."""
    return (orders >> np.uint64(64 - BUCKET_BITS)).astype(np.int64)


def sort_by_shuffle_key(references: References, seed: int) -> References:
    """In rank order.

    Raises:
        RunError: A key came twice. No two inputs have one: `CheckKeys` has seen to that.
    """
    positions = np.argsort(references.rows["order"], kind="stable")
    orders = references.rows["order"][positions]
    if np.any(orders[1:] == orders[:-1]):  # equal in 64 bits: the other 64 decide
        keys = references.keys
        positions = np.array(sorted(range(len(keys)), key=lambda i: (shuffle_key(seed, keys[i]), keys[i])))
    ordered = references.take(positions)
    for index in np.flatnonzero(orders[1:] == orders[:-1]).tolist():
        if ordered.keys[index] == ordered.keys[index + 1]:
            raise RunError(f"the reference of {ordered.path(index)!r} came twice: the runner lost or repeated some")
    return ordered


@dataclasses.dataclass
class SplitPlan:
    """Where the examples of one split go.

    Attributes:
        split: Its name.
        num_examples: All of them.
        num_shards: Shards of equal size, give or take one example.
        before: int64 [NUM_BUCKETS + 1]: examples in lower buckets, hence the rank of a bucket's first example.
    """

    split: str
    num_examples: int
    num_shards: int
    before: np.ndarray

    @property
    def num_blocks(self) -> int:
        return min(self.num_shards, MAX_BLOCKS)

    def first_rank(self, shard_index: int) -> int:
        """The rank of a shard's first example; of shard `num_shards`: the number of examples."""
        return shard_index * self.num_examples // self.num_shards

    def block_shards(self, block: int) -> range:
        return range(block * self.num_shards // self.num_blocks, (block + 1) * self.num_shards // self.num_blocks)

    def block_bounds(self) -> np.ndarray:
        """int64 [num_blocks + 1]: the rank at which each block begins, and the end."""
        starts = [self.first_rank(self.block_shards(block).start) for block in range(self.num_blocks)]
        return np.array([*starts, self.num_examples])

    def blocks(self, orders: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The first and last block that each key may belong to: the same one, but for a bucket that a bound cuts."""
        bounds, bucket = self.block_bounds(), buckets(orders)
        first = np.searchsorted(bounds, self.before[bucket], side="right") - 1
        last = np.searchsorted(bounds, self.before[bucket + 1] - 1, side="right") - 1
        return first, last

    def cut_block(self, block: int, references: References, seed: int) -> Iterator[tuple[int, References]]:
        """A block's references -> (shard index, its references in rank order), shard by shard.

        Raises:
            RunError: References were lost or repeated on the way.
        """
        orders = references.rows["order"]
        first_bucket, last_bucket = buckets(np.array([orders.min(), orders.max()])).tolist()
        base, limit = self.before[[first_bucket, last_bucket + 1]].tolist()
        shards = self.block_shards(block)
        if len(references) != limit - base or base > self.first_rank(shards.start) or limit < self.first_rank(shards.stop):
            raise RunError(
                f"split {self.split}: shards {shards.start} to {shards.stop - 1} need the ranks "
                f"{self.first_rank(shards.start)} to {self.first_rank(shards.stop)}; {len(references)} references of ranks "
                f"{base} to {limit} arrived: the runner lost or repeated some"
            )
        ordered = sort_by_shuffle_key(references, seed)
        for shard_index in shards:
            start, end = self.first_rank(shard_index) - base, self.first_rank(shard_index + 1) - base
            yield shard_index, ordered.take(np.arange(start, end))


def plan_split(split: str, histogram: np.ndarray, num_shards: int) -> SplitPlan:
    """Turns a split's histogram of keys, int64 [NUM_BUCKETS], into its plan."""
    before = np.concatenate([[0], np.cumsum(histogram, dtype=np.int64)])
    return SplitPlan(split, int(before[-1]), num_shards, before)


def choose_num_shards(
    config: PrepareConfig, num_examples: Mapping[str, int], num_bytes: Mapping[str, int]
) -> dict[str, int]:
    """Shards for each split.

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
