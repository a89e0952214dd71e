"""How inputs were divided among splits, where more than a hash of the group decided: what was asked for, and how near it came."""

import dataclasses
from fractions import Fraction
from typing import Any, Iterable, Iterator, Mapping, Sequence

import numpy as np

from beam_pipelines.errors import printable

# Between the values of several features; in no text of one line.
_SEPARATOR = "\x1f"

# Of so many inputs a split may be one above its share where a hash decided, and nothing is said of its largest group.
_ONE_OF = 100


def join_stratum(values: Iterable[str]) -> str:
    """The stratum that several values make together."""
    return _SEPARATOR.join(values)


def show_stratum(stratum: str) -> str:
    """A stratum as a message shows it."""
    return printable(stratum.replace(_SEPARATOR, ", "))[:80]


def largest_groups(splits: Sequence[str], groups: Sequence[bytes], nums: np.ndarray, places: np.ndarray) -> dict[str, tuple[str, int]]:
    """The largest group of each split that has any, and its inputs.

    Args:
        splits: The names of the splits.
        groups: The names of the groups, ascending: of equally large ones the first is taken.
        nums: The number of inputs of each group, int64 [num_groups].
        places: The place among `splits` of each group's split, int64 [num_groups].
    """
    order = np.argsort(-nums, kind="stable")
    found, firsts = np.unique(places[order], return_index=True)
    return {splits[place]: (groups[group].decode(), int(nums[group])) for place, group in zip(found.tolist(), order[firsts].tolist())}


@dataclasses.dataclass(frozen=True)
class Excess:
    """The split that has got most above its share of a stratum, and why.

    Attributes:
        stratum: The stratum, as `join_stratum` makes it; empty where splits are not stratified.
        split: The name of the split.
        num_inputs: The number of inputs of the stratum that the split has got.
        target: The share of the stratum's inputs that the split should have.
        group: The group with which the split came above its share.
        num_group: The number of inputs of the stratum that the group has.
    """

    stratum: str
    split: str
    num_inputs: int
    target: Fraction
    group: str
    num_group: int


@dataclasses.dataclass(frozen=True)
class Division:
    """How inputs were divided among splits.

    Attributes:
        by: Names of the features whose values are the strata.
        shares: Split name -> its share of the inputs.
        num_inputs: Split name -> the number of inputs that are listed for it, where splits are stratified, or there are groups.
        num_kept: The number of inputs that were placed earlier.
        num_groups: The number of groups of the inputs that were placed.
        num_strata: The number of strata.
        num_small: The number of strata that have fewer inputs, or groups, than there are splits.
        first_small: The first of these small strata.
        num_first_small: The number of inputs, or groups, of the first small stratum.
        first_small_lacks: Names of the splits that have nothing of the first small stratum.
        excess: What groups stood in the way of; None where every split has got its share of every stratum, give or take one.
        largest: Split name -> its largest group, and how many inputs that has; where a hash of the group decided.
    """

    by: tuple[str, ...]
    shares: Mapping[str, Fraction]
    num_inputs: Mapping[str, int]
    num_kept: int = 0
    num_groups: int = 0
    num_strata: int = 0
    num_small: int = 0
    first_small: str = ""
    num_first_small: int = 0
    first_small_lacks: tuple[str, ...] = ()
    excess: Excess | None = None
    largest: Mapping[str, tuple[str, int]] = dataclasses.field(default_factory=dict)

    def with_inputs(self, num_listed: Mapping[str, int]) -> "Division":
        """Returns the same division with what was reached, where a hash of the group decided.

        A hash comes near the shares where there are many groups. A group is told of that alone brings its split above its share, by more
        than one input in a hundred.

        Args:
            num_listed: Split name -> its inputs.
        """
        if self.by or not self.num_groups:
            return self
        num_inputs = {split: num_listed.get(split, 0) for split in self.shares}
        total = sum(num_inputs.values())
        split = max(self.shares, key=lambda split: num_inputs[split] - total * self.shares[split])
        target = total * self.shares[split]
        group, num_group = self.largest.get(split, ("", 0))
        above = num_inputs[split] - target
        is_told = num_group >= above >= max(1, Fraction(total, _ONE_OF))
        excess = Excess("", split, num_inputs[split], target, group, num_group) if is_told else None
        return dataclasses.replace(self, num_inputs=num_inputs, excess=excess)

    def to_json(self) -> dict[str, Any]:
        """The division as `statistics.json` has it."""
        facts: dict[str, Any] = {
            "stratified_by": list(self.by),
            "shares": {split: float(share) for split, share in self.shares.items()},
            "num_kept": self.num_kept,
        }
        if not self.num_inputs:
            return facts
        total = sum(self.num_inputs.values())
        facts["reached"] = {split: self.num_inputs[split] / total for split in self.shares}
        of_strata = {"num_strata": self.num_strata, "num_small_strata": self.num_small} if self.by else {}
        facts |= {"num_groups": self.num_groups, **of_strata, "largest_excess": None}
        if self.excess:
            excess = {"stratum": show_stratum(self.excess.stratum), "target": float(self.excess.target)}
            facts["largest_excess"] = {**dataclasses.asdict(self.excess), **excess}
        return facts

    def warnings(self) -> Iterator[str]:
        """What may not be what the user expects, a line each."""
        if self.num_small:
            num, others = self.num_first_small, self.num_small - 1
            has = (
                f"{num:,} {'input or group' if self.num_groups else 'input'}"
                if num == 1
                else f"{num:,} {'inputs or groups' if self.num_groups else 'inputs'}"
            )
            lacking = f"nothing of it is in {', '.join(self.first_small_lacks)}"
            too = f"; {others:,} other {'stratum has' if others == 1 else 'strata have'} too few as well" if others else ""
            yield (
                f"{', '.join(self.by)}: {show_stratum(self.first_small)!r} has {has}, "
                f"fewer than the {len(self.shares)} splits: {lacking}{too}"
            )
