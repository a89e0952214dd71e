"""Determines the split of each input from the facts about all inputs.

Inputs without a group are sorted by a hash of the key, which does not depend on the seed. For stratified splits, each
split gets a contiguous range of the sorted inputs of each stratum. Otherwise, the hash alone determines the split.
"""

import dataclasses
import functools
import math
from fractions import Fraction
from typing import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_pipelines.config.prepare_options import MAX_SPLITS
from beam_pipelines.elements.division import Division, Excess, largest_groups
from beam_pipelines.elements.listing import SPLIT_ADVICE, Listing, empty_split, spanning_groups
from beam_pipelines.elements.split_hashes import hash_bounds, split_hashes
from beam_pipelines.errors import UserError, printable
from beam_pipelines.splits.apportion import apportion
from beam_pipelines.splits.group_assignment import Needs, WaitingGroup, assign_groups
from beam_pipelines.splits.split_facts import NO_GROUP, SplitFacts, SplitSpec, count_rows
from beam_pipelines.storage.spool import SpoolReader


@dataclasses.dataclass(frozen=True)
class SplitPlan:
    """The splits of all inputs.

    Attributes:
        names: The names of all splits. Splits with a share are first.
        num_shares: The number of splits with a share.
        division: A summary of the resulting splits.
        splits: The index of each input's split in `names`, uint8 [num_inputs], in the order of `SplitFacts`.
    """

    names: tuple[str, ...]
    num_shares: int
    division: Division
    splits: np.ndarray


def plan_splits(facts: SplitFacts, spec: SplitSpec, spool: SpoolReader) -> SplitPlan:
    """Determines the split of each input.

    Args:
        facts: The facts about all inputs.
        spec: The options and the run.
        spool: Reads the keys of inputs whose hashes are equal.

    Raises:
        UserError: The inputs cannot be divided as requested.
    """
    _check_earlier(facts, spec)
    planner = _Planner(facts, spec)
    return planner.plan_strata(spool) if spec.stratify else planner.plan_hashes()


def check_names(plan: SplitPlan, listing: Listing, spec: SplitSpec) -> None:
    """Raises `UserError` if an earlier dataset contains a split that this run does not have."""
    if others := sorted(set(plan.names[plan.num_shares :]).difference(listing.splits)):
        raise UserError(
            f"{_shown(spec)} has inputs in {', '.join(others)}, but the splits are {', '.join(listing.splits)}. Add "
            "a share for "
            "each of its splits to --splits."
        )


def _shown(spec: SplitSpec) -> str:
    return f"--splits_from={printable(spec.splits_from or '')}"


def _check_earlier(facts: SplitFacts, spec: SplitSpec) -> None:
    unclear = facts.in_two_splits
    if unclear.num:
        raise UserError(
            f"{_shown(spec)}: conflicting splits for {unclear.num:,} inputs: {unclear.describe()}. Name one split "
            "for each input."
        )
    if spec.splits_from and not facts.num_kept:
        raise UserError(
            f"{_shown(spec)} has none of the keys of the inputs. Give a dataset that was prepared from some of these "
            "inputs."
        )


