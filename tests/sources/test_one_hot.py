"""Tests one-hot labels: one column for each class, or a list with one flag for each class."""

import json
import pathlib
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_pipelines.__main__ import main
from made_images import encode, write_files
from prepared import picture
from test_table_values import NUM, make_csv, prepare, read_labels, read_records, write_pictures

NAMES = ("cat", "dog", "owl")
FLAGS = {
    "integers": (0, 1),
    "floats": (0.0, 1.0),
    "booleans": (False, True),
    "lower case": ("false", "true"),
    "upper case": ("FALSE", "TRUE"),
    "text with decimals": ("0.0", "1.0"),
}


def write_table(root: pathlib.Path, suffix: str, rows: list[dict[str, Any]]) -> str:
    if suffix == "csv":
        data = "\n".join([",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows), ""]).encode()
        write_files(root, {"rows.csv": data})
    elif suffix == "jsonl":
        write_files(root, {"rows.jsonl": "".join(f"{json.dumps(row)}\n" for row in rows).encode()})
    else:
        pq.write_table(pa.Table.from_pylist(rows), root / "rows.parquet")
    return f"rows.{suffix}"


@pytest.mark.slow(1)
@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("form", FLAGS)
def test_one_hot_columns_are_a_class_in_every_table_format(tmp_path: pathlib.Path, form: str, suffix: str) -> None:
    write_pictures(tmp_path)
    columns = [{name: FLAGS[form][index % 3 == location] for location, name in enumerate(NAMES)} for index in range(NUM)]
    name = write_table(tmp_path, suffix, [{"file_name": f"{index}.png", **row} for index, row in enumerate(columns)])
    assert prepare(tmp_path, name, "--label", "owl,cat,dog:one_hot") == 0
    assert read_labels(tmp_path) == {index: [index % 3] for index in range(NUM)}
    assert (tmp_path / "out/label.labels.txt").read_text().split() == [*NAMES]


@pytest.mark.slow(1)
@pytest.mark.parametrize("cell", ["[0, 1, 0]", "0 1 0", "[0. 1. 0.]", "0|1|0"])
def test_list_of_flags_is_a_class(tmp_path: pathlib.Path, cell: str) -> None:
    data = make_csv("label", row=lambda index: [f'"{cell}"'])
    write_files(write_pictures(tmp_path), {"labels.csv": data, "names.txt": "\n".join(NAMES).encode()})
    assert prepare(tmp_path, "labels.csv", "--label", "label:one_hot[3]") == 0
    assert read_labels(tmp_path) == {index: [1] for index in range(NUM)}
    assert prepare(tmp_path, "labels.csv", "--label", "label:one_hot", "--label_names", f"{tmp_path}/names.txt", "--overwrite") == 0
    assert (tmp_path / "out/label.labels.txt").read_text().split() == [*NAMES]


@pytest.mark.slow(1)
def test_one_hot_array_is_a_class(tmp_path: pathlib.Path) -> None:
    images = np.stack([picture(index, (8, 8)) for index in range(NUM)])
    np.savez(tmp_path / "rows.npz", images=images, y=np.eye(3, dtype=np.float32)[np.arange(NUM) % 3])
    assert prepare(tmp_path, "rows.npz", "--label", "y:one_hot[3]") == 0
    assert sorted(tuple(record["label"]) for record in read_records(tmp_path)) == sorted((index % 3,) for index in range(NUM))


BAD = {
    "two flags in columns": ("cat,dog,owl:one_hot", lambda index: [1, int(index == 3), 0]),
    "no flag in columns": ("cat,dog,owl:one_hot", lambda index: [int(index != 3), 0, 0]),
    "another number in columns": ("cat,dog,owl:one_hot", lambda index: [1, 0, 2 if index == 3 else 0]),
}
BAD_LISTS = {"two flags": "1 1 0", "no flag": "0 0 0", "too few": "1 0", "another number": "1 0 0.5"}


@pytest.mark.slow(1)
@pytest.mark.parametrize("case", [*BAD, *BAD_LISTS])
def test_row_without_exactly_one_flag_is_a_dead_letter(tmp_path: pathlib.Path, case: str) -> None:
    if case in BAD:
        label, row = BAD[case]
        data = make_csv(*NAMES, row=row)
    else:
        label, data = "flags:one_hot[3]", make_csv("flags", row=lambda index: [BAD_LISTS[case] if index == 3 else "1 0 0"])
    write_files(write_pictures(tmp_path), {"labels.csv": data})
    assert prepare(tmp_path, "labels.csv", "--label", label, "--max_bad_fraction", "0.1") == 0
    (letter,) = map(json.loads, (tmp_path / "out/dead_letters.jsonl").read_text().splitlines())
    assert letter["reason"] == "bad_label" and letter["path"] == "labels.csv:5"
    assert 3 not in read_labels(tmp_path)


def test_one_hot_column_needs_a_number_of_classes(tmp_path: pathlib.Path, capsys) -> None:
    write_files(write_pictures(tmp_path), {"labels.csv": make_csv("label", row=lambda index: ["1 0 0"])})
    assert prepare(tmp_path, "labels.csv", "--label", "label:one_hot") == 2
    assert "label:one_hot[N]" in capsys.readouterr().err
    assert main(["prepare", "--input", str(tmp_path / "labels.csv"), "--output", str(tmp_path / "out"), "--label", "label:onehot"]) == 2
    assert "one_hot" in capsys.readouterr().err


@pytest.mark.slow(1)
@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_booleans_have_the_same_class_names_in_every_table_format(tmp_path: pathlib.Path, suffix: str) -> None:
    write_files(tmp_path, {f"{index}.png": encode(picture(index, (16, 24)), "PNG") for index in range(NUM)})
    name = write_table(tmp_path, suffix, [{"file_name": f"{index}.png", "label": index % 3 == 0} for index in range(NUM)])
    assert prepare(tmp_path, name) == 0
    assert read_labels(tmp_path) == {index: [int(index % 3 == 0)] for index in range(NUM)}
    assert (tmp_path / "out/label.labels.txt").read_text().split() == ["False", "True"]
    write_files(tmp_path, {"names.txt": b"no\nyes\n"})
    assert prepare(tmp_path, name, "--label_names", str(tmp_path / "names.txt"), "--overwrite") == 0
    assert read_labels(tmp_path) == {index: [int(index % 3 == 0)] for index in range(NUM)}
