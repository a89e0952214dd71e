"""Computes a hash of the group, which by default decides the split of an example.

Because the hash depends only on the group, an example keeps its split when the dataset grows. The hash is independent
of the seed and of the shuffle key.
"""

import hashlib
from fractions import Fraction
from typing import Mapping, Sequence

import numpy as np

from beam_pipelines.elements.binary_column import digests


def split_hashes(groups: Sequence[bytes]) -> np.ndarray:
    """Returns a uniformly distributed hash of each group key, uint64 [num_groups]."""
    hasher = hashlib.blake2b(digest_size=8, person=b"recordmill split")
    return np.frombuffer(digests(hasher, groups), ">u8").astype(np.uint64)


def hash_bounds(fractions: Mapping[str, Fraction]) -> np.ndarray:
    """Returns the smallest hash of each split except the first, uint64 [num_splits - 1]."""
    total, bounds = Fraction(0), []
    for fraction in fractions.values():
        total += fraction
        bounds.append(int(total * 2**64))
    if total != 1:
        raise ValueError(f"the fractions of the splits add up to {total} instead of 1")
    return np.array(bounds[:-1], np.uint64)  # The last bound is 2**64, above every hash.


class SplitByGroup:
    """Assigns splits by the hash of the group key.

    Args:
        fractions: A mapping from split name to its share. Consecutive splits get consecutive ranges of hashes.

    Attributes:
        names: The names of the splits, in the order of their ranges.
    """

    def __init__(self, fractions: Mapping[str, Fraction]) -> None:
        self.names = tuple(fractions)
        self._bounds = hash_bounds(fractions)

    def __call__(self, groups: Sequence[bytes]) -> np.ndarray:
        """Returns the split of each group, as an index into `names`, int64 [num_groups]."""
        if not len(self._bounds):
            return np.zeros(len(groups), np.int64)
        return np.searchsorted(self._bounds, split_hashes(groups), side="right")
