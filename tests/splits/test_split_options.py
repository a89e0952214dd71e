"""Tests that conflicting or invalid split options are rejected with a one-line error before any input is read."""

import errno
import json
import pathlib
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_pipelines.__main__ import main
from beam_pipelines.config import class_files
from beam_pipelines.splits import earlier_splits
from made_images import jpeg, write_class_folders, write_files


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("inputs")
    write_class_folders(folder / "classes", {"ant": 12, "bee": 12})
    write_files(folder / "images", {f"{index:02d}.jpg": jpeg(index) for index in range(40)})
    rows = [f"images/{index:02d}.jpg,{'ab'[index % 2]},{index / 7},{'p' * (index > 2)}{index // 4 * (index > 2) or ''},{'c' * (index != 5)}" for index in range(40)]
    (folder / "rows.csv").write_text("\n".join(["image,label,age,patient,city", *rows]) + "\n")
    (folder / "other.csv").write_text("key,split\nelsewhere.jpg,train\n")
    (folder / "folds.csv").write_text("key,split\nant/000.jpg,fold0\n")
    unlabelled = [f"images/{index:02d}.jpg,{'' if index < 4 else 'a'}" for index in range(40)]
    (folder / "unlabelled.csv").write_text("\n".join(["image,label", *unlabelled]) + "\n")
    box = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 1, 2, 2], "area": 4, "iscrowd": 0}
    images = [{"id": 1, "file_name": "00.jpg", "width": 8, "height": 8}]
    coco = {"images": images, "annotations": [box], "categories": [{"id": 1, "name": "ant"}]}
    (folder / "images" / "coco.json").write_text(json.dumps(coco))
    (folder / "third.csv").write_text("key,split\nant/000.jpg,train\nant/001.jpg,val\nbee/000.jpg,validation\n")
    (folder / "twice.csv").write_text("key,split\nant/000.jpg,train\nant/000.jpg,validation\n")
    (folder / "half.csv").write_text("key,split\nant/000.jpg,train\nant/001.jpg,\n")
    (folder / "odd.csv").write_text("key,split\nant/000.jpg,a split\n")
    (folder / "columns.csv").write_text("name,split\nant/000.jpg,train\n")
    (folder / "given.csv").write_text("image,label,part\nimages/00.jpg,a,train\nimages/01.jpg,b,test\n")
    names = [f"{name}/{number:03d}.jpg" for name in ("ant", "bee") for number in range(12)]
    (folder / "all.csv").write_text("key,split\n" + "".join(f"{name},train\n" for name in names))
    pq.write_table(pa.table({"name": ["ant/000.jpg"], "split": ["train"]}), folder / "columns.parquet")
    return folder


