"""The order of an epoch: a permutation, of which any part can be computed alone, and which is the same for any number of hosts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tf_input.epochs.order import epoch_key, permuted
from tf_input.epochs.runs import cut_runs
from tf_input.epochs.share import PADDING, Share
from tf_input.epochs.windows import NUM_LANES, WindowOrder
from tf_input.pipeline.inputs import run_bytes, window_bytes

SHARDS = st.lists(st.tuples(st.integers(0, 300), st.integers(20, 200)), min_size=1, max_size=9)  # records, and bytes of each


def window_order(shards: list[tuple[int, int]], run: int, window: int, key: int | None) -> WindowOrder:
    return WindowOrder(cut_runs([count for count, _ in shards], [count * each for count, each in shards], run), window, key)


def numbers(order: WindowOrder) -> list[int]:
    """The records of an epoch, window by window, numbered through it as its runs lie one after the other."""
    actual = []
    for window in map(order.window, range(order.num_windows)):
        assert (order.windows_of(np.arange(window.start, window.start + window.count)) == window.index).all()
        actual += (window.start + order.mix(window)).tolist()
    return actual


@settings(max_examples=100)
@given(SHARDS, st.integers(1, 20_000))
def test_runs_are_all_of_the_shards_and_about_equal(shards, length):
    counts, num_bytes = [count for count, _ in shards], [count * each for count, each in shards]
    runs = cut_runs(counts, num_bytes, length)
    assert np.concatenate([[], *(np.arange(first, first + count) for first, count in zip(runs.starts, runs.counts))]).tolist() == list(
        range(sum(counts))
    )
    for shard, (count, size) in enumerate(zip(counts, num_bytes)):
        of_shard = runs.counts[runs.shards == shard]
        assert of_shard.sum() == count and (not count or of_shard.max() - of_shard.min() <= 1)
        assert len(of_shard) == min(count, max(1 if count else 0, (size + length // 2) // length))


@settings(max_examples=60)
@given(SHARDS, st.integers(1, 20_000), st.integers(1, 60_000), st.one_of(st.none(), st.integers(0, 2**63 - 1)))
def test_every_epoch_has_every_record_once(shards, run, window, key):
    actual = numbers(window_order(shards, run, window, key))
    total = sum(count for count, _ in shards)
    assert sorted(actual) == list(range(total)) and (key is not None or actual == list(range(total)))


@pytest.mark.slow(4)
@settings(max_examples=40)
@given(SHARDS, st.integers(500, 20_000), st.integers(2_000, 60_000), st.integers(0, 2**63 - 1), st.integers(1, 70))
def test_hosts_read_what_they_need_and_for_divisors_of_the_lanes_each_record_once(shards, run, window_length, key, num_hosts):
    order = window_order(shards, run, window_length, key)
    for window in map(order.window, range(order.num_windows)):
        mixed, read = order.mix(window), []
        for index in range(num_hosts):
            chunks = order.slices(window, (num_hosts, index))
            cached = {record for first, stop in chunks for record in range(first, stop)}
            assert cached.issuperset(mixed[(index - window.start) % num_hosts :: num_hosts].tolist())
            read += cached
        if NUM_LANES % num_hosts == 0 and order.num_windows > 1:
            assert len(read) == window.count


def test_of_many_hosts_each_reads_one_stretch_of_a_window():
    order = window_order([(1200, 110_000)] * 64, 16 << 20, 112 << 20, 7)
    for num_hosts in (1, 2, 4, 8, 16):
        for index in range(num_hosts):
            assert len(order.slices(order.window(9), (num_hosts, index))) == 1
    assert max(len(order.slices(order.window(9), (num_hosts, 1))) for num_hosts in (3, 6, 12, 24, 32, 48, 64)) <= 16


def test_an_epoch_begins_with_small_windows():
    order = window_order([(1200, 110_000)] * 64, 16 << 20, 112 << 20, 7)
    sizes = [order.window(index).count for index in range(order.num_windows)]
    assert sizes[0] <= sizes[4] / 3 and sizes[0] <= sizes[2] < sizes[4] and len(set(sizes[4:-1])) <= 3


@pytest.mark.parametrize("size", [500, 2000])
def test_an_exact_order_is_as_a_random_one_would_be(size):
    """Sorted by label, as raw data are: it mixes them like a fair deck."""
    epochs, labels = 30, np.arange(size) * 10 // size
    check_mixed([permuted(epoch_key(0, epoch), np.arange(size), size) for epoch in range(epochs)], labels)


def test_one_window_is_a_random_permutation_too():
    labels = np.arange(2000) * 10 // 2000
    orders = [window_order([(2000, 50)], 1 << 20, 1 << 20, epoch_key(0, epoch)) for epoch in range(30)]
    check_mixed([order.mix(order.window(0)) for order in orders], labels)


def check_mixed(orders: list[np.ndarray], labels: np.ndarray) -> None:
    size, epochs = len(labels), len(orders)
    runs, correlations, indices = [], [], np.zeros((epochs, size))
    for epoch, order in enumerate(orders):
        runs.append(size / (1 + np.count_nonzero(np.diff(labels[order]))))
        correlations.append(np.corrcoef(order, np.arange(size))[0, 1])
        indices[epoch, order] = np.arange(size)
    assert np.mean(runs) == pytest.approx(1.11, abs=0.02)
    assert abs(np.mean(correlations)) < 4 / np.sqrt(size * epochs)
    # Where a record comes in one epoch says nothing of where it comes in another.
    assert np.abs(np.corrcoef(indices)[~np.eye(epochs, dtype=bool)]).max() < 6 / np.sqrt(size)


def test_windows_mix_their_runs_and_have_others_in_each_epoch():
    shards, seen = [(1000, 100)] * 16, []
    for epoch in range(2):
        order = window_order(shards, 10_000, 200_000, epoch_key(0, epoch))
        windows = [order.window(index) for index in range(order.num_windows)]
        seen.append({frozenset(window.runs.tolist()) for window in windows})
        mixed = order.mix(windows[4])
        labels = np.searchsorted(windows[4].run_starts, mixed, side="right")  # the run of each
        assert len(set(labels[:100].tolist())) == len(windows[4].runs) and np.count_nonzero(np.diff(labels) == 0) < 0.1 * len(mixed)
        assert abs(np.corrcoef(mixed, np.arange(len(mixed)))[0, 1]) < 0.1
    assert not seen[0] & seen[1]


@settings(max_examples=60)
@given(st.integers(1, 700), st.integers(0, 2**63 - 1), st.data())
def test_any_part_of_an_exact_order_is_computed_alone(size, key, data):
    complete = permuted(key, np.arange(size), size)
    assert sorted(complete.tolist()) == list(range(size))
    indices = np.array(data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=20)))
    np.testing.assert_array_equal(permuted(key, indices, size), complete[indices])


def test_epochs_and_seeds_differ():
    keys = [epoch_key(seed, epoch) for epoch in range(4) for seed in range(-2, 3)]
    assert len(set(keys)) == 20
    assert len({tuple(permuted(key, np.arange(500), 500).tolist()) for key in keys}) == 20
    assert len({tuple(numbers(window_order([(500, 10)], 800, 4000, key))) for key in keys}) == 20


@settings(max_examples=100)
@given(st.integers(1, 200), st.integers(1, 20), st.integers(1, 9), st.booleans())
def test_hosts_have_equal_parts_of_the_batches_of_one(num_examples, local_size, num_hosts, drops):
    batch_size = local_size * num_hosts
    if drops and num_examples < batch_size:
        return
    alone = Share("train", num_examples, batch_size, drops)
    shares = [Share("train", num_examples, batch_size, drops, (num_hosts, index)) for index in range(num_hosts)]
    assert {share.num_batches for share in shares} == {alone.num_batches}
    for step in range(alone.num_batches):
        (expected, indices), parts = alone.rows(step), [share.rows(step) for share in shares]
        assert len({len(rows) for rows, _ in parts}) == 1
        assert sorted(row for rows, _ in parts for row in rows.tolist() if row != PADDING) == expected.tolist()
        assert sorted(np.concatenate([item for _, item in parts]).tolist()) == indices.tolist()
        has_padding = any(PADDING in rows for rows, _ in parts)
        assert not has_padding or (alone.num_batches - 1 == step and shares[0].has_padding)


def test_what_hosts_can_t_share_is_refused():
    with pytest.raises(ValueError, match="batch_size=100 .* 3 hosts.* such as 99"):
        Share("train", 1000, 100, False, (3, 0))
    with pytest.raises(ValueError, match="batch_size=2 .* such as 4"):
        Share("train", 1000, 2, False, (4, 0))
    with pytest.raises(ValueError, match="train has no readable example"):
        Share("train", 0, 8, False)
    with pytest.raises(ValueError, match="drop_remainder leaves no batch of 8: train has 7 examples"):
        Share("train", 7, 8, True)


@pytest.mark.parametrize("read_buffer", [1, 1000, 1 << 20, 40 << 20, 256 << 20, 1 << 30, 64 << 30])
def test_two_windows_are_what_the_buffer_holds(read_buffer):
    run, window = run_bytes(read_buffer), window_bytes(read_buffer)
    assert run >= 1 and window >= 1 and (read_buffer < 8 or 2 * (window + run) <= read_buffer)
    assert run <= 64 << 20 and (run >= 8 << 20 or read_buffer < 32 << 20)


def test_orders_are_what_they_were():
    """A training that goes on with a newer version reads the batches that it would have read."""
    assert epoch_key(0, 0) == 1_576_848_291_327_681_832
    assert permuted(epoch_key(0, 0), np.arange(10), 10).tolist() == [5, 6, 0, 9, 3, 2, 8, 1, 7, 4]
    assert permuted(epoch_key(0, 0), np.arange(5), 70_000).tolist() == [4943, 44948, 41676, 1145, 47649]
    order = window_order([(10, 100)] * 40, 1000, 10_000, epoch_key(0, 0))
    assert order.window(0).runs.tolist() == [2, 1] and numbers(order)[:10] == [13, 2, 15, 6, 11, 1, 18, 8, 14, 4]
