"""Which split an example belongs to: by its group key alone, so that it stays there when the data grow (promise 6)."""

import hashlib
from fractions import Fraction
from typing import Mapping, Sequence

import numpy as np

from beam_pipelines.elements.texts import digests

# Folders that users name so, and the split that they mean.
SPLIT_FOLDERS = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "test": "test",
    "testing": "test",
}


class SplitByGroup:
    """Assigns splits by a uniform hash of the group key.

    The hash is not the shuffle's, and does not depend on the seed: with the shuffle's own, a split would be a range of ranks.

    Args:
        fractions: Split name -> its share. Each has the range of hashes that follows the ranges of those before it.

    Attributes:
        names: Of the splits, in the order of their ranges.
    """

    def __init__(self, fractions: Mapping[str, Fraction]) -> None:
        self.names = tuple(fractions)
        total, bounds = Fraction(0), []
        for fraction in fractions.values():
            total += fraction
            bounds.append(int(total * 2**64))
        if total != 1:
            raise ValueError("the fractions of the splits do not add up to 1")
        self._bounds = np.array(bounds[:-1], np.uint64)  # the last is 2**64, above any hash

    def __call__(self, groups: Sequence[bytes]) -> np.ndarray:
        """Of each group key the position of its split in `names`, int64 [num_groups]."""
        if not len(self._bounds):
            return np.zeros(len(groups), np.int64)
        hasher = hashlib.blake2b(digest_size=8, person=b"recordmill split")
        return np.searchsorted(self._bounds, np.frombuffer(digests(hasher, groups), ">u8"), side="right")
