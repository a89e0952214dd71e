"""Tests that no group is divided between splits, and that the sizes of splits are close to the requested fractions."""

from hypothesis import given
from hypothesis import strategies as st

from beam_pipelines.splits.group_assignment import Needs, WaitingGroup, assign_groups

SIZES = st.lists(st.integers(1, 30), min_size=1, max_size=40)


def assign(sizes: list[int], shares: list[int]) -> list[int]:
    """Assigns the groups of one stratum to splits and returns the number of inputs in each split."""
    needs = Needs([sum(sizes)], shares, sum(shares))
    placed = assign_groups((WaitingGroup(b"%d" % index, [(0, size)]) for index, size in enumerate(sorted(sizes, reverse=True))), needs)
    pairs = list(zip(sorted(sizes, reverse=True), placed))
    totals = [sum(size for size, split in pairs if split == item) for item in range(len(shares))]
    assert needs.of_strata == [[sum(sizes) * share - sum(shares) * num for share, num in zip(shares, totals)]]
    return totals


@given(SIZES, st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_split_exceeds_its_share_by_less_than_one_group(sizes, shares):
    totals = assign(sizes, shares)
    for num, share in zip(totals, shares, strict=True):
        assert num * sum(shares) < sum(sizes) * share + max(sizes) * sum(shares)


def test_equal_groups_give_equal_folds():
    assert assign([7] * 20, [1] * 5) == [28] * 5
    assert assign([1] * 100, [8, 1, 1]) == [80, 10, 10]


def test_strata_are_balanced_separately():
    needs = Needs([60, 60], [1, 1], 2)
    groups = [WaitingGroup(b"%d" % index, [(index % 2, 10)]) for index in range(12)]
    placed = assign_groups(groups, needs)
    assert needs.of_strata == [[0, 0], [0, 0]] and needs.crossings == {} and len(placed) == 12


def test_group_that_exceeds_a_share_is_recorded():
    needs = Needs([100], [9, 1], 10)
    assert assign_groups([WaitingGroup(b"large", [(0, 96)]), WaitingGroup(b"small", [(0, 4)])], needs) == [0, 1]
    assert needs.crossings == {(0, 0): (b"large", 96)}
