"""Tests that `prepare` writes the expected values and summary for common kinds of published tables."""

import io
import json
import pathlib
import tarfile
import unicodedata
from typing import Any, Callable, Iterator, Sequence

import numpy as np
import pytest
import tensorflow as tf

import tf_input
from beam_pipelines.__main__ import main
from listed_rows import read_letters, write_rows
from made_images import encode, write_files
from made_records import example, write_records
from prepared import picture

NUM = 24
SUFFIXES = ("csv", "jsonl", "parquet")
CLASSES = ("cat", "dog", "owl")


def write_pictures(root: pathlib.Path, num: int = NUM) -> pathlib.Path:
    return write_files(root, {f"{index}.png": encode(picture(index, (16, 24)), "PNG") for index in range(num)})


def make_rows(row: Callable[[int], dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"file_name": f"{index}.png", **row(index)} for index in range(NUM)]


def make_csv(*columns: str, row: Callable[[int], Sequence[Any]], num: int = NUM) -> bytes:
    rows = [",".join(map(str, (f"{index}.png", *row(index)))) for index in range(num)]
    return "\n".join([",".join(("file_name", *columns)), *rows, ""]).encode()


def prepare(root: pathlib.Path, name: str, *options: str) -> int:
    return main(["prepare", "--input", str(root / name), "--output", str(root / "out"), "--splits", "train=1", *options])


def numbered_records(root: pathlib.Path) -> dict[int, dict[str, Any]]:
    """Returns a dictionary from the index of each picture to the features of its record."""
    return {int(item["key"][0].split(b".")[0].split(b"/")[-1]): item for item in read_records(root)}


def read_records(root: pathlib.Path) -> Iterator[dict[str, Any]]:
    """Yields the features of each record."""
    for record in tf.data.TFRecordDataset(sorted(map(str, (root / "out").glob("*.tfrecord-*")))).as_numpy_iterator():
        features = tf.train.Example.FromString(record).features.feature
        yield {name: list(getattr(item, item.WhichOneof("kind")).value) for name, item in features.items()}


def read_labels(root: pathlib.Path) -> dict[int, list[int]]:
    return {number: list(item["label"]) for number, item in numbered_records(root).items()}


# Labels

Labels = tuple[Callable[[int], dict[str, Any]], Sequence[str], Callable[[int], list[int]], Sequence[str]]
ONE_HOT = lambda index: {name: float(index % 3 == location) for location, name in enumerate(("MEL", "NV", "BCC"))}
FLAGS = {
    "integers": (0, 1), "floats": (0.0, 1.0), "booleans": (False, True), "lower case": ("false", "true"),
    "upper case": ("FALSE", "TRUE"), "text with decimals": ("0.0", "1.0"),
}  # fmt: skip
LABELS: dict[str, Labels] = {
    # A row, options, the expected label, and the class names.
    "whole floats with gaps": (lambda i: {"label": f"{(2, 3, 11)[i % 3]}.0"}, [], lambda i: [(2, 3, 11)[i % 3]], [*map(str, range(12))]),
    "one-hot columns as a multi-label": (ONE_HOT, ["--label=MEL,NV,BCC:multi_label"], lambda i: [(1, 2, 0)[i % 3]], ["BCC", "MEL", "NV"]),
    "class without examples": (lambda i: {"b": i % 2, "a": 0, "c": 1 - i % 2}, ["--label=a,b,c:class"], lambda i: [2 - i % 2], ["a", "b", "c"]),
    "integers from several columns": (lambda i: {"a": i, "b": f"{i}.0"}, ["--label=a,b:integer"], lambda i: [i, i], []),
    "booleans": (lambda i: {"label": i % 3 == 0}, [], lambda i: [int(i % 3 == 0)], ["False", "True"]),
    "booleans with names": (lambda i: {"label": i % 3 == 0}, ["--label_names=names.txt"], lambda i: [int(i % 3 == 0)], ["cat", "dog"]),
    "missing class": (lambda i: {"label": i % 2 if i % 4 else None}, ["--default=label=2"], lambda i: [i % 2 if i % 4 else 2], ["0", "1", "2"]),
    "missing class of floats": (lambda i: {"label": i % 2 / 1 if i % 4 else None}, ["--default=label=2.0"], lambda i: [i % 2 if i % 4 else 2], ["0", "1", "2"]),
    "missing integer": (lambda i: {"age": i % 2 / 1 if i % 4 else None}, ["--label=age:integer", "--default=age=-1"], lambda i: [i % 2 if i % 4 else -1], []),
    "missing float": (lambda i: {"age": i % 2 if i % 4 else None}, ["--label=age:float", "--default=age=0.5"], lambda i: [i % 2 if i % 4 else 0.5], []),
    **{f"list of flags {cell}": (lambda i, cell=cell: {"y": cell}, ["--label=y:one_hot[3]"], lambda i: [1], ["0", "1", "2"]) for cell in ("[0, 1, 0]", "0 1 0", "[0. 1. 0.]", "0|1|0")},
    **{
        f"one-hot columns of {form}": (
            lambda i, flags=flags: {name: flags[i % 3 == location] for location, name in enumerate(CLASSES)},
            ["--label=owl,cat,dog:one_hot"], lambda i: [i % 3], CLASSES,
        )
        for form, flags in FLAGS.items()
    },
}  # fmt: skip


