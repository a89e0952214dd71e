"""Which split an example belongs to: by its group key alone, so that it stays there when the data grow (promise 6)."""

import hashlib
from fractions import Fraction
from typing import Mapping, Sequence

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


def split_positions(
    groups: Sequence[bytes], given: Sequence[str | None], splits: Sequence[str], fractions: Mapping[str, Fraction] | None
) -> list[int]:
    """Each example's split, as a position in `splits`: by its group where there are fractions, else the given one."""
    if fractions is not None:
        return list(map(SplitByGroup(fractions), groups))
    return list(map(splits.index, given))


class SplitByGroup:
    """Assigns splits by a uniform hash of the group key.

    The hash is not the shuffle's, and does not depend on the seed: with the shuffle's own, a split would be a range of ranks.
    """

    def __init__(self, fractions: Mapping[str, Fraction]) -> None:
        self._bounds: list[int] = []
        total = Fraction(0)
        for fraction in fractions.values():
            total += fraction
            self._bounds.append(int(total * 2**64))

    def __call__(self, group: bytes) -> int:
        """The position of the group's split in `fractions`."""
        digest = hashlib.blake2b(group, digest_size=8, person=b"recordmill split").digest()
        value = int.from_bytes(digest, "big")
        for position, bound in enumerate(self._bounds):
            if value < bound:
                return position
        raise AssertionError("the fractions of the splits do not add up to 1")
