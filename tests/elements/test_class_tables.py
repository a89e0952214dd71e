"""Tests class names that look like lists, integer class names, and the limits for shards and splits."""

import csv
import pathlib

import pytest
import tensorflow_datasets as tfds

import tf_input
from beam_pipelines.__main__ import main
from beam_pipelines.elements.class_tables import sort_class_names
from made_images import write_files
from made_sources import PNGS
from tf_input.dataset_format import index_name, read_manifest, shard_name


def write_table(root: pathlib.Path, cells: list[str], **columns: list) -> pathlib.Path:
    """Writes a table with a row for each cell of the column `x`. The pictures repeat under other names."""
    files = {f"{index:03d}.png": PNGS[index % len(PNGS)] for index in range(len(cells))}
    write_files(root, files)
    with open(root / "rows.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["file_name", "x", *columns])
        writer.writerows(zip(files, cells, *columns.values()))
    return root / "rows.csv"


def prepare(tmp_path: pathlib.Path, cells: list[str], *options: str, **columns: list) -> int:
    path = write_table(tmp_path / "in", cells, **columns)
    splits = [] if "split" in columns else ["--splits=train=1"]
    return main(["prepare", "--input", str(path), "--output", str(tmp_path / "out"), *splits, *options])


PLANET = ["haze primary", "clear primary", "clear primary water", "cloudy", "haze primary water", "clear water"]


@pytest.mark.slow(0.2)
@pytest.mark.parametrize(
    "kind, cells, message",
    [
        ("class", ["[1, 0]", "[0, 1]"], "'[0, 1]'"),
        ("class", ["[1 0 0 0]", "cat"], "'[1 0 0 0]'"),
        ("class", ["['a', 'b']"] * 3, "the kind multi_label"),
        ("multi_label", ["[1, 0]", "[0, 1]"], "multi_hot"),
        ("multi_label", ["[1, 0, 0, 0]", "[0, 0, 1, 0]"], "multi_hot"),
    ],
)
def test_classes_that_look_like_lists_are_rejected(tmp_path, capsys, kind, cells, message):
    assert prepare(tmp_path, cells, f"--label=x:{kind}") == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow(0.5)
@pytest.mark.parametrize(
    "label, cells, options, names",
    [
        ("x", ["ice cream", "hot dog", "dog"], [], ["dog", "hot dog", "ice cream"]),
        ("x", ["tench, Tinca tinca", "maillot", "maillot, tank suit"], [], None),
        ("x", ["animal;dog", "animal;cat"], [], None),  # a label of kind `class` may contain separators
        ("x:multi_label", ["ice cream", "hot dog", "dog|hot dog"], [], ["dog", "hot dog", "ice cream"]),
        ("x:multi_label", ["ice cream", "hot dog", "dog"], [], None),
        ("x:multi_label", ["traffic light", "fire hydrant", "stop sign", "hot dog", "dog"], [], None),
        ("x:multi_label", ["tench, Tinca tinca", "maillot", "maillot, tank suit", "goldfish, Carassius auratus"], [], None),
        ("x:multi_label", PLANET, ["--label_separator= "], ["clear", "cloudy", "haze", "primary", "water"]),
        ("x:multi_label", PLANET, [], None),
        ("x:multi_label", ["animal;dog", "cat"], ["--label_separator=;"], ["animal", "cat", "dog"]),
        ("x:multi_label", ['["animal", "dog"]', "['cat']"], [], ["animal", "cat", "dog"]),
        ("x:multi_hot[4]", ["[1, 0, 0, 0]", "[0, 1, 1, 0]"], [], ["0", "1", "2", "3"]),
        ("x", ["7", "100", "7"], [], [str(number) for number in range(101)]),
        # Half steps, which are class names
        ("x", ["1.0", "1.5", "2.0", "2.5", "3.0"], [], ["1", "1.5", "2", "2.5", "3"]),
        ("x", ["3.0", "0.0", "1.0"], [], ["0", "1", "2", "3"]),
    ],
)
def test_class_table_lists_the_class_names(tmp_path, label, cells, options, names):
    assert prepare(tmp_path, cells, f"--label={label}", *options) == 0
    actual = (tmp_path / "out/label.labels.txt").read_text().splitlines()
    assert actual == (sorted(set(cells)) if names is None else names)


def test_multi_hot_cells_are_read_back_unchanged(tmp_path):
    cells = ["[1, 0, 0, 1]", "[0, 0, 0, 0]", "[0 1 1 0]"]
    assert prepare(tmp_path, cells, "--label=x:multi_hot[4]", "--feature=file_name") == 0
    rows = tf_input.open(tmp_path / "out")["train"]
    actual = {rows[index]["file_name"]: list(map(int, rows[index]["label"])) for index in range(3)}
    assert {bytes(name).decode() if isinstance(name, bytes) else str(name): v for name, v in actual.items()} == {
        "000.png": [1, 0, 0, 1],
        "001.png": [0, 0, 0, 0],
        "002.png": [0, 1, 1, 0],
    }


@pytest.mark.parametrize(
    "cells, message",
    [
        (["7", "100000"], "label is 100000"),
        (["7", "8", "10", "none"], "not 'none'"),
        (["0.0", "2.0", "4.0", "5.0", "1.5"], "'1.5'"),
        (["", ""], "column 'x' is empty"),
    ],
)
def test_integer_labels_that_would_change_are_rejected(tmp_path, capsys, cells, message):
    assert prepare(tmp_path, cells, "--label=x") == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_large_integers_can_be_numbers_or_named_classes(tmp_path):
    assert prepare(tmp_path, ["7", "100000"], "--label=x:integer") == 0
    names = tmp_path / "names.txt"
    names.write_text("7\n100000\n")
    assert main(["prepare", "--input", str(tmp_path / "in/rows.csv"), "--output", str(tmp_path / "named"), "--label=x",
                 "--splits=train=1", f"--label_names={names}"]) == 0  # fmt: skip
    assert read_manifest(tmp_path / "named").features["label"].label_names == ("7", "100000")


def test_multi_label_without_any_class_is_rejected(tmp_path, capsys):
    assert prepare(tmp_path, ["", "[]"], "--label=x:multi_label") == 2
    assert "label: " in capsys.readouterr().err


@pytest.mark.parametrize("num_files, num_rows, num_splits", [(1, 5_000, "1,000"), (2, 200, "400")])
def test_too_many_splits_in_several_batches_are_rejected(tmp_path, capsys, num_files, num_rows, num_splits):
    for file in range(num_files):
        rows = "".join(f"cat,{file},p{file}_{row % 1_000}\n" for row in range(num_rows))
        write_files(tmp_path / "in", {f"{file}.csv": f"x,y,patient\n{rows}".encode()})
    options = ("--label=x", "--feature=y", "--split_column=patient")
    assert main(["prepare", "--input", str(tmp_path / "in"), "--output", str(tmp_path / "out"), *options]) == 2
    message = capsys.readouterr().err
    assert f"at least {num_splits} splits (p0_0, p0_1, p0_10, …)" in message and "256" in message
    assert "--group" in message and "Traceback" not in message


def test_too_many_splits_are_rejected(tmp_path, capsys):
    cells = ["cat"] * 300
    assert prepare(tmp_path, cells, "--label=x", split=[f"s{index}" for index in range(300)]) == 2
    assert "at least 300 splits (s0, s1, s10, …)" in capsys.readouterr().err
    splits = ",".join(f"s{index}=1/300" for index in range(300))
    assert main(["prepare", "--input", str(tmp_path / "in/rows.csv"), "--output", str(tmp_path / "o"), f"--splits={splits}"]) == 2
    reported = capsys.readouterr().err
    assert "--splits: 300 " in reported and " 256" in reported


@pytest.mark.parametrize("num_shards", [1, 16, 99_999, 100_000, 1_234_567])
def test_shard_names_match_the_names_of_tensorflow_datasets(num_shards):
    template = tfds.core.naming.ShardedFileTemplate(
        dataset_name="made", data_dir=pathlib.Path("/data"), split="train", filetype_suffix="tfrecord"
    )
    for index in (0, 7, num_shards - 1):
        name = shard_name("made", "train", index, num_shards)
        assert name == template.sharded_filepath(shard_index=index, num_shards=num_shards).name
        parsed = template.parse_filename_info(name)
        assert (parsed.shard_index, parsed.num_shards) == (index, num_shards)
        assert index_name("made", "train", index, num_shards).endswith(f"{name.rpartition('tfrecord-')[2]}.idx")


@pytest.mark.parametrize(
    "names",
    [["2", "4", "10"], ["-10", "-2", "0", "3", "20"], ["01", "1", "2"], ["-0", "0", "1" * 5000], ["-1", "10", "2", "x"], ["-", "1", "10", "2"]],
)
def test_integer_class_names_are_sorted_by_value(names):
    assert sort_class_names(names[::-1]) == names
