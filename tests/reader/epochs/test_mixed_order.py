"""Tests that a mixture follows the weights of its datasets at every index, and that hosts read disjoint examples."""

import functools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tf_input.epochs.mixed_order import MixedOrder, count_components, epoch_length, find_indices, component_seed, to_weights
from tf_input.epochs.runs import cut_runs
from tf_input.epochs.windows import NUM_VIRTUAL_SHARDS, WindowOrder

WEIGHTS = st.lists(st.one_of(st.integers(1, 20), st.integers(1, 10**8)), min_size=1, max_size=9).map(tuple)


@settings(max_examples=100)
@given(WEIGHTS, st.one_of(st.integers(0, 300), st.integers(0, 2**50)))
def test_component_counts_are_proportional_to_weights_at_every_index(weights, start):
    """The number of examples from each of two datasets differs from the exact proportion by at most 0.5."""
    indices = np.arange(start, start + 200)
    counts = count_components(weights, indices)
    assert (counts.sum(axis=0) == indices).all() and set(np.diff(counts).ravel().tolist()) <= {0, 1}
    error = max(
        abs(count - Fraction(index * weight, sum(weights))) for weight, part_counts in zip(weights, counts.tolist())
        for index, count in zip(indices.tolist(), part_counts)
    )
    assert error <= Fraction(math.ceil(math.log2(len(weights))), 2)
    for part, part_counts in enumerate(counts):
        numbers = np.unique(part_counts)[:-1]
        actual = find_indices(weights, part, numbers)
        assert (count_components(weights, actual)[part] == numbers).all() and (
            count_components(weights, actual + 1)[part] == numbers + 1
        ).all()


@settings(max_examples=60)
@given(WEIGHTS, st.data())
def test_epoch_length_ends_with_the_first_or_last_component(weights, data):
    sizes = [data.draw(st.integers(1, 1000)) for _ in weights]
    first, last = (epoch_length(weights, sizes, stop) for stop in ("first", "all"))
    component_counts = {end: count_components(weights, np.array([end - 1, end])).T.tolist() for end in (first, last)}
    read = [
        [count >= size for count, size in zip(counts, sizes)] for end in (first, last)
        for counts in component_counts[end]
    ]
    assert [any(flags) for flags in read[:2]] == [False, True] and [all(flags) for flags in read[2:]] == [False, True]
    assert all(count <= size for count, size in zip(component_counts[first][1], sizes))
    # If the weights are proportional to the sizes, each example is read exactly once.
    total = sum(sizes)
    by_size = to_weights([Fraction(size) for size in sizes])
    assert epoch_length(by_size, sizes, "all") == total and count_components(by_size, np.array([total]))[:, 0].tolist() == sizes


@settings(max_examples=60)
@given(WEIGHTS, st.integers(1, 60), st.integers(1, 6), st.integers(1, 200), st.integers(0, 3))
def test_hosts_divide_the_slots_of_each_batch(weights, local_size, num_hosts, num_examples, epoch):
    batch_size = local_size * num_hosts
    order = MixedOrder(weights, tuple(range(7, 7 + len(weights))), batch_size, num_examples)
    assume(all(order.counts))
    seen = [[] for _ in weights]
    for step in range(math.ceil(num_examples / batch_size)):
        size, hosts = order.size(step), [order.slots(step, (num_hosts, index)) for index in range(num_hosts)]
        alone = order.slots(step, (1, 0))
        assert sorted(row for rows, _ in alone for row in rows.tolist()) == list(range(size))
        for part, (rows, numbers) in enumerate(alone):
            seen[part] += numbers.tolist()
            host_rows = [rows_by_part[part] for rows_by_part in hosts]
            expected = sorted(zip(rows.tolist(), numbers.tolist()))
            assert sorted(item for own, own_numbers in host_rows for item in zip(own.tolist(), own_numbers.tolist())) == expected
            for index, (own, _) in enumerate(host_rows):
                assert ((step * batch_size + own) % num_hosts == index).all()
                assert size < batch_size or len(rows) // num_hosts <= len(own) <= -(-len(rows) // num_hosts)
            for own_epoch, index, row in zip(*map(np.ndarray.tolist, order.component_indices(part, epoch, numbers)), rows.tolist()):
                assert order.virtual_shards(part, own_epoch, np.array([index])).tolist() == [(step * batch_size + row) % NUM_VIRTUAL_SHARDS]
    assert [sorted(numbers) for numbers in seen] == [list(range(count)) for count in order.counts]


@pytest.mark.parametrize("batch_size", [32, 96, 128, 1000])
def test_each_part_of_a_batch_has_proportional_shares(batch_size):
    """Each replica receives a contiguous slice of the batch."""
    order = MixedOrder((7, 3), (1000, 1000), batch_size, 10 * batch_size)
    for step in range(10):
        parts = np.zeros(batch_size)
        parts[order.slots(step, (1, 0))[1][0]] = 1
        for chunk in np.split(parts, 4 if batch_size % 4 == 0 else 2):
            assert abs(chunk.sum() - 0.3 * len(chunk)) < 3


@settings(max_examples=30)
@given(st.integers(500, 3000), st.integers(2_000, 60_000), st.integers(0, 2**63 - 1), st.sampled_from([2, 3, 4, 6, 8]), st.integers(0, 5))
def test_hosts_read_disjoint_records_of_each_component(size, window_length, key, num_hosts, own_epoch):
    sizes, batch_size = (size, 700), 8 * num_hosts
    weights = (5, 2)
    mixed = MixedOrder(weights, sizes, batch_size, epoch_length(weights, sizes, "all"))
    order = WindowOrder(cut_runs([size], [size * 50], 1000), window_length, key, functools.partial(mixed.virtual_shards, 0, own_epoch))
    for window in map(order.window, range(order.num_windows)):
        indices = window.start + np.arange(window.count)
        virtual_shards, records, read = mixed.virtual_shards(0, own_epoch, indices), order.mix(window), []
        assert sorted(records.tolist()) == list(range(window.count))
        for index in range(num_hosts):
            cached = {record for first, stop in order.slices(window, (num_hosts, index)) for record in range(first, stop)}
            assert cached.issuperset(records[virtual_shards % num_hosts == index].tolist())
            read += cached
        assert order.num_windows == 1 or len(read) == window.count


def test_shares_are_converted_to_integer_weights():
    cases = [
        (["0.7", "0.3"], (7, 3)),
        (["93", "17"], (93, 17)),
        (["0.5", "0.25", "1/4"], (2, 1, 1)),
        (["1e-6", "1"], (1, 1_000_000)),
        (["1e-15", "1"], (1, (1 << 30) - 3)),
    ]
    for shares, weights in cases:
        assert to_weights([Fraction(share) for share in shares]) == weights, shares


def test_order_is_the_same_as_in_earlier_versions():
    """A training run that resumes with a newer version of the library must read the same batches."""
    order = MixedOrder((7, 3), (20, 9), 8, 28)
    assert order.counts == (20, 8)
    assert [rows.tolist() for rows, _ in order.slots(1, (1, 0))] == [[1, 6, 3, 0, 5], [2, 7, 4]]
    assert component_seed(0, "photos") == 8_470_672_113_106_065_116
