"""Tables as people publish them: what the records hold after `recordmill prepare`, and what the summary says."""

import json
import pathlib
from typing import Any, Callable, Sequence

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from beam_pipelines.__main__ import main
from made_images import encode, write_files
from prepared import picture

NUM = 24


def write_pictures(root: pathlib.Path, num: int = NUM) -> pathlib.Path:
    return write_files(root, {f"{index}.png": encode(picture(index, (16, 24)), "PNG") for index in range(num)})


def csv_of(*columns: str, row: Callable[[int], Sequence[Any]], num: int = NUM) -> bytes:
    rows = [",".join(map(str, (f"{index}.png", *row(index)))) for index in range(num)]
    return "\n".join([",".join(("file_name", *columns)), *rows, ""]).encode()


def prepare(root: pathlib.Path, name: str, *options: str) -> int:
    return main(["prepare", "--input", str(root / name), "--output", str(root / "out"), "--splits", "train=1", *options])


def records(root: pathlib.Path) -> dict[int, dict[str, Any]]:
    """Number of the picture -> the features of its record."""
    found = {}
    for record in tf.data.TFRecordDataset(sorted(map(str, (root / "out").glob("*.tfrecord-*")))).as_numpy_iterator():
        features = tf.train.Example.FromString(record).features.feature
        values = {name: list(getattr(one, one.WhichOneof("kind")).value) for name, one in features.items()}
        found[int(values["key"][0].split(b".")[0].split(b"/")[-1])] = values
    return found


def labels(root: pathlib.Path) -> dict[int, list[int]]:
    return {number: list(one["label"]) for number, one in records(root).items()}


ONE_HOT = csv_of("MEL", "NV", "BCC", row=lambda index: [f"{float(index % 3 == place)}" for place in range(3)])
LABELS = {
    "whole floats, without one class between": (
        csv_of("label", row=lambda index: [f"{(2, 3, 11)[index % 3]}.0"]), (), lambda index: [(2, 3, 11)[index % 3]]
    ),
    "one class of one-hot columns": (ONE_HOT, ("--label", "MEL,NV,BCC:class"), lambda index: [(1, 2, 0)[index % 3]]),
    "several classes of one-hot columns": (ONE_HOT, ("--label", "MEL,NV,BCC:multi_label"), lambda index: [(1, 2, 0)[index % 3]]),
    "integers of several columns": (
        csv_of("a", "b", row=lambda index: [index, f"{index}.0"]), ("--label", "a,b:integer"), lambda index: [index, index]
    ),
}  # fmt: skip


@pytest.mark.slow(2)
@pytest.mark.parametrize("case", LABELS)
def test_labels_of_a_csv_file(tmp_path: pathlib.Path, case: str) -> None:
    data, options, expected = LABELS[case]
    write_files(write_pictures(tmp_path), {"labels.csv": data})
    assert prepare(tmp_path, "labels.csv", *options) == 0
    assert labels(tmp_path) == {index: expected(index) for index in range(NUM)}


@pytest.mark.slow(1)
@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_booleans_are_classes_and_numbers(tmp_path: pathlib.Path, suffix: str) -> None:
    rows = [{"file_name": f"{index}.png", "label": index % 3 == 0, "old": index % 2 == 0} for index in range(NUM)]
    write_pictures(tmp_path)
    if suffix == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    else:
        (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert prepare(tmp_path, f"rows.{suffix}", "--feature", "old:integer") == 0
    found = records(tmp_path)
    assert {number: (one["label"], one["old"]) for number, one in found.items()} == {
        index: ([int(index % 3 == 0)], [int(index % 2 == 0)]) for index in range(NUM)
    }


@pytest.mark.slow(1)
def test_a_one_hot_column_without_an_example_is_a_class_all_the_same(tmp_path: pathlib.Path) -> None:
    write_files(write_pictures(tmp_path), {"labels.csv": csv_of("b", "a", "c", row=lambda index: [index % 2, 0, 1 - index % 2])})
    assert prepare(tmp_path, "labels.csv", "--label", "a,b,c:class") == 0
    assert labels(tmp_path) == {index: [2 - index % 2] for index in range(NUM)}
