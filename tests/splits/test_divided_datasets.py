"""Tests the options of `recordmill prepare` that divide a dataset into splits, such as strata, groups and folds."""

import json
import pathlib
import re
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_pipelines.__main__ import main
from beam_pipelines.elements.catalog_files import read_catalog
from made_images import jpeg, write_class_folders, write_files
from tf_input import dataset_format

pytestmark = pytest.mark.slow(3)


def prepare(source: pathlib.Path, output: pathlib.Path, *options: str) -> dict[str, tuple[str, str, str]]:
    """Prepares a dataset and returns the split, the label and the group of each example key."""
    assert main(["prepare", "--input", str(source), "--output", str(output), "--check=header", *options]) == 0
    actual = {}
    for split, shards in dataset_format.read_manifest(output).splits.items():
        for shard in shards:
            for row in read_catalog(f"{output}/{shard.catalog}").select(["key", "label", "group"]).to_pylist():
                actual[row["key"]] = split, row["label"], row["group"]
    return actual


def division(output: pathlib.Path) -> dict:
    return json.loads((output / dataset_format.STATISTICS).read_text())["division"]


def test_stratified_splits_have_their_shares_and_stay_when_the_data_grow(tmp_path, capsys):
    source, options = tmp_path / "in", ("--stratify", "--splits=train=0.7,validation=0.2,test=0.1")
    write_class_folders(source, {"ant": 30, "bee": 20})
    first = prepare(source, tmp_path / "first", *options)
    assert Counter((label, split) for split, label, _ in first.values()) == {
        **{("ant", "train"): 21, ("ant", "validation"): 6, ("ant", "test"): 3},
        **{("bee", "train"): 14, ("bee", "validation"): 4, ("bee", "test"): 2},
    }
    assert "stratified by label: train 70.00% (requested: 0.7)" in capsys.readouterr().out
    write_class_folders(source, {"ant": 31, "bee": 49})
    table = pa.table({"key": list(first), "split": [split for split, *_ in first.values()]})
    pq.write_table(table, tmp_path / "splits.parquet")
    from_dataset = prepare(source, tmp_path / "grown", *options, f"--splits_from={tmp_path / 'first'}")
    assert {key: from_dataset[key] for key in first} == first and division(tmp_path / "grown")["num_kept"] == 50
    assert Counter(split for split, *_ in from_dataset.values()) == {"train": 56, "validation": 16, "test": 8}
    assert prepare(source, tmp_path / "table", *options, f"--splits_from={tmp_path / 'splits.parquet'}") == from_dataset


def test_groups_stay_in_one_fold_and_classes_are_balanced(tmp_path, capsys):
    write_files(tmp_path / "in", {f"{index:03d}.jpg": jpeg(index) for index in range(90)})
    rows = [f"{index:03d}.jpg,{'well' if index % 3 else 'ill'},p{index // 6},{'large' if index < 40 else index}" for index in range(90)]
    (tmp_path / "in" / "rows.csv").write_text("\n".join(["image,label,patient,ward", *rows]) + "\n")
    actual = prepare(tmp_path / "in" / "rows.csv", tmp_path / "out", "--folds=5", "--stratify", "--group=patient")
    folds: dict[str, set[str]] = {}
    for split, _, group in actual.values():
        folds.setdefault(group, set()).add(split)
    assert len(folds) == 15 and all(len(splits) == 1 for splits in folds.values())
    assert Counter((split, label) for split, label, _ in actual.values()) == {
        **{(f"fold{fold}", "ill"): 6 for fold in range(5)},
        **{(f"fold{fold}", "well"): 12 for fold in range(5)},
    }
    assert division(tmp_path / "out")["num_groups"] == 15 and division(tmp_path / "out")["largest_excess"] is None
    call = ["prepare", "--input", str(tmp_path / "in" / "rows.csv"), "--output", str(tmp_path / "none"), "--folds=16", "--stratify"]
    assert main([*call, "--group=patient"]) == 2
    assert "fewer --folds" in capsys.readouterr().err
    prepare(tmp_path / "in" / "rows.csv", tmp_path / "by ward", "--folds=5", "--stratify", "--group=ward")
    reported = r"fold\d .*26 .*'well'.*12\.0.*'large'.*26"
    assert re.search(reported, capsys.readouterr().out)


def test_large_groups_and_inputs_without_a_group_are_reported(tmp_path, capsys):
    write_files(tmp_path / "in", {f"{index:03d}.jpg": jpeg(index) for index in range(60)})
    rows = [f"{index:03d}.jpg,a,{'large' if index < 50 else index // 3 if index < 58 else ''}" for index in range(60)]
    (tmp_path / "in" / "rows.csv").write_text("\n".join(["image,label,group", *rows]) + "\n")
    actual = prepare(tmp_path / "in" / "rows.csv", tmp_path / "out", "--splits=one=0.5,two=0.5")
    reported = capsys.readouterr()
    nums = Counter(split for split, *_ in actual.values())
    shares = f"one {nums['one'] / 60:.2%} (requested: 0.5), two {nums['two'] / 60:.2%} (requested: 0.5)"
    assert f"group: {shares}; 5 groups" in reported.out
    largest = actual["000.jpg"][0]
    excess = rf"{largest} .*{nums[largest]} .*30\.0.*'large'.*50"
    assert re.search(excess, reported.out), reported.out
    assert division(tmp_path / "out")["largest_excess"]["group"] == "large" and division(tmp_path / "out")["num_groups"] == 5
    assert "warning: inputs without a group: 2 " in reported.err and "('058.jpg', '059.jpg')" in reported.err and "--group=group" in reported.err
    assert main(["prepare", "--input", str(tmp_path / "in" / "rows.csv"), "--output", str(tmp_path / "none"), "--group=group"]) == 2
    assert "2 of 60 rows" in capsys.readouterr().err
    prepare(tmp_path / "in" / "rows.csv", tmp_path / "plain", "--group=", "--splits=one=0.5,two=0.5")
    reported = capsys.readouterr()
    assert "warning: group" not in reported.err and "splits: " not in reported.out


def test_validation_split_is_divided_from_train_and_can_be_repaired(tmp_path, capsys):
    write_class_folders(tmp_path / "in", {"train/ant": 40, "train/bee": 20, "test/ant": 9, "test/bee": 9})
    actual = prepare(tmp_path / "in", tmp_path / "out", "--divide=train", "--stratify")
    assert Counter((split, label) for split, label, _ in actual.values()) == {
        **{("train", "ant"): 36, ("validation", "ant"): 4, ("train", "bee"): 18, ("validation", "bee"): 2},
        **{("test", "ant"): 9, ("test", "bee"): 9},
    }
    assert {key.split("/")[0] for key, (split, *_) in actual.items() if split == "test"} == {"test"}
    again = prepare(tmp_path / "in", tmp_path / "again", "--divide=train", "--stratify", f"--splits_from={tmp_path / 'out'}")
    assert again == actual
    (tmp_path / "old.csv").write_text("key,split\ntrain/ant/000.jpg,val\n")
    call = ["prepare", "--input", str(tmp_path / "in"), "--output", str(tmp_path / "none"), "--divide=train"]
    assert main([*call, f"--splits_from={tmp_path / 'old.csv'}"]) == 2
    assert re.search(r"\bval\b.* train, validation, test", capsys.readouterr().err)
    (shard,) = tmp_path.glob("out/*-validation.tfrecord-*")
    before = shard.read_bytes()
    shard.write_bytes(b"corrupt")
    assert main(["repair", str(tmp_path / "out")]) == 0 and shard.read_bytes() == before