@pytest.mark.slow(1)
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("case", LABELS)
def test_labels_are_stored_as_expected_in_every_table_format(tmp_path: pathlib.Path, case: str, suffix: str) -> None:
    row, options, expected, names = LABELS[case]
    write_files(write_pictures(tmp_path), {"names.txt": b"cat\ndog\n"})
    write_rows(tmp_path, make_rows(row), suffix)
    assert prepare(tmp_path, f"rows.{suffix}", *(option.replace("names.txt", str(tmp_path / "names.txt")) for option in options)) == 0
    assert read_labels(tmp_path) == {index: expected(index) for index in range(NUM)}
    assert not names or (tmp_path / "out/label.labels.txt").read_text().split() == [*names]


@pytest.mark.slow(1)
def test_one_hot_array_is_a_class(tmp_path: pathlib.Path) -> None:
    images = np.stack([picture(index, (8, 8)) for index in range(NUM)])
    np.savez(tmp_path / "rows.npz", images=images, y=np.eye(3, dtype=np.float32)[np.arange(NUM) % 3])
    assert prepare(tmp_path, "rows.npz", "--label", "y:one_hot[3]") == 0
    assert sorted(tuple(record["label"]) for record in read_records(tmp_path)) == sorted((index % 3,) for index in range(NUM))


BAD_FLAGS = {
    **{"two flags": "1 1 0", "no flag": "0 0 0", "too few": "1 0", "another number": "1 0 0.5"},
    **{"two columns": (1, 1, 0), "no column": (0, 0, 0), "another number in a column": (1, 0, 2)},
}


@pytest.mark.slow(1)
@pytest.mark.parametrize("case", BAD_FLAGS)
def test_row_without_exactly_one_flag_is_a_dead_letter(tmp_path: pathlib.Path, case: str) -> None:
    bad, are_lists = BAD_FLAGS[case], isinstance(BAD_FLAGS[case], str)
    names, good = (("flags",), "1 0 0") if are_lists else (CLASSES, (1, 0, 0))
    cells = lambda index: bad if index == 3 else good
    write_files(write_pictures(tmp_path), {"labels.csv": make_csv(*names, row=lambda index: [cells(index)] if are_lists else cells(index))})
    label = "flags:one_hot[3]" if are_lists else "cat,dog,owl:one_hot"
    assert prepare(tmp_path, "labels.csv", "--label", label, "--max_bad_fraction", "0.1") == 0
    assert {path: letter["reason"] for path, letter in read_letters(tmp_path / "out").items()} == {"labels.csv:5": "bad_label"}
    assert 3 not in read_labels(tmp_path)


