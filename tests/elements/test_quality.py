"""Tests that the shuffle quality compares the record order with the expectation for a random permutation."""

import itertools
import json
import re
from collections import Counter

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from beam_pipelines.__main__ import main
from beam_pipelines.elements.quality import WINDOW, LabelSequence, ShuffleQualities, expected_run_length, one_label, is_inconclusive
from made_images import encode, write_files
from prepared import picture
from tf_input.dataset_format import NO_LABEL


def num_runs(labels: list[int]) -> int:
    return sum(1 for _ in itertools.groupby(labels))


def quality(shards: list[list[int]]) -> dict[str, float | None]:
    """Returns the shuffle quality of a label feature. Each list in `shards` contains the labels of one shard."""
    qualities = ShuffleQualities()
    for index, shard in reversed(list(enumerate(shards))):
        qualities.add(index, {"label": LabelSequence.of(np.array(shard))})
    return qualities.to_json()["label"]


@given(st.lists(st.lists(st.integers(0, 2), max_size=20), min_size=1, max_size=8).filter(any))
def test_runs_continue_across_shards(shards):
    labels = [label for shard in shards for label in shard]
    assert quality(shards)["mean_run_length"] == len(labels) / num_runs(labels)


def test_run_lengths_of_examples():
    cases = [
        ("one record", [[0]], 1.0),
        ("one label", [[3, 3], [3], [3]], 4.0),
        ("a run over three shards", [[0, 1], [1], [1, 0]], 5 / 3),
        ("an empty shard", [[0, 1], [], [1, 0]], 4 / 3),
        ("no run at the border", [[0, 0], [1, 1]], 2.0),
        ("all different", [[0, 1, 2], [0, 1, 2]], 1.0),
    ]
    for case, shards, expected in cases:
        assert quality(shards)["mean_run_length"] == pytest.approx(expected), case


@given(st.lists(st.integers(0, 5), min_size=1, max_size=4 * WINDOW))
def test_windows_count_their_different_labels(labels):
    windows = [labels[start : start + WINDOW] for start in range(0, len(labels) - WINDOW + 1, WINDOW)]
    sequence = LabelSequence.of(np.array(labels))
    assert sequence.num_windows == len(windows)
    assert sequence.num_in_windows == sum(len(set(window)) for window in windows)
    assert (sequence.num_labels, sequence.first, sequence.last) == (len(labels), labels[0], labels[-1])


def test_windows_are_inside_shards_and_are_averaged():
    name = f"mean_labels_in_{WINDOW}"
    ten = [index % 10 for index in range(WINDOW)]
    cases = [
        ("too few records", [[0] * (WINDOW - 1)], None),
        ("too few in each shard", [[0] * (WINDOW - 1), [1]], None),
        ("one label", [[0] * WINDOW], 1.0),
        ("two windows", [[0] * WINDOW + ten], 5.5),
        ("two shards with a remainder", [[0] * WINDOW + [1, 2, 3], ten], 5.5),
    ]
    for case, shards, expected in cases:
        assert quality(shards)[name] == expected, case


@given(st.lists(st.integers(1, 3), min_size=1, max_size=3))
def test_expected_run_length_is_the_mean_over_all_permutations(label_counts):
    labels = [label for label, count in enumerate(label_counts) for _ in range(count)]
    labels = labels[:7]
    runs = [num_runs(list(permutation)) for permutation in itertools.permutations(labels)]
    mean_runs = sum(runs) / len(runs)
    assert expected_run_length(Counter(labels).values()) == pytest.approx(len(labels) / mean_runs)