class _Planner:
    """Determines the splits from the facts about all inputs.

    Attributes:
        names: The names of all splits. Splits with a share are first.
        followers: A mapping from the index of a group to the index of its split, if some inputs of the group already
            have that split. The rest of the group follows.
    """

    def __init__(self, facts: SplitFacts, spec: SplitSpec) -> None:
        self._facts, self._spec = facts, spec
        self._shares = spec.shares
        self._scale = math.lcm(*(share.denominator for share in self._shares.values()))
        known_names = [facts.splits[index] for index in np.unique(facts.split[facts.is_known]).tolist()]
        self.names = (*self._shares, *(name for name in known_names if name not in self._shares))
        if len(self.names) > MAX_SPLITS:
            raise UserError(f"there would be {len(self.names):,} splits. At most {MAX_SPLITS} are allowed.")
        is_grouped = facts.group != NO_GROUP
        columns = (facts.group, facts.stratum, facts.split, facts.is_known)
        self._grouped = count_rows([column[is_grouped] for column in columns])
        self.followers = self._find_followers()
        open_rows = self._grouped[(self._grouped[:, 3] == 0) & ~np.isin(self._grouped[:, 0], [*self.followers])]
        self._open = count_rows([open_rows[:, 0], open_rows[:, 1]], open_rows[:, 4])  # Columns: group, stratum, number.

    def plan_hashes(self) -> SplitPlan:
        """Creates a plan in which a hash of the group determines the split.

        If some inputs of a group already have a split, the rest of the group gets the same split.
        """
        facts, bounds = self._facts, hash_bounds(self._shares)
        division = Division((), self._shares, {}, facts.num_kept)
        if len(facts.groups) and (self._singles.any() or len(self._open)):
            groups, sizes = facts.groups.to_pylist(), np.bincount(facts.group[facts.group != NO_GROUP])
            indices = np.searchsorted(bounds, split_hashes(groups), side="right")
            indices[[*self.followers]] = [*self.followers.values()]
            division = dataclasses.replace(division, num_groups=len(groups), largest=largest_groups(self.names, groups, sizes, indices))
        return self._make_plan(np.searchsorted(bounds, facts.hash, side="right"), self.followers, division)

    def plan_strata(self, spool: SpoolReader) -> SplitPlan:
        """Creates a plan for stratified splits, in which each split gets the requested fraction of each stratum."""
        parts = [int(share * self._scale) for share in self._shares.values()]
        placed = [row for row in self._placed() if row[1] < len(parts)]
        totals = self._singles + np.bincount(self._open[:, 1], self._open[:, 2], len(self._facts.strata)).astype(np.int64)
        for stratum, _, num in placed:
            totals[stratum] += num
        needs = Needs(totals.tolist(), parts, self._scale)
        for row in placed:
            needs.take(*row)
        numbers, groups = self._open_groups()
        of_groups = dict(zip(numbers, assign_groups(groups, needs)))
        nums = apportion(self._singles.tolist(), needs.of_strata, self._scale)
        for stratum, of_stratum in enumerate(nums):
            for split, num in enumerate(of_stratum):
                needs.take(stratum, split, num)
        division = self._describe(totals, parts, needs)
        splits = np.zeros(len(self._facts.hash), np.uint8)
        splits[self._sort_singles(spool)] = np.repeat(np.tile(np.arange(len(parts), dtype=np.uint8), len(nums)), np.ravel(nums))
        return self._make_plan(splits, {**self.followers, **of_groups}, division)

    def _make_plan(self, splits: np.ndarray, of_groups: dict[int, int], division: Division) -> SplitPlan:
        """Creates a plan.

        Args:
            splits: The split of each input that has neither a known split nor a group in `of_groups`.
            of_groups: A mapping from the index of a group to the index of its split.
            division: A summary of the resulting splits.
        """
        facts, splits = self._facts, splits.astype(np.uint8)
        group_splits = np.full(len(facts.groups) + 1, -1)  # The last element is for inputs without a group.
        group_splits[[*of_groups]] = [*of_groups.values()]
        follows = group_splits[np.minimum(facts.group, len(facts.groups))]
        np.copyto(splits, follows, where=follows >= 0, casting="unsafe")
        known_splits = np.array([self.names.index(name) if name in self.names else 0 for name in facts.splits] or [0])
        np.copyto(splits, known_splits[facts.split], where=facts.is_known, casting="unsafe")
        return SplitPlan(self.names, len(self._shares), division, splits)

    def _sort_singles(self, spool: SpoolReader) -> np.ndarray:
        """Returns the indices of the inputs without a group and without a split, ordered by stratum, hash and key."""
        facts = self._facts
        singles = np.flatnonzero(facts.is_single)
        hashes, strata = facts.hash[singles], facts.stratum[singles]
        order = np.lexsort((hashes, strata))
        sorted_hashes = hashes[order]
        equals_next = sorted_hashes[1:] == sorted_hashes[:-1]
        if equals_next.any():
            tied = np.sort(order[np.append(equals_next, False) | np.append(False, equals_next)])
            ranks = np.zeros(len(singles), np.int64)
            ranks[tied] = pc.rank(facts.read_keys(singles[tied], spool)).to_numpy()
            order = np.lexsort((ranks, hashes, strata))
        return singles[order]

    @functools.cached_property
    def _singles(self) -> np.ndarray:
        """The number of inputs without a group and without a split in each stratum, int64 [num_strata]."""
        return np.bincount(self._facts.stratum[self._facts.is_single], minlength=len(self._facts.strata))

    def _find_followers(self) -> dict[int, int]:
        facts, names, grouped = self._facts, self.names, self._grouped
        followers: dict[int, int] = {}
        spanning: dict[int, set[str]] = {}
        for group, split_number in np.unique(grouped[grouped[:, 3] == 1][:, [0, 2]], axis=0).tolist():
            split = names.index(facts.splits[split_number])
            if followers.setdefault(group, split) != split:
                spanning.setdefault(group, {names[followers[group]]}).add(names[split])
        divided = grouped[(grouped[:, 3] == 0) & np.isin(grouped[:, 0], [*followers])]
        for group, split_number in np.unique(divided[:, [0, 2]], axis=0).tolist():
            # Inputs of a split that `--divide` divides can only go to splits with a share.
            if facts.splits[split_number] and followers[group] >= len(self._shares):
                spanning.setdefault(group, {names[followers[group]]}).add(facts.splits[split_number])
        if spanning:
            first = min(spanning)
            raise spanning_groups(len(spanning), facts.groups[first].as_py().decode(), spanning[first])
        return followers

    def _placed(self) -> Iterator[tuple[int, int, int]]:
        """Yields (stratum, split, number of inputs) for the inputs that have a known split, or whose group has one."""
        facts = self._facts
        codes = facts.stratum[facts.is_known].astype(np.int64) * len(facts.splits) + facts.split[facts.is_known]
        nums = np.bincount(codes, minlength=1)
        for code in np.flatnonzero(nums).tolist():
            stratum, split_number = divmod(code, len(facts.splits))
            yield stratum, self.names.index(facts.splits[split_number]), int(nums[code])
        for group, stratum, _, is_known, num in self._grouped[np.isin(self._grouped[:, 0], [*self.followers])].tolist():
            if not is_known:
                yield stratum, self.followers[group], num

    def _open_groups(self) -> tuple[list[int], Iterator[WaitingGroup]]:
        """Returns the indices of the groups without a known split, and the groups themselves, largest group first."""
        numbers, starts = np.unique(self._open[:, 0], return_index=True)
        stops = np.append(starts[1:], len(self._open))
        names = self._facts.groups.take(pa.array(numbers, pa.int64())).to_pylist()
        sizes = np.add.reduceat(self._open[:, 2], starts) if len(starts) else starts
        order = np.lexsort((numbers, split_hashes(names), -sizes)).tolist()  # The numbers are in the order of names.
        rows = self._open[:, 1:]
        groups = (WaitingGroup(names[index], rows[starts[index] : stops[index]].tolist()) for index in order)
        return numbers[order].tolist(), groups

    def _describe(self, totals: np.ndarray, parts: Sequence[int], needs: Needs) -> Division:
        """Returns a summary of the resulting splits.

        Raises:
            UserError: A split is empty.
        """
        facts, shares = self._facts, self._shares
        num_groups = len(np.unique(self._open[:, 0]))
        lacks = np.array(needs.of_strata, object).reshape(-1, len(parts))
        reached = [(int(totals.sum()) * part - int(sum(lacks[:, split]))) // self._scale for split, part in enumerate(parts)]
        for split, num in zip(shares, reached):
            if not num and num_groups:
                largest = max(np.add.reduceat(self._open[:, 2], np.unique(self._open[:, 0], return_index=True)[1]).tolist())
                raise UserError(
                    f"split {split!r} would be empty: no group fits into its share. Inputs: {sum(reached):,}, groups: "
                    f"{num_groups:,}, inputs of the largest group: {largest:,}. {SPLIT_ADVICE} Or use smaller groups."
                )
            if not num:
                raise empty_split(split, sum(reached))
        units = self._singles + np.bincount(self._open[:, 1], minlength=len(facts.strata))
        for stratum, _, num in self._placed():
            units[stratum] += num
        small = np.flatnonzero((units < len(parts)) & (totals > 0)).tolist()
        first_small, num_first_small = "", 0
        lacking: list[str] = []
        if small:
            first = small[0]
            first_small, num_first_small = facts.strata[first].decode(), int(units[first])
            lacking = [split for split, part, need in zip(shares, parts, needs.of_strata[first]) if need == int(totals[first]) * part]
        return Division(
            by=self._spec.stratify,
            shares=shares,
            num_inputs=dict(zip(shares, reached)),
            num_kept=facts.num_kept,
            num_groups=num_groups,
            num_strata=int(np.count_nonzero(totals)),
            num_small=len(small),
            first_small=first_small,
            num_first_small=num_first_small,
            splits_without_first_small=tuple(lacking),
            excess=self._find_excess(totals, parts, needs),
        )

    def _find_excess(self, totals: np.ndarray, parts: Sequence[int], needs: Needs) -> Excess | None:
        least, stratum, split = min((need, stratum, split) for stratum, row in enumerate(needs.of_strata) for split, need in enumerate(row))
        if least > -self._scale:
            return None
        target = Fraction(int(totals[stratum]) * parts[split], self._scale)
        group, num = needs.crossings.get((stratum, split), (b"", 0))
        name = self._facts.strata[stratum].decode()
        return Excess(name, tuple(self._shares)[split], int(target - Fraction(least, self._scale)), target, group.decode(), num)
