"""The order of an epoch: a permutation, of which any part can be computed alone."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tf_input.order import Order, epoch_key

KINDS = (None, "window", "exact")


def numbers(order: Order, epoch: int = 0, seed: int = 0, positions=None) -> np.ndarray:
    positions = range(order.num_positions) if positions is None else positions
    key = tf.constant(epoch_key(seed, epoch), tf.int64)
    return order.numbers(key, tf.constant(list(positions), tf.int64)).numpy()


def orders(max_examples: int):
    return st.builds(
        lambda num_examples, kind, block, num_blocks: Order(num_examples, kind, block, block * num_blocks),
        st.integers(1, max_examples),
        st.sampled_from(KINDS),
        st.integers(1, 50),
        st.integers(1, 10),
    )


@settings(max_examples=60, deadline=None)
@given(orders(700), st.integers(0, 2**63 - 1), st.integers(0, 1000))
def test_every_epoch_has_every_record_once(order, seed, epoch):
    assert sorted(numbers(order, epoch, seed)) == list(range(order.num_examples))


@settings(max_examples=30, deadline=None)
@given(orders(700), st.data())
def test_any_part_is_computed_alone(order, data):
    whole = numbers(order, 3)
    positions = data.draw(st.lists(st.integers(0, order.num_examples - 1), min_size=1, max_size=20))
    np.testing.assert_array_equal(numbers(order, 3, positions=positions), whole[positions])
    first = data.draw(st.integers(0, order.num_examples - 1))
    part = Order(order.num_examples, order.kind, order.block, order.window, first, order.num_examples - first)
    np.testing.assert_array_equal(numbers(part, 3), whole[first:])


@pytest.mark.parametrize("kind", ["window", "exact"])
def test_epochs_and_seeds_differ(kind):
    order = Order(500, kind, 8, 64)
    found = {tuple(numbers(order, epoch, seed)) for epoch in range(4) for seed in range(-2, 3)}
    assert len(found) == 20
    assert tuple(numbers(order, 1, -2)) in found


def test_unshuffled_is_as_it_lies():
    assert list(numbers(Order(5, None), epoch=7)) == [0, 1, 2, 3, 4]


def test_batches_are_parts_of_the_epoch():
    order = Order(50, "exact", first=10, count=37)
    key = tf.constant(epoch_key(1, 2), tf.int64)
    batches = [order.batch_numbers(key, tf.constant(step, tf.int64), 8).numpy() for step in range(5)]
    assert [len(batch) for batch in batches] == [8, 8, 8, 8, 5]
    np.testing.assert_array_equal(np.concatenate(batches), numbers(Order(50, "exact"), 2, 1)[10:47])


def test_an_exact_order_is_as_a_random_one_would_be():
    """Sorted by label, as raw data are: it mixes them like a fair deck."""
    size, epochs = 2000, 30
    labels = np.arange(size) * 10 // size
    runs, correlations, places = [], [], np.zeros((epochs, size))
    for epoch in range(epochs):
        order = numbers(Order(size, "exact"), epoch)
        runs.append(size / (1 + np.count_nonzero(np.diff(labels[order]))))
        correlations.append(np.corrcoef(order, np.arange(size))[0, 1])
        places[epoch, order] = np.arange(size)
    assert np.mean(runs) == pytest.approx(1.11, abs=0.01)
    assert abs(np.mean(correlations)) < 4 / np.sqrt(size * epochs)
    # Where a record comes in one epoch says nothing of where it comes in another.
    assert np.abs(np.corrcoef(places)[~np.eye(epochs, dtype=bool)]).max() < 6 / np.sqrt(size)


def test_a_buffer_order_reads_few_blocks_at_a_time_and_others_in_each_epoch():
    order = Order(10_007, "window", 16, 16 * 32)
    windows = []
    for epoch in range(2):
        found = numbers(order, epoch)
        assert np.abs(np.diff(found)).mean() > 100  # mixed within a window
        blocks = [set((found[start : start + order.window] // order.block).tolist()) for start in range(0, 10_007, order.window)]
        # Those of a window, but where the records after the last whole block are pushed in between.
        assert max(map(len, blocks)) <= 32 + 2
        windows.append([frozenset(one) for one in blocks])
    assert not set(windows[0]) & set(windows[1])


def test_keys_are_what_they_were():
    """A training that goes on with a newer version reads the batches that it would have read."""
    assert epoch_key(0, 0) == 1_576_848_291_327_681_832
    assert list(numbers(Order(10, "exact"))) == [5, 6, 0, 9, 3, 2, 8, 1, 7, 4]
    assert list(numbers(Order(10, "window", 3, 6))) == [4, 1, 3, 9, 5, 0, 7, 6, 2, 8]
    assert list(numbers(Order(70_000, "exact"), positions=range(5))) == [4943, 44948, 41676, 1145, 47649]