def test_expected_run_length_agrees_with_simulation():
    cases = [
        ("ten classes", [1_000] * 10, 1.11),  # as in CIFAR-10
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


def test_class_order_differs_from_a_random_permutation():
    in_order = np.repeat(np.arange(10), 1_280)
    permuted = np.random.default_rng(0).permutation(in_order)
    cases = [("class order", in_order, 1_280, 1.0), ("a permutation", permuted, 1.11, 10.0)]
    for case, labels, run_length, num_in_window in cases:
        actual = quality([shard.tolist() for shard in np.split(labels, 4)])
        assert actual["mean_run_length"] == pytest.approx(run_length, rel=0.02), case
        assert actual["expected_mean_run_length"] == pytest.approx(1.11, rel=0.02), case
        assert actual[f"mean_labels_in_{WINDOW}"] == pytest.approx(num_in_window, rel=0.01), case


def test_inconclusive_run_lengths_are_detected():
    cases = [
        ("each class has one example", [[3, 1, 0, 2]], True),
        ("one class", [[0, 0], [0]], True),
        ("one example", [[0]], True),
        ("two of each class", [[0, 1, 2], [2, 0, 1]], False),
        ("in class order", [[0] * 50, [1] * 50], False),
        ("a hundred classes, two of them twice", [[*range(100), 1, 2]], True),
    ]
    for case, shards, expected in cases:
        actual = quality(shards)
        assert is_inconclusive(actual) == expected, case
        labels = sorted(itertools.chain(*shards))
        assert actual["sorted_mean_run_length"] == len(labels) / num_runs(labels), case


def test_labels_of_an_example_are_combined_into_one_number():
    for labels, expected in ([], NO_LABEL), ([7], 7), ([9, 9, 9], 9):
        assert one_label(labels) == expected, labels
    sets = [labels for count in (2, 3) for labels in itertools.combinations(range(6), count)]
    actual = {labels: one_label(labels) for labels in sets}
    assert max(actual.values()) < NO_LABEL and len(set(actual.values())) > 0.8 * len(sets)
    assert one_label([3, 1, 1, 2]) == one_label([2, 3, 1]) == -212, "the number must be equal in every process"


LABEL_OPTIONS = {
    "one class": ["--label=weather"],
    "several labels": ["--label=weather", "--label=ground"],
    "multiple labels": ["--label=tags:multi_label"],
    "objects": ["--label=objects"],
    "all": ["--label=objects", "--label=weather", "--feature=tags:multi_label"],
    "one class per image": ["--label=name"],
    "none": ["--label=none"],
}


def write_rows(folder):
    lines = []
    for index in range(24):
        write_files(folder, {f"{index}.png": encode(picture(index, (20, 20)), "PNG")})
        kinds = ["cat", "dog", "dog"][: index % 4]
        row = {"weather": ["sun", "rain"][index // 12], "ground": ["wet", "dry", "ice"][index % 3], "name": f"image {index}"}
        row |= {"tags": ["a", "b", "c"][index % 4 :], "file_name": f"{index}.png"}
        row["objects"] = {"bbox": [[1, 1, 5, 5]] * len(kinds), "categories": kinds}
        lines.append(json.dumps(row) + "\n")
    (folder / "rows.jsonl").write_text("".join(lines))


@pytest.mark.slow(0.5)
@pytest.mark.parametrize("case", LABEL_OPTIONS)
def test_each_label_has_a_shuffle_quality(case, tmp_path, capsys):
    """The shuffle quality in `statistics.json` agrees with the records and with the printed summary."""
    write_rows(tmp_path / "in")
    command = ["prepare", "--input", str(tmp_path / "in/rows.jsonl"), "--output", str(tmp_path / "out"), "--splits=train=1"]
    assert main([*command, "--num_shards=3", "--name=rows", *LABEL_OPTIONS[case]]) == 0
    printed = capsys.readouterr().out
    schema = json.loads((tmp_path / "out/manifest.json").read_text())["schema"]
    names = sorted(feature["name"] for feature in schema if feature["kind"] == "class_label")
    assert bool(names) == (case != "none")
    actual = json.loads((tmp_path / "out/statistics.json").read_text())["splits"]["train"]["shuffle"]
    shards = [labels_of(path, names) for path in sorted((tmp_path / "out").glob("*.tfrecord-*"))]
    assert (actual or {}).keys() == set(names)
    for name in names:
        assert actual[name] == quality([shard[name] for shard in shards]), name
        for title, key in ((f"mean same-{name} run", "mean_run_length"), ("  sorted by class", "sorted_mean_run_length")):
            assert re.search(rf"^{title} +{actual[name][key]:.2f}$", printed, re.M), (name, printed)
    assert printed.count("  perfect shuffle") == len(names)
    not_informative = "train: runs of {} are not informative"
    assert (not_informative.format("label") in printed) == (case == "one class per image"), printed


def labels_of(path, names) -> dict[str, list[int]]:
    """For each feature name, returns one label per record of a shard. `one_label` combines multiple labels."""
    actual = {name: [] for name in names}
    for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
        example = tf.train.Example.FromString(record)
        for name in names:
            labels = list(example.features.feature[name].int64_list.value)
            actual[name].append(one_label(labels))
    return actual
