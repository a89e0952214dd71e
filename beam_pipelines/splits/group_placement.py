"""Puts whole groups into splits so that each split gets its share of each stratum, as near as the groups allow.

The largest groups come first, each into the split where it lowers most the sum of squares of what the splits are away from their shares of
its strata and of all inputs, in parts of the stratum: as scikit-learn's StratifiedGroupKFold does it. As there, a large group or a stratum
in few groups can stand in the way of the shares, and the best of all divisions is not looked for. Numbers are whole, so that the same
groups give the same splits everywhere.
"""

from typing import Iterable, NamedTuple, Sequence

# What the weight of a stratum is a fraction of: those of strata of 2**32 inputs still differ.
_WEIGHT = 1 << 96


class WaitingGroup(NamedTuple):
    """A group that is to be placed.

    Attributes:
        name: The name of the group.
        nums: The (stratum, number of inputs) for each of the group's strata.
    """

    name: bytes
    nums: Sequence[tuple[int, int]]


class Needs:
    """What each split lacks of its share of each stratum, and of all inputs, while groups are placed.

    Args:
        totals: The number of inputs of each stratum, with those that have a split.
        shares: The share of each split, in units of 1/scale.
        scale: The sum of the shares.

    Attributes:
        of_strata: For each stratum what each split lacks, in units of 1/scale of an input; below 0 where it has more than its share.
        crossings: (stratum, split) -> the group with which the split came above its share, and how many inputs of the stratum that has.
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
        """Notes inputs that are in a split."""
        self.of_strata[stratum][split] -= num * self._scale
        self._of_all[split] -= num * self._scale

    def place(self, group: WaitingGroup) -> int:
        """Finds the split that gains most by a group, of equal ones that with the smallest share, and puts it there."""
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


def place_groups(groups: Iterable[WaitingGroup], needs: Needs) -> list[int]:
    """Places groups one after the other.

    Args:
        groups: The largest first, and in an order that depends on nothing but themselves.
        needs: What splits lack before; afterwards, what they still lack.

    Returns:
        The split of each.
    """
    return [needs.place(group) for group in groups]
