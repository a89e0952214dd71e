"""Tests that the sizes of splits are as close to the requested fractions as possible, in each stratum and in total."""

from hypothesis import given
from hypothesis import strategies as st

from beam_pipelines.splits.apportion import apportion

WEIGHTS = st.lists(st.integers(1, 9), min_size=1, max_size=5)
NUMS = st.lists(st.one_of(st.integers(0, 4), st.integers(0, 10**6)), max_size=12)


@given(NUMS, WEIGHTS)
def test_each_stratum_and_each_split_is_less_than_one_from_its_share(nums, weights):
    scale = sum(weights)
    dealt = apportion(nums, [[num * weight for weight in weights] for num in nums], scale)
    assert [sum(row) for row in dealt] == nums
    assert all(abs(count * scale - num * weight) < scale for num, row in zip(nums, dealt) for count, weight in zip(row, weights))
    assert all(abs(sum(column) * scale - sum(nums) * weight) < scale for column, weight in zip(zip(*dealt), weights))


@given(st.lists(st.integers(-50, 50), min_size=2, max_size=5).filter(lambda needs: sum(needs) >= 0))
def test_split_above_its_share_gets_nothing(needs):
    (row,) = apportion([sum(needs)], [[need * 10 for need in needs]], 10)
    assert sum(row) == sum(needs)
    assert all(0 <= count <= max(need, 0) for count, need in zip(row, needs))
