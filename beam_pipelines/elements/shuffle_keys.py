"""Computes the shuffle keys, which determine the order of examples, and histograms of these keys.

The examples of a split are sorted by their shuffle key, `BLAKE2b-128(key=seed, example key)` (RFC 7693). The resulting
order is a uniformly random permutation that depends only on the seed and the keys.
"""

import hashlib
from collections import defaultdict
from typing import TYPE_CHECKING, Iterable, Mapping, Sequence

import numpy as np
import zstandard

from beam_pipelines.elements.binary_column import digests

if TYPE_CHECKING:
    from beam_pipelines.elements.references import References

BUCKET_BITS = 16
NUM_BUCKETS = 1 << BUCKET_BITS


def shuffle_key(seed: int, key: bytes) -> bytes:
    """Returns the 16-byte shuffle key of an example."""
    return hashlib.blake2b(key, digest_size=16, key=seed.to_bytes(8, "big")).digest()


def shuffle_orders(seed: int, keys: Sequence[bytes]) -> np.ndarray:
    """Returns the first 8 bytes of each shuffle key, uint64 [num_keys]."""
    hasher = hashlib.blake2b(digest_size=16, key=seed.to_bytes(8, "big"))
    return np.frombuffer(digests(hasher, keys), ">u8")[::2].astype(np.uint64)


def buckets(orders: np.ndarray) -> np.ndarray:
    """Returns the histogram bucket of each shuffle key, which is given by the first bits of the key."""
    return (orders >> np.uint64(64 - BUCKET_BITS)).astype(np.int64)


class KeyCounts:
    """A histogram of shuffle keys for each split."""

    def __init__(self) -> None:
        self._counts: dict[str, np.ndarray] = {}

    def add_references(self, batches: Sequence["References"]) -> None:
        """Adds the shuffle keys of several batches of references."""
        by_split: defaultdict[str, list[np.ndarray]] = defaultdict(list)
        for references in batches:
            for split_number, split in enumerate(references.splits):
                by_split[split].append(references.rows["order"][references.rows["split"] == split_number])
        for split, orders in by_split.items():
            if any(map(len, orders)):
                self.add(split, np.concatenate(orders))

    def add(self, split: str, orders: np.ndarray) -> None:
        """Adds shuffle keys of a split, given the first 8 bytes of each key, uint64 [num_keys]."""
        self._add_counts(split, np.bincount(buckets(orders), minlength=NUM_BUCKETS))

    def merge(self, other: "KeyCounts") -> None:
        """Adds the counts of `other`."""
        for split, counts in other._counts.items():
            self._add_counts(split, counts)

    def _add_counts(self, split: str, counts: np.ndarray) -> None:
        self._counts[split] = self._counts[split] + counts if split in self._counts else counts

    def pack(self) -> dict[str, bytes]:
        """Compresses the histogram of each split, in which most counts are 0, to bytes."""
        return {split: zstandard.compress(counts.tobytes(), 1) for split, counts in self._counts.items()}


def merge_counts(parts: Iterable[Mapping[str, bytes]]) -> dict[str, np.ndarray]:
    """Merges packed `KeyCounts`. Returns the number of keys in each bucket for each split, int64 [NUM_BUCKETS]."""
    merged: dict[str, np.ndarray] = {}
    for part in parts:
        for split, packed in part.items():
            counts = np.frombuffer(zstandard.decompress(packed), np.int64)
            merged[split] = merged[split] + counts if split in merged else counts
    return merged