CASES = {
    "fractions and folds": ("classes", ["--splits=train=1", "--folds=3"], "--splits and --folds cannot"),
    "names that differ in case": ("classes", ["--splits=train=0.5,Train=0.5"], "train, Train differ only in case"),
    "one fold": ("classes", ["--folds=1"], "--folds=1:"),
    "column and pattern": ("rows.csv", ["--group=patient", "--group_pattern=x"], "--group and --group_pattern cannot"),
    "group column without a table": ("classes", ["--group=patient"], "--group_pattern"),
    "unknown column": ("rows.csv", ["--group=pateint"], "'pateint' (--group)"),
    "rows without a group": ("rows.csv", ["--group=patient"], "rows.csv:2: column 'patient' is empty"),
    "folds without an example": ("classes", ["--folds=40"], "fewer --folds"),
    "invalid pattern": ("classes", ["--group_pattern=("], "--group_pattern=(: missing ), unterminated subpattern"),
    "keys without a group": ("classes", ["--group_pattern=ant"], "12 of 24 keys: 'bee/000.jpg', 'bee/001.jpg', 'bee/002.jpg' and 9 more"),
    "unknown feature": ("rows.csv", ["--feature=city", "--stratify=ctiy"], "did you mean 'city'? Choose one of label, city, or add --feature ctiy"),
    "no suitable feature": ("rows.csv", ["--feature=ages=age:float", "--stratify=age"], "Use --stratify label, or add --feature age"),
    "no label": ("classes", ["--label=none", "--stratify"], "Omit --stratify"),
    "numeric feature": ("rows.csv", ["--feature=age:float", "--stratify=age"], "--stratify=age: is of kind float"),
    "rows without a value": ("rows.csv", ["--feature=city", "--stratify=label,city"], "'images/05.jpg'"),
    "rows without a class": ("unlabelled.csv", ["--stratify"], "unlabelled.csv:2: column 'label' is"),
    "objects without a label": (
        "images/coco.json",
        ["--source=coco", "--stratify"],
        "--stratify objects/label",
    ),
    "repeated feature": ("classes", ["--stratify=label,label"], "--stratify=label,label: "),
    "empty --divide": ("classes", ["--divide="], "--divide=:"),
    "missing dataset": ("classes", ["--splits_from=nowhere"], "--splits_from="),
    "missing file": ("classes", ["--splits_from=nowhere.csv"], "nowhere.csv: No such file or directory"),
    "CSV file with other columns": ("classes", ["--splits_from=columns.csv"], "columns.csv: Column 'key'"),
    "Parquet file with other columns": ("classes", ["--splits_from=columns.parquet"], "'key'; the columns are name, split"),
    "splits in a column": ("given.csv", ["--split_column=part", "--stratify"], "--split_column=''"),
    "keys without a split": ("classes", ["--splits_from=half.csv"], "half.csv: "),
    "invalid name of a split": ("classes", ["--splits_from=odd.csv"], "'a split'"),
    "duplicates without decoding": ("classes", ["--duplicates=drop", "--check=header"], "--check=header decodes none"),
    "duplicates without images": ("rows.csv", ["--image=none", "--duplicates=drop"], "--duplicates: the examples have no images (--image=none)"),
    "too large distance": ("classes", ["--duplicates=drop", "--duplicate_distance=9"], "--duplicate_distance=9:"),
    "distance without duplicates": ("classes", ["--duplicate_distance=4"], "--duplicate_distance needs --duplicates. "),
    "default distance without duplicates": ("classes", ["--duplicate_distance=8"], "--duplicate_distance needs --duplicates. "),
    "zero distance without duplicates": ("classes", ["--duplicate_distance=0"], "--duplicate_distance needs --duplicates. "),
    "exact and distance": ("classes", ["--duplicates=drop", "--exact_only", "--duplicate_distance=4"], "--exact_only and --duplicate_distance cannot"),
    "exact and default distance": ("classes", ["--duplicates=drop", "--exact_only", "--duplicate_distance=8"], "cannot be used together"),
    "earlier split without a fraction": (
        "classes",
        ["--splits_from=third.csv", "--splits=train=0.9,validation=0.1"],
        "val=…",
    ),
    "other earlier splits": ("classes", ["--splits_from=folds.csv"], "fold0=…"),
    "folds and other earlier splits": (
        "classes",
        ["--splits_from=third.csv", "--folds=2"],
        "train, val, validation. Omit --folds, or give a dataset or file with the splits fold0, fold1.",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_conflicting_options_are_rejected_in_one_line(case, inputs, monkeypatch, capsys):
    monkeypatch.chdir(inputs)
    name, options, message = CASES[case]
    assert main(["prepare", "--input", name, "--output", "out", "--estimate", *options]) == 2
    reported = capsys.readouterr().err
    assert message in reported and reported.count("\n") == 1 + reported.count("recordmill: --source="), reported


@pytest.mark.slow(2)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--splits_from=other.csv"], "--splits_from="),
        (["--splits_from=all.csv"], "none of 24 examples"),
        (["--splits_from=twice.csv"], "1 inputs: 'ant/000.jpg'"),
    ],
)
def test_options_that_conflict_with_the_inputs_are_rejected_in_one_line(options, message, inputs, monkeypatch, capsys):
    monkeypatch.chdir(inputs)
    monkeypatch.setattr("beam_pipelines.shards.measure.measure_batch", None)  # must not read images
    assert main(["prepare", "--input", "classes", "--source=image_folder", "--output", "out", *options]) == 2
    reported = capsys.readouterr().err
    assert message in reported and reported.count("\n") == 1, reported


@pytest.mark.parametrize(
    ("module", "option"),
    [(earlier_splits, "--splits_from=old.csv"), (class_files, "--label_names=names.txt"), (class_files, "--label_names_from=old")],
)
def test_storage_error_is_not_a_usage_error(module, option, inputs, monkeypatch, capsys):
    """Storage errors have their own exit code, so that schedulers can retry the command."""

    class FailingFiles:
        def exists(self, path):
            raise OSError(errno.EIO, "Input/output error", path)

        read = exists

    monkeypatch.chdir(inputs)
    monkeypatch.setattr(module, "files_at", lambda path: FailingFiles())
    assert main(["prepare", "--input", "classes", "--output", "out", "--estimate", option]) == 1
    assert re.search(r"(old.csv|old|names.txt)\S* could not be read: Input/output error", capsys.readouterr().err)