REJECTED = {
    # Table, options, parts of the error.
    "one-hot without a number of classes": (make_csv("label", row=lambda i: ["1 0 0"]), ["--label=label:one_hot"], ["label:one_hot[N]"]),
    "misspelled one-hot": (make_csv("label", row=lambda i: ["1 0 0"]), ["--label=label:onehot"], ["one_hot"]),
    "missing class": (make_csv("label", row=lambda i: [i % 2 if i else ""]), [], ["--default"]),
    **{
        f"unused default {default}": (make_csv("label", "age", row=lambda i: [i % 2, i]), [f"--default={default}"], ["--default"])
        for default in ("age=1", "=1", "label", "lable=1")
    },
    "duplicate images": (make_csv("label", "id", row=lambda i: [i % 2, i // 2]) + b"3.png,1,99\n", [], ["--key_column"]),
    "duplicate images without a key": (make_csv("label", "id", row=lambda i: [i % 2, i // 2]) + b"3.png,1,99\n", ["--key_column="], ["--key_column"]),
    "duplicate keys": (make_csv("label", "id", row=lambda i: [i % 2, i // 2]) + b"3.png,1,99\n", ["--key_column=id"], ["--key_column", "''"]),
}


@pytest.mark.parametrize("case", REJECTED)
def test_invalid_options_and_cells_fail_with_advice(tmp_path: pathlib.Path, capsys, case: str) -> None:
    data, options, parts = REJECTED[case]
    write_files(write_pictures(tmp_path), {"labels.csv": data})
    assert prepare(tmp_path, "labels.csv", *options) == 2
    error = capsys.readouterr().err
    assert all(part in error for part in parts) and ("''" in error) == ("''" in parts)


# Boxes

HEIGHT, WIDTH = 16, 24
BOX_FORMS = {
    "xywh pixels": [6.0, 4.0, 12.0, 8.0],
    "xyxy pixels": [6.0, 4.0, 18.0, 12.0],
    "cxcywh pixels": [12.0, 8.0, 12.0, 8.0],
    "xywh relative": [0.25, 0.25, 0.5, 0.5],
    "xyxy relative": [0.25, 0.25, 0.75, 0.75],
    "cxcywh relative": [0.5, 0.5, 0.5, 0.5],
}


def write_objects(root: pathlib.Path, box: Callable[[int], list[float]]) -> None:
    write_rows(write_pictures(root), make_rows(lambda index: {"objects": {"bbox": [box(index)], "category": [index % 2]}}), "jsonl")


def read_warnings(root: pathlib.Path) -> list[str]:
    return json.loads((root / "out/statistics.json").read_text())["warnings"]


@pytest.mark.slow(1)
@pytest.mark.parametrize("form", BOX_FORMS)
def test_boxes_are_read_with_box_format_and_box_unit(tmp_path: pathlib.Path, form: str) -> None:
    box_format, unit = form.split()
    write_objects(tmp_path, lambda index: BOX_FORMS[form])
    assert prepare(tmp_path, "rows.jsonl", "--box_format", box_format, "--box_unit", unit) == 0
    assert {tuple(item["objects/bbox"]) for item in numbered_records(tmp_path).values()} == {(0.25, 0.25, 0.75, 0.75)}
    assert read_warnings(tmp_path) == []


@pytest.mark.slow(1)
def test_warns_about_possible_corner_boxes_without_box_format(tmp_path: pathlib.Path) -> None:
    write_objects(tmp_path, lambda index: [4, 3, 14, 12])
    assert prepare(tmp_path, "rows.jsonl") == 0
    (warning,) = read_warnings(tmp_path)
    assert f"{NUM}" in warning and "--box_format xyxy" in warning
    assert prepare(tmp_path, "rows.jsonl", "--box_format", "xywh", "--overwrite") == 0
    assert read_warnings(tmp_path) == []
    write_objects(tmp_path, lambda index: [4, 3, 14, 12] if index else [14, 3, 4, 12])  # one box cannot have corners
    assert prepare(tmp_path, "rows.jsonl", "--overwrite") == 0
    assert read_warnings(tmp_path) == []


WRONG_FORMS = {
    "relative boxes read as pixels": ([0.1, 0.2, 0.5, 0.5], (), "--box_unit relative"),
    "pixel boxes read as relative": ([4, 3, 14, 12], ("--box_unit", "relative"), "--box_unit pixels"),
    "corners far from the origin": ([14, 8, 20, 15], (), "--box_format xywh --box_unit pixels"),
    "sizes read as corners": ([14, 8, 6, 5], ("--box_format", "xyxy"), "--box_format xyxy --box_unit pixels"),
}


@pytest.mark.parametrize("case", WRONG_FORMS)
def test_impossible_boxes_fail_with_the_options_to_set(tmp_path: pathlib.Path, capsys, case: str) -> None:
    box, options, part = WRONG_FORMS[case]
    write_objects(tmp_path, lambda index: box)
    assert prepare(tmp_path, "rows.jsonl", *options) == 2
    assert part in capsys.readouterr().err and not (tmp_path / "out").exists()


BOX_COLUMNS = [
    *("xmin,ymin,xmax,ymax", "XMin,XMax,YMin,YMax", "x1,y1,x2,y2"),
    *("bbox_x,bbox_y,bbox_w,bbox_h", "left,top,width,height", "bbox"),
]


@pytest.mark.slow(2)
@pytest.mark.parametrize("names", BOX_COLUMNS)
def test_label_of_a_table_with_box_columns_keeps_one_class_per_row(tmp_path: pathlib.Path, capsys, names: str) -> None:
    columns = names.split(",")
    data = make_csv("class", *columns, row=lambda index: ["a" if index % 2 else "b", *range(1, len(columns) + 1)])
    write_files(write_pictures(tmp_path), {"labels.csv": data})
    assert prepare(tmp_path, "labels.csv", "--label", "class") == 0
    captured = capsys.readouterr()
    assert "--rows=images" in captured.err and all(name in captured.err for name in columns)
    assert f" {', '.join(sorted(columns))}\n" in captured.out
    assert prepare(tmp_path, "labels.csv", "--label", "class", "--rows", "images", "--overwrite") == 0
    assert "--rows=images" not in capsys.readouterr().err


@pytest.mark.slow(1)
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_unused_columns_are_reported(tmp_path: pathlib.Path, capsys, suffix: str) -> None:
    write_rows(write_pictures(tmp_path), make_rows(lambda index: {"label": index % 2, "far": 1, "near\n": 2, "kept": 3}), suffix)
    assert prepare(tmp_path, f"rows.{suffix}", "--feature", "kept") == 0
    near = "near" if suffix == "csv" else "near\\n"
    assert f" far, {near}\n" in capsys.readouterr().out
    assert json.loads((tmp_path / "out/statistics.json").read_text())["unused_fields"] == ["far", near]


@pytest.mark.slow(1)
@pytest.mark.parametrize("layout", [(), ("--layout", "image=image,label=label")])
def test_unused_features_of_records_are_reported(tmp_path: pathlib.Path, capsys, layout: Sequence[str]) -> None:
    rows = [example({"image": encode(picture(index), "PNG"), "label": index % 2, "far": 1, "near": b"x"}) for index in range(NUM)]
    write_records(tmp_path / "in.tfrecord", rows)
    assert prepare(tmp_path, "in.tfrecord", *layout) == 0
    assert " far, near\n" in capsys.readouterr().out


@pytest.mark.slow(1)
def test_unused_fields_and_members_of_samples_are_reported(tmp_path: pathlib.Path, capsys) -> None:
    with tarfile.open(tmp_path / "in.tar", "w") as tar:
        for index in range(NUM):
            fields = json.dumps({"label": index % 2, "far": 1}).encode()
            for name, data in (("png", encode(picture(index), "PNG")), ("json", fields), ("txt", b"near")):
                info = tarfile.TarInfo(f"{index:03d}.{name}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    assert prepare(tmp_path, "in.tar") == 0
    assert " .txt, far\n" in capsys.readouterr().out


def test_report_of_unused_columns_is_short(tmp_path: pathlib.Path, capsys) -> None:
    names = [f"c{number:03d}" for number in range(300)]
    write_files(write_pictures(tmp_path), {"labels.csv": make_csv("label", *names, row=lambda index: [index % 2, *names])})
    assert prepare(tmp_path, "labels.csv") == 0
    (line,) = (item for item in capsys.readouterr().out.splitlines() if item.startswith("not used:"))
    assert "c000, " in line and line.endswith(" more") and len(line) < 300


# Advice


@pytest.mark.parametrize("name", ["labels.csv", "list.txt"])
def test_missing_image_error_names_the_folder_and_image_root(tmp_path: pathlib.Path, capsys, name: str) -> None:
    header, separator = (["file_name,label"], ",") if name == "labels.csv" else ([], " ")
    lines = header + [f"{index}.png{separator}{index % 2}" for index in range(NUM)]
    write_files(tmp_path / "tables", {name: "\n".join(lines).encode()})
    write_pictures(tmp_path / "pictures")
    assert prepare(tmp_path, f"tables/{name}") == 2
    reported = capsys.readouterr().err
    assert f"{tmp_path / 'tables'}" in reported and "--image_root" in reported
    assert prepare(tmp_path, f"tables/{name}", "--image_root", str(tmp_path / "pictures")) == 0


@pytest.mark.slow(1)
@pytest.mark.parametrize("kind", ["text[]", "float[]", "integer[]", "text"])
def test_printed_next_step_works_for_each_label_kind(tmp_path: pathlib.Path, capsys, kind: str) -> None:
    write_rows(write_pictures(tmp_path), make_rows(lambda index: {"y": index if kind == "text" else [index] * (index % 3)}), "jsonl")
    assert prepare(tmp_path, "rows.jsonl", "--label", f"y:{kind}") == 0
    *_, line = capsys.readouterr().out.splitlines()
    step = {}
    exec(f"import tf_input\n{line.strip()}", step)  # executes the printed code
    assert next(iter(step["train"]))[1].shape[0] == NUM


# Files and names


@pytest.mark.slow(1)
@pytest.mark.parametrize("on_disk, in_table", [("NFD", "NFC"), ("NFC", "NFD")])
def test_finds_files_in_another_unicode_normal_form(tmp_path: pathlib.Path, on_disk: str, in_table: str) -> None:
    names = [f"\u00fcber/\u00e9{index}.png" for index in range(NUM)]
    pictures = [encode(picture(index, (16, 24)), "PNG") for index in range(NUM)]
    write_files(tmp_path, {unicodedata.normalize(on_disk, name): data for name, data in zip(names, pictures)})
    array = io.BytesIO()
    np.save(array, np.zeros((2, 3), np.float32))
    write_files(tmp_path, {unicodedata.normalize(on_disk, f"{name}.npy"): array.getvalue() for name in names})
    lines = ["file_name,other,label", *(f"{name},{name},{index % 2}" for index, name in enumerate(names))]
    lines = [f"{line},{'map' if index == 0 else names[index - 1] + '.npy'}" for index, line in enumerate(lines)]
    (tmp_path / "labels.csv").write_text(unicodedata.normalize(in_table, "\n".join(lines)))
    assert prepare(tmp_path, "labels.csv", "--feature", "right=other:image", "--feature", "map:array") == 0
    actual = json.loads((tmp_path / "out/manifest.json").read_text())
    assert actual["num_dead_letters"] == 0


@pytest.mark.slow(1)
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_reads_features_and_labels_of_an_npz_file(tmp_path: pathlib.Path, capsys, dtype: str) -> None:
    values = np.arange(NUM * 3).reshape(NUM, 3).astype(dtype)
    np.savez(tmp_path / "data.npz", features=values, labels=np.arange(NUM) % 3, other=np.zeros(NUM))
    assert prepare(tmp_path, "data.npz") == 0
    actual = {int(entry["key"][0].rpartition(b"#")[2]): entry for entry in read_records(tmp_path)}
    assert {number: (item["features"], item["label"]) for number, item in actual.items()} == {
        index: (values[index].tolist(), [index % 3]) for index in range(NUM)
    }
    reported = capsys.readouterr()
    assert "--feature=features" in reported.err and " other\n" in reported.out


@pytest.mark.slow(2)
@pytest.mark.parametrize("value, default", [(1, "7"), (b"cat", "none")])
def test_default_in_a_layout_replaces_missing_features(tmp_path: pathlib.Path, value: Any, default: str) -> None:
    image = encode(picture(0, (16, 24)), "PNG")
    rows = [example({"image": image, **({"label": value} if index % 3 else {})}) for index in range(NUM)]
    path = write_records(tmp_path / "in.tfrecord", rows)
    layout = f"image=image,label=label?{default}"
    assert prepare(tmp_path, "in.tfrecord", "--layout", layout) == 0
    names = ["cat", "none"] if value == b"cat" else None
    expected = {index: [int(index % 3 == 0)] if names else [1 if index % 3 else 7] for index in range(NUM)}
    assert {int(item["key"][0].rpartition(b"#")[2]): item["label"] for item in read_records(tmp_path)} == expected
    options = {"label_names": names} if names else {}
    opened = tf_input.open_tfrecords(str(path), layout=layout, **options)
    read = opened.batches("train", batch_size=NUM, shuffle=False, image_size=(16, 24))
    assert next(iter(read))[1].numpy().tolist() == [expected[index][0] for index in range(NUM)]
