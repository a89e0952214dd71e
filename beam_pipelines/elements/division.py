"""Reports how inputs were divided among splits, and how far split sizes are from the requested sizes."""

import dataclasses
from fractions import Fraction
from typing import Any, Iterable, Iterator, Mapping, Sequence

import numpy as np

from beam_pipelines.errors import printable

# Separates the values of several features. The separator does not occur in one-line strings.
_SEPARATOR = "\x1f"

# For splits by hash, a deviation of less than one in 100 inputs is not reported.
_ONE_OF = 100


def join_stratum(values: Iterable[str]) -> str:
    """Joins feature values into the name of a stratum, which is the set of all inputs with these values."""
    return _SEPARATOR.join(values)


def show_stratum(stratum: str) -> str:
    """Formats a stratum for messages."""
    return printable(stratum.replace(_SEPARATOR, ", "))[:80]


def largest_groups(
    splits: Sequence[str], groups: Sequence[bytes], nums: np.ndarray, split_indices: np.ndarray
) -> dict[str, tuple[str, int]]:
    """Returns the name and size of the largest group in each split that has groups.

    Args:
        splits: The names of the splits.
        groups: The names of the groups in ascending order. Among groups of equal size, the first name is returned.
        nums: The number of inputs in each group, int64 [num_groups].
        split_indices: The index of each group's split in `splits`, int64 [num_groups].
    """
    order = np.argsort(-nums, kind="stable")
    used_splits, firsts = np.unique(split_indices[order], return_index=True)
    return {
        splits[split_index]: (groups[group].decode(), int(nums[group]))
        for split_index, group in zip(used_splits.tolist(), order[firsts].tolist())
    }


@dataclasses.dataclass(frozen=True)
class Excess:
    """The largest excess of a split over its requested size in any stratum, and the group that caused the excess.

    Attributes:
        stratum: The stratum, from `join_stratum`. Empty if splits are not stratified.
        split: The name of the split.
        num_inputs: The number of inputs in the split that belong to the stratum.
        target: The requested number of these inputs.
        group: The group that made the split exceed the requested size.
        num_group: The number of inputs in the group that belong to the stratum.
    """

    stratum: str
    split: str
    num_inputs: int
    target: Fraction
    group: str
    num_group: int


@dataclasses.dataclass(frozen=True)
class Division:
    """The result of dividing inputs among splits.

    Attributes:
        by: The names of the features that define the strata.
        shares: A mapping from split name to its requested share of the inputs.
        num_inputs: A mapping from split name to its number of inputs. Empty if there are no strata and groups.
        num_kept: The number of inputs that kept the split of an earlier dataset.
        num_groups: The number of groups that were assigned to a split.
        num_strata: The number of strata.
        num_small: The number of small strata, which have fewer inputs or groups than there are splits.
        first_small: The first small stratum.
        num_first_small: The number of inputs or groups in the first small stratum.
        splits_without_first_small: The names of the splits without inputs from the first small stratum.
        excess: The largest excess that a group caused. None if every split has its requested size, within one input.
        largest: A mapping from split name to the name and size of its largest group. Used for splits by hash.
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
    splits_without_first_small: tuple[str, ...] = ()
    excess: Excess | None = None
    largest: Mapping[str, tuple[str, int]] = dataclasses.field(default_factory=dict)

    def with_inputs(self, num_listed: Mapping[str, int]) -> "Division":
        """Returns a copy with the number of inputs in each split. Returns this object if splits were not assigned to
        groups by hash.

        With many small groups, the split sizes are close to the requested sizes. The largest group of a split is
        reported if the split exceeds its requested size by at least 1% of all inputs.

        Args:
            num_listed: A mapping from split name to its number of inputs.
        """
        if self.by or not self.num_groups:
            return self
        num_inputs = {split: num_listed.get(split, 0) for split in self.shares}
        total = sum(num_inputs.values())
        split = max(self.shares, key=lambda split: num_inputs[split] - total * self.shares[split])
        target = total * self.shares[split]
        group, num_group = self.largest.get(split, ("", 0))
        above = num_inputs[split] - target
        is_logged = num_group >= above >= max(1, Fraction(total, _ONE_OF))
        excess = Excess("", split, num_inputs[split], target, group, num_group) if is_logged else None
        return dataclasses.replace(self, num_inputs=num_inputs, excess=excess)

    def to_json(self) -> dict[str, Any]:
        """Returns this result in the format of `statistics.json`."""
        facts: dict[str, Any] = {
            "stratified_by": list(self.by),
            "shares": {split: float(share) for split, share in self.shares.items()},
            "num_kept": self.num_kept,
        }
        if not self.num_inputs:
            return facts
        total = sum(self.num_inputs.values())
        facts["actual_shares"] = {split: self.num_inputs[split] / total for split in self.shares}
        of_strata = {"num_strata": self.num_strata, "num_small_strata": self.num_small} if self.by else {}
        facts |= {"num_groups": self.num_groups, **of_strata, "largest_excess": None}
        if self.excess:
            excess = {"stratum": show_stratum(self.excess.stratum), "target": float(self.excess.target)}
            facts["largest_excess"] = {**dataclasses.asdict(self.excess), **excess}
        return facts

    def warnings(self) -> Iterator[str]:
        """Yields one-line warnings if split sizes differ from the requested sizes."""
        if self.num_small:
            num, others = self.num_first_small, self.num_small - 1
            units = "inputs or groups" if self.num_groups else "inputs"
            too = f" (and {others:,} more)" if others else ""
            yield (
                f"{', '.join(self.by)}: {show_stratum(self.first_small)!r} has fewer {units} ({num:,}) than there are "
                "splits "
                f"({len(self.shares)}){too}. Splits without it: {', '.join(self.splits_without_first_small)}."
            )
