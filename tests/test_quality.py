"""The shuffle quality says what a reader of the shards would meet, and what a true permutation would give."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_pipelines.quality import WINDOW, LabelSequence, expected_run_length, shuffle_quality


def num_runs(labels: list[int]) -> int:
    return sum(1 for _ in itertools.groupby(labels))


def quality(shards: list[list[int]]) -> dict[str, float | None]:
    labels = Counter(label for shard in shards for label in shard)
    return shuffle_quality([LabelSequence.of(np.array(shard)) for shard in shards], labels)


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=20), min_size=1, max_size=8))
def test_runs_go_on_across_shard_borders(shards):
    labels = [label for shard in shards for label in shard]
    assert quality(shards)["mean_run_length"] == len(labels) / num_runs(labels)


def test_a_few_runs_counted_by_hand():
    cases = [
        ("one record", [[0]], 1.0),
        ("one label", [[3, 3], [3], [3]], 4.0),
        ("a run over three shards", [[0, 1], [1], [1, 0]], 5 / 3),
        ("no run at the border", [[0, 0], [1, 1]], 2.0),
        ("all different", [[0, 1, 2], [0, 1, 2]], 1.0),
    ]
    for case, shards, expected in cases:
        assert quality(shards)["mean_run_length"] == pytest.approx(expected), case


@given(st.lists(st.integers(0, 5), min_size=1, max_size=4 * WINDOW))
def test_a_window_counts_the_labels_that_are_in_it(labels):
    windows = [labels[start : start + WINDOW] for start in range(0, len(labels) - WINDOW + 1, WINDOW)]
    sequence = LabelSequence.of(np.array(labels))
    assert sequence.num_windows == len(windows)
    assert sequence.num_in_windows == sum(len(set(window)) for window in windows)
    assert (sequence.num_labels, sequence.first, sequence.last) == (len(labels), labels[0], labels[-1])


def test_windows_lie_within_shards_and_are_averaged_over_all_of_them():
    name = f"mean_labels_in_{WINDOW}"
    ten = [index % 10 for index in range(WINDOW)]
    cases = [
        ("too few records", [[0] * (WINDOW - 1)], None),
        ("too few in each shard", [[0] * (WINDOW - 1), [1]], None),
        ("one label", [[0] * WINDOW], 1.0),
        ("two windows", [[0] * WINDOW + ten], 5.5),
        ("two shards, and what is left over", [[0] * WINDOW + [1, 2, 3], ten], 5.5),
    ]
    for case, shards, expected in cases:
        assert quality(shards)[name] == expected, case


@given(st.lists(st.integers(1, 3), min_size=1, max_size=3))
def test_the_expected_run_length_is_that_over_all_permutations(label_counts):
    labels = [label for label, count in enumerate(label_counts) for _ in range(count)]
    labels = labels[:7]
    runs = [num_runs(list(permutation)) for permutation in itertools.permutations(labels)]
    mean_runs = sum(runs) / len(runs)
    assert expected_run_length(Counter(labels).values()) == pytest.approx(len(labels) / mean_runs)


def test_the_expected_run_length_agrees_with_simulation():
    cases = [
        ("ten classes", [1_000] * 10, 1.11),  # CIFAR-10: FACTS.md
        ("two classes", [4_000, 4_000], 2.0),
        ("a rare class", [9_900, 100], None),
        ("many classes", [10] * 500, None),
    ]
    random = np.random.default_rng(0)
    for case, label_counts, rounded in cases:
        labels = np.repeat(np.arange(len(label_counts)), label_counts)
        runs = [1 + np.count_nonzero(np.diff(random.permutation(labels))) for _ in range(30)]
        expected = expected_run_length(label_counts)
        assert expected == pytest.approx(len(labels) / np.mean(runs), rel=0.03), case
        if rounded:
            assert expected == pytest.approx(rounded, abs=0.005), case


def test_records_in_class_order_are_told_from_a_permutation():
    in_order = np.repeat(np.arange(10), 1_280)
    permuted = np.random.default_rng(0).permutation(in_order)
    cases = [("class order", in_order, 1_280, 1.0), ("a permutation", permuted, 1.11, 10.0)]
    for case, labels, run_length, num_in_window in cases:
        found = quality([shard.tolist() for shard in np.split(labels, 4)])
        assert found["mean_run_length"] == pytest.approx(run_length, rel=0.02), case
        assert found["expected_mean_run_length"] == pytest.approx(1.11, rel=0.02), case
        assert found[f"mean_labels_in_{WINDOW}"] == pytest.approx(num_in_window, rel=0.01), case
