"""Tests selecting records, and that balanced classes have exactly the same number of examples."""

import collections

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tf_input.epochs.selection import Balance, Selection, cut_selection
from tf_input.selection.select import count_classes

NAMES = ("ant", "bee", "cow", "dog")
CLASSES = st.lists(st.integers(0, 3), min_size=1, max_size=60).map(lambda values: np.array(values))
SHARES = st.one_of(
    st.sampled_from(["oversample", "undersample"]),
    st.lists(st.integers(0, 9), min_size=4, max_size=4).filter(any).map(lambda parts: [part / sum(parts) for part in parts]),
)


def balance(classes: np.ndarray, shares: object, seed: int = 0) -> Balance:
    if not isinstance(shares, str):  # classes without examples get no share
        occurs = np.bincount(classes, minlength=4) > 0
        shares = np.where(occurs, shares, 0)
        shares = shares / shares.sum() if shares.any() else occurs / occurs.sum()
    return Balance(classes, 4, lambda sizes: count_classes(shares, sizes, "train", NAMES), seed)


@settings(max_examples=200, deadline=None)
@given(CLASSES, SHARES, st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**62))
def test_balanced_epochs_have_exact_class_counts_and_use_examples_equally(classes, shares, seed, epoch):
    drawn, sizes = balance(classes, shares, seed), np.bincount(classes, minlength=4)
    actual = collections.Counter()
    for drawn_epoch in range(epoch, epoch + 4):
        examples = drawn.draw(drawn_epoch)
        counts = np.bincount(classes[examples], minlength=4)
        if shares == "oversample":
            assert counts.tolist() == np.where(sizes > 0, sizes.max(), 0).tolist()
        elif shares == "undersample":
            assert counts.tolist() == np.where(sizes > 0, sizes[sizes > 0].min(), 0).tolist()
        else:
            assert counts.sum() == len(classes)
        assert len(examples) == drawn.num_examples
        actual.update(examples.tolist())
    for label in range(4):
        occurrences = [actual[example] for example in np.flatnonzero(classes == label).tolist()]
        assert not occurrences or max(occurrences) - min(occurrences) <= 1


@given(st.lists(st.integers(0, 1000), min_size=4, max_size=4).filter(any), st.integers(1, 10**7))
def test_class_counts_are_closest_to_the_shares(parts, total):
    shares, sizes = [part / sum(parts) for part in parts], np.array([total, 1, 1, 1])
    counts = count_classes(shares, sizes, "train", NAMES)
    assert counts.sum() == sizes.sum() and np.abs(counts - np.array(shares) * sizes.sum()).max() < 1 + 1e-6


def test_oversampled_classes_are_spread_evenly_over_an_epoch():
    classes = np.array([0] * 900 + [1] * 9 + [2] * 91)
    examples = balance(classes, "oversample").draw(0)
    for begin in range(0, len(examples), 90):
        assert np.bincount(classes[examples[begin : begin + 90]], minlength=3).tolist() == [30, 30, 30]
    rare = np.flatnonzero(classes[examples] == 1)
    for example in np.unique(examples[rare]).tolist():
        # nine examples take turns at every third index
        assert np.diff(np.flatnonzero(examples == example)).min() >= 27 - 3


def test_undersampling_depends_on_seed_and_rotates_over_epochs():
    classes = np.array([0] * 1000 + [1] * 10)
    drawn = [frozenset(balance(classes, "undersample", seed).draw(epoch).tolist()) for seed in (0, 1) for epoch in (0, 1)]
    assert len({*drawn}) == 4
    epochs = [balance(classes, "undersample").draw(epoch) for epoch in range(100)]
    assert collections.Counter(np.concatenate(epochs).tolist()) == {**dict.fromkeys(range(1000), 1), **dict.fromkeys(range(1000, 1010), 100)}


SHARDS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=6)  # numbers of records, and of lost records


@settings(max_examples=200, deadline=None)
@given(SHARDS, st.data())
def test_keep_first_renumbers_selection_of_truncated_shards(shards, data):
    counts = [count for count, _ in shards]
    kept = [max(0, count - lost) for count, lost in shards]
    indices = [(shard, row) for shard, count in enumerate(counts) for row in range(count)]
    existing = [(shard, row) for shard, count in enumerate(kept) for row in range(count)]
    wanted = data.draw(st.lists(st.integers(0, max(0, len(indices) - 1)), unique=True).map(sorted)) if indices else []
    actual = Selection(np.array(wanted, np.int64)).keep_first(counts, kept)
    assert [existing[number] for number in actual.numbers.tolist()] == [indices[number] for number in wanted if indices[number] in set(existing)]


@settings(max_examples=200, deadline=None)
@given(SHARDS, st.integers(1, 5000), st.data())
def test_chunks_cover_a_selection_within_the_size_limit(shards, run_bytes, data):
    counts = [count for count, _ in shards]
    total = sum(counts)
    numbers = data.draw(st.lists(st.integers(0, max(0, total - 1)), max_size=100)) if total else []
    runs = cut_selection(np.array(numbers, np.int64), counts, [count * 100 for count in counts], run_bytes)
    assert runs.counts.sum() == len(numbers) and (runs.counts > 0).all() and runs.num_bytes.sum() == 100 * len(numbers)
    assert runs.starts.tolist() == (np.cumsum(runs.counts) - runs.counts).tolist()
    if len(runs):
        assert runs.num_bytes.max() <= 1.5 * run_bytes + 200
