"""Tests that TensorFlow libraries can read exports and datasets with the code in the generated README files."""

import pathlib
import re
from typing import Any

import pytest

from beam_pipelines.__main__ import main
from made_images import write_class_folders
from tf_input.dataset_format import CARD, read_manifest


def run_readme_code(directory: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs the Python code in the README of an export and returns the value of its variable `data`."""
    monkeypatch.chdir(directory)
    (block,) = re.findall(r"```python\n(.*?)```", (directory / CARD).read_text(), re.DOTALL)
    exec(block, names := {})
    return names["data"]


@pytest.mark.slow(4)
def test_libraries_read_exports_and_datasets_by_their_readme(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tensorflow as tf

    source = write_class_folders(tmp_path / "in", {"ant": 10, "bee": 10})
    made = tmp_path / "out"
    options = ["--splits=train=0.5,validation=0.5", "--num_shards=train=2,validation=1", "--name=pets"]
    assert main(["prepare", "--input", str(source), "--output", str(made), *options]) == 0
    for to in ("array_record", "image_folder", "tfrecord"):
        assert main(["export", str(made), str(tmp_path / to), "--to", to]) == 0
    shards = [str(made / info.name) for info in read_manifest(made).splits["train"]]
    records = list(tf.data.TFRecordDataset(shards).as_numpy_iterator())
    features = {"key": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}
    examples = [tf.io.parse_single_example(record, features) for record in records]

    assert list(run_readme_code(tmp_path / "tfrecord", monkeypatch).as_numpy_iterator()) == records
    rows = run_readme_code(tmp_path / "array_record", monkeypatch)
    assert [(row["key"], row["label"]) for row in rows] == [(example["key"].numpy(), example["label"].numpy()) for example in examples]
    assert rows[3]["image"].shape == (16, 16, 3)

    actual = run_readme_code(tmp_path / "image_folder", monkeypatch)
    assert actual.class_names == ["ant", "bee"] and sum(len(labels) for _, labels in actual) == len(records)

    monkeypatch.chdir(made)
    blocks = re.findall(r"```python\n(.*?)```", (made / CARD).read_text(), re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        exec(block, names := {})
        (first,) = names["train"].take(1)
        if isinstance(first, dict):
            assert int(first["label"]) == int(examples[0]["label"])
        else:
            images, labels = first
            assert images.shape == (len(records), 16, 16, 3) and labels.shape == (len(records),)
