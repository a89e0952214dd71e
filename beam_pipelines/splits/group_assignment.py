"""Assigns whole groups to splits so that each split gets nearly the requested fraction of each stratum.

Groups are assigned from largest to smallest, as in scikit-learn's `StratifiedGroupKFold`. Each group goes to the split
that minimizes the squared difference between actual and requested split sizes. The difference for each stratum is
divided by the size of the stratum. The method is greedy, so split sizes can differ from the requested sizes if groups
are few or large. All arithmetic uses integers, so the result is the same on every machine.
"""

from typing import Iterable, NamedTuple, Sequence

# The numerator of the stratum weights. It is large enough to distinguish strata of up to 2**32 inputs.
_WEIGHT = 1 << 96


class WaitingGroup(NamedTuple):
    """A group whose split is not yet known.

    Attributes:
        name: The name of the group.
        nums: (stratum, number of inputs) pairs.
    """

    name: bytes
    nums: Sequence[tuple[int, int]]


class Needs:
    """The number of inputs that each split still needs from each stratum.

    Args:
        totals: The number of inputs of each stratum, including inputs that already have a split.
        shares: The share of each split, in units of 1/scale.
        scale: The sum of the shares.

    Attributes:
        of_strata: For each stratum, the number of inputs that each split lacks, in units of 1/scale. A negative value
            means that the split exceeds its share.
        crossings: A mapping from (stratum, split) to the group that made the split exceed its share, and to the group's
            number of inputs in the stratum.
    """

    def __init__(self, totals: Sequence[int], shares: Sequence[int], scale: int) -> None:
        self.of_strata = [[total * share for share in shares] for total in totals]
        self.crossings: dict[tuple[int, int], tuple[bytes, int]] = {}
        self._of_all = [sum(totals) * share for share in shares]
        self._by_share = sorted(range(len(shares)), key=lambda split: shares[split])
        self._scale = scale
        self._weights = [_WEIGHT // max(total, 1) ** 2 for total in totals]
        self._weight_of_all = _WEIGHT // max(sum(totals), 1) ** 2

    def take(self, stratum: int, split: int, num: int) -> None:
        """Subtracts `num` inputs of a stratum from the number of inputs that a split lacks."""
        self.of_strata[stratum][split] -= num * self._scale
        self._of_all[split] -= num * self._scale

    def assign(self, group: WaitingGroup) -> int:
        """Assigns a group to the split that lacks the most inputs in the group's strata. Returns the index of the
        split.

        If there is a tie, the split with the smallest share is chosen.
        """
        size, gains = 0, [0] * len(self._of_all)
        for stratum, num in group.nums:
            size += num
            weight = num * self._weights[stratum]
            for split, need in enumerate(self.of_strata[stratum]):
                gains[split] += weight * need
        weight = size * self._weight_of_all
        gains = [gain + weight * need for gain, need in zip(gains, self._of_all)]
        chosen = max(self._by_share, key=gains.__getitem__)
        for stratum, num in group.nums:
            was_below = self.of_strata[stratum][chosen] >= 0
            self.take(stratum, chosen, num)
            if was_below and self.of_strata[stratum][chosen] < 0:
                self.crossings[stratum, chosen] = group.name, num
        return chosen


def assign_groups(groups: Iterable[WaitingGroup], needs: Needs) -> list[int]:
    """Assigns each group to a split, in the given order.

    Args:
        groups: The groups, from largest to smallest. Groups of equal size must be in a reproducible order.
        needs: The needs of the splits, which this function updates.

    Returns:
        The split of each group.
    """
    return [needs.assign(group) for group in groups]
