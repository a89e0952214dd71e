"""Tests that the order of an epoch is a permutation that does not depend on the number of hosts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tf_input.epochs.order import epoch_key, permuted
from tf_input.epochs.runs import cut_runs
from tf_input.epochs.share import PADDING, Share
from tf_input.epochs.windows import NUM_VIRTUAL_SHARDS, WindowOrder
from tf_input.pipeline.inputs import run_bytes, window_bytes

# numbers of records, and bytes per record
SHARDS = st.lists(st.tuples(st.integers(0, 300), st.integers(20, 200)), min_size=1, max_size=9)


def window_order(shards: list[tuple[int, int]], run: int, window: int, key: int | None) -> WindowOrder:
    return WindowOrder(cut_runs([count for count, _ in shards], [count * each for count, each in shards], run), window, key)


def record_numbers(order: WindowOrder) -> list[int]:
    """Returns the record numbers of each shuffle window of an epoch."""
    actual = []
    for window in map(order.window, range(order.num_windows)):
        assert (order.windows_of(np.arange(window.start, window.start + window.count)) == window.index).all()
        actual += (window.start + order.mix(window)).tolist()
    return actual


@settings(max_examples=100)
@given(SHARDS, st.integers(1, 20_000))
def test_chunks_cover_the_shards_and_have_similar_sizes(files, length):
    counts, num_bytes = [count for count, _ in files], [count * each for count, each in files]
    runs = cut_runs(counts, num_bytes, length)
    assert np.concatenate([[], *(np.arange(first, first + count) for first, count in zip(runs.starts, runs.counts))]).tolist() == list(
        range(sum(counts))
    )
    shards = np.searchsorted(np.cumsum(counts), runs.starts, side="right")
    for shard, (count, size) in enumerate(zip(counts, num_bytes)):
        chunk_counts = runs.counts[shards == shard]
        assert chunk_counts.sum() == count and (not count or chunk_counts.max() - chunk_counts.min() <= 1)
        assert len(chunk_counts) == min(count, max(1 if count else 0, (size + length // 2) // length))


@settings(max_examples=60)
@given(SHARDS, st.integers(1, 20_000), st.integers(1, 60_000), st.one_of(st.none(), st.integers(0, 2**63 - 1)))
def test_every_epoch_reads_every_record_once(shards, run, window, key):
    actual = record_numbers(window_order(shards, run, window, key))
    total = sum(count for count, _ in shards)
    assert sorted(actual) == list(range(total)) and (key is not None or actual == list(range(total)))


@pytest.mark.slow(4)
@settings(max_examples=40)
@given(SHARDS, st.integers(500, 20_000), st.integers(2_000, 60_000), st.integers(0, 2**63 - 1), st.integers(1, 70))
def test_hosts_read_records_once_if_they_divide_the_virtual_shards(shards, run, window_length, key, num_hosts):
    order = window_order(shards, run, window_length, key)
    for window in map(order.window, range(order.num_windows)):
        mixed, read = order.mix(window), []
        for index in range(num_hosts):
            chunks = order.slices(window, (num_hosts, index))
            cached = {record for first, stop in chunks for record in range(first, stop)}
            assert cached.issuperset(mixed[(index - window.start) % num_hosts :: num_hosts].tolist())
            read += cached
        if NUM_VIRTUAL_SHARDS % num_hosts == 0 and order.num_windows > 1:
            assert len(read) == window.count


def test_each_host_reads_few_byte_ranges_of_a_window():
    order = window_order([(1200, 110_000)] * 64, 16 << 20, 112 << 20, 7)
    for num_hosts in (1, 2, 4, 8, 16):
        for index in range(num_hosts):
            assert len(order.slices(order.window(9), (num_hosts, index))) == 1
    assert max(len(order.slices(order.window(9), (num_hosts, 1))) for num_hosts in (3, 6, 12, 24, 32, 48, 64)) <= 16


def test_epoch_starts_with_small_windows():
    order = window_order([(1200, 110_000)] * 64, 16 << 20, 112 << 20, 7)
    sizes = [order.window(index).count for index in range(order.num_windows)]
    assert sizes[0] <= sizes[4] / 3 and sizes[0] <= sizes[2] < sizes[4] and len(set(sizes[4:-1])) <= 3


@pytest.mark.parametrize("size", [500, 2000])
def test_exact_order_is_statistically_random(size):
    """The exact order mixes records that were sorted by label as thoroughly as a random permutation."""
    epochs, labels = 30, np.arange(size) * 10 // size
    check_random([permuted(epoch_key(0, epoch), np.arange(size), size) for epoch in range(epochs)], labels)


def test_single_window_is_statistically_random():
    labels = np.arange(2000) * 10 // 2000
    orders = [window_order([(2000, 50)], 1 << 20, 1 << 20, epoch_key(0, epoch)) for epoch in range(30)]
    check_random([order.mix(order.window(0)) for order in orders], labels)


def check_random(orders: list[np.ndarray], labels: np.ndarray) -> None:
    size, epochs = len(labels), len(orders)
    runs, correlations, indices = [], [], np.zeros((epochs, size))
    for epoch, order in enumerate(orders):
        runs.append(size / (1 + np.count_nonzero(np.diff(labels[order]))))
        correlations.append(np.corrcoef(order, np.arange(size))[0, 1])
        indices[epoch, order] = np.arange(size)
    assert np.mean(runs) == pytest.approx(1.11, abs=0.02)
    assert abs(np.mean(correlations)) < 4 / np.sqrt(size * epochs)
    # The indices of a record in different epochs are not correlated.
    assert np.abs(np.corrcoef(indices)[~np.eye(epochs, dtype=bool)]).max() < 6 / np.sqrt(size)


def test_windows_mix_different_chunks_in_each_epoch():
    shards, seen = [(1000, 100)] * 16, []
    for epoch in range(2):
        order = window_order(shards, 10_000, 200_000, epoch_key(0, epoch))
        windows = [order.window(index) for index in range(order.num_windows)]
        seen.append({frozenset(window.runs.tolist()) for window in windows})
        mixed = order.mix(windows[4])
        labels = np.searchsorted(windows[4].run_starts, mixed, side="right")  # the chunk of each record
        assert len(set(labels[:100].tolist())) == len(windows[4].runs) and np.count_nonzero(np.diff(labels) == 0) < 0.1 * len(mixed)
        assert abs(np.corrcoef(mixed, np.arange(len(mixed)))[0, 1]) < 0.1
    assert not seen[0] & seen[1]


@settings(max_examples=60)
@given(st.integers(1, 700), st.integers(0, 2**63 - 1), st.data())
def test_any_part_of_an_exact_order_can_be_computed_alone(size, key, data):
    complete = permuted(key, np.arange(size), size)
    assert sorted(complete.tolist()) == list(range(size))
    indices = np.array(data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=20)))
    np.testing.assert_array_equal(permuted(key, indices, size), complete[indices])


def test_orders_differ_by_epoch_and_seed():
    keys = [epoch_key(seed, epoch) for epoch in range(4) for seed in range(-2, 3)]
    assert len(set(keys)) == 20
    assert len({tuple(permuted(key, np.arange(500), 500).tolist()) for key in keys}) == 20
    assert len({tuple(record_numbers(window_order([(500, 10)], 800, 4000, key))) for key in keys}) == 20


@settings(max_examples=100)
@given(st.integers(1, 200), st.integers(1, 20), st.integers(1, 9), st.booleans())
def test_hosts_divide_each_batch_equally(num_examples, local_size, num_hosts, drops):
    batch_size = local_size * num_hosts
    if drops and num_examples < batch_size:
        return
    alone = Share("train", num_examples, batch_size, drops)
    shares = [Share("train", num_examples, batch_size, drops, (num_hosts, index)) for index in range(num_hosts)]
    assert {share.num_batches for share in shares} == {alone.num_batches}
    for step in range(alone.num_batches):
        (expected, indices), parts = alone.slots(step), [share.slots(step) for share in shares]
        assert len({len(rows) for rows, _ in parts}) == 1
        assert sorted(row for rows, _ in parts for row in rows.tolist() if row != PADDING) == expected.tolist()
        assert sorted(np.concatenate([host_indices for _, host_indices in parts]).tolist()) == indices.tolist()
        has_padding = any(PADDING in rows for rows, _ in parts)
        assert not has_padding or (alone.num_batches - 1 == step and shares[0].has_padding)


def test_rejects_batches_that_hosts_cannot_share():
    with pytest.raises(ValueError, match="batch_size=100 .* 3 hosts.* such as 99"):
        Share("train", 1000, 100, False, (3, 0))
    with pytest.raises(ValueError, match="batch_size=2 .* such as 4"):
        Share("train", 1000, 2, False, (4, 0))
    with pytest.raises(ValueError, match="train .*no readable"):
        Share("train", 0, 8, False)
    with pytest.raises(ValueError, match="drop_remainder .* 8: train has 7 examples"):
        Share("train", 7, 8, True)


@pytest.mark.parametrize("read_buffer", [1, 1000, 1 << 20, 40 << 20, 256 << 20, 1 << 30, 64 << 30])
def test_two_windows_fit_in_the_read_buffer(read_buffer):
    run, window = run_bytes(read_buffer), window_bytes(read_buffer)
    assert run >= 1 and window >= 1 and (read_buffer < 8 or 2 * (window + run) <= read_buffer)
    assert run <= 64 << 20 and (run >= 8 << 20 or read_buffer < 32 << 20)


def test_order_is_the_same_as_in_earlier_versions():
    """A training run that resumes with a newer version of the library must read the same batches."""
    assert epoch_key(0, 0) == 1_576_848_291_327_681_832
    assert permuted(epoch_key(0, 0), np.arange(10), 10).tolist() == [2, 9, 6, 4, 5, 0, 7, 8, 3, 1]
    assert permuted(epoch_key(0, 0), np.arange(5), 70_000).tolist() == [59097, 24244, 34763, 5072, 40463]
    order = window_order([(10, 100)] * 40, 1000, 10_000, epoch_key(0, 0))
    assert order.window(0).runs.tolist() == [2, 1] and record_numbers(order)[:10] == [13, 2, 15, 6, 11, 1, 18, 8, 14, 4]
