"""Tests that the source `table` reads columns, labels, splits and embedded images, and rejects hostile tables."""

import datetime
import decimal
import gzip
import itertools
import json
import os
import pathlib
import tracemalloc
import types
import uuid
from typing import Any, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_pipelines.elements.input_record import ENTIRE_FILE, FilePart, InputRecord
from beam_pipelines.errors import UserError
from beam_pipelines.images.annotations import Objects
from beam_pipelines.config.values import parse_splits
from beam_pipelines.sources.formats.table import parquet_rows
from beam_pipelines.storage.spool import SpoolReader
from listed_rows import Listing, open_rows, to_csv, to_jsonl, to_parquet, write
from made_images import jpeg, png, write_files
from object_stores import StoreServer, connected_to, shared_server, upload_files
from tf_input.dataset_format import Feature

LABEL = Feature("label", "class_label")

WRITERS = {
    **{"labels.csv": to_csv, "labels.CSV": to_csv, "labels.tsv": lambda rows: to_csv(rows, "\t")},
    **{"semicolons.csv": lambda rows: to_csv(rows, ";"), "labels.csv.gz": lambda rows: gzip.compress(to_csv(rows))},
    **{"labels.jsonl": to_jsonl, "labels.ndjson": to_jsonl, "labels.jsonl.gz": lambda rows: gzip.compress(to_jsonl(rows))},
    "labels.parquet": to_parquet,
}
ROWS = [
    {"file_name": "cat/1.jpg", "label": "cat", "age": 3, "note": 'a "b", c\nd'},
    {"file_name": "dog/Lo\u0308we.jpg", "label": "Löwe", "age": -4, "note": "<script>alert(1)</script>"},
    {"file_name": "./cat//2.jpg", "label": "=1+1", "age": 5, "note": ""},
]


@pytest.mark.parametrize("name", WRITERS)
def test_each_format_gives_the_same_inputs(tmp_path: pathlib.Path, name: str) -> None:
    listed = Listing(write(tmp_path, WRITERS[name](ROWS), name), features=["age:integer", "note"])
    assert not listed.dead_letters
    keys, paths = ("cat/1.jpg", "dog/L\u00f6we.jpg", "cat/2.jpg"), ("cat/1.jpg", "dog/Lo\u0308we.jpg", "cat/2.jpg")
    assert listed.all == [
        InputRecord(key, path, row["label"], None, values={"age": row["age"], "note": row["note"]}) for key, path, row in zip(keys, paths, ROWS)
    ]
    source = listed.source
    assert (source.root, source.parts(), source.targets) == (os.path.realpath(tmp_path), [name], ("label",))
    assert source.features == (LABEL, Feature("age", "integer"), Feature("note", "text"))
    assert source.label_names() == {} and source.num_ignored == 0


# Columns

PIXELS = ",".join(f"pixel{index}" for index in range(4))
COLUMNS: list[tuple[str, dict[str, Any], dict[str, str]]] = [
    # Header and first row, options, expected labels by key.
    *((f"label,{name}\ncat,1.jpg", {}, {"1.jpg": "cat"}) for name in ("file_name", "image", "image_path", "path", "filename", "filepath", "file")),
    *((f"label,{name}\ncat,1.jpg", {}, {"1.jpg": "cat"}) for name in ("Image", "FileName", "image_id", "image_name", "img_path", "img", "id_code")),
    *((f"file_name,{name}\n1.jpg,a|b", {}, {"1.jpg": "a|b"}) for name in ("label", "labels", "class", "category", "Label")),
    ("image,file_name,photo,class,label,species\n1.jpg,2.jpg,3.jpg,a,b,c", {}, {"2.jpg": "b"}),
    ("image,file_name,photo,class,label,species\n1.jpg,2.jpg,3.jpg,a,b,c", {"labels": ["species"], "image_column": "photo"}, {"3.jpg": "c"}),
    ("label,image_id,height\ncat,a.jpg,3", {"features": ["height:float"]}, {"a.jpg": "cat"}),
    ("label,image_id,height\ncat,a,3", {"features": ["height:float"], "image_suffix": ".jpg"}, {"a.jpg": "cat"}),
    ("label,image_id,height\ncat,17,3", {"features": ["height:float"]}, {"labels.csv:2": "cat"}),  # a number, and not an image
    ("label,image_id,file\ncat,a,b.jpg", {}, {"b.jpg": "cat"}),
    (f"label,image_id,{PIXELS}\n1,a,1,2,3,4", {}, {"labels.csv:2": "1"}),
]


@pytest.mark.parametrize("text, options, labels", COLUMNS, ids=[case[0].partition("\n")[0] for case in COLUMNS])
def test_columns_are_found_by_usual_names_and_options(tmp_path: pathlib.Path, text: str, options: dict, labels: dict[str, str]) -> None:
    listed = Listing(write(tmp_path, text), **options)
    assert listed.labels == labels and listed.source.features[0] == LABEL  # a CSV cell is never taken for a list


@pytest.mark.parametrize("files, suffix", [(["a.png"], ".png"), (["a.npy", "a.jpg"], ".jpg"), (["a.png", "a.jpg"], ""), (["a", "a.png"], ""), ([], "")])
def test_suffix_of_images_is_the_extension_of_the_only_file(tmp_path: pathlib.Path, files: list[str], suffix: str) -> None:
    write_files(tmp_path / "images", {name: b"" for name in files})
    for name, kind, text in (("a.csv", "table", "image_id,label\na,1\nb,2\n"), ("a.txt", "text", "a 1\nb 2\n")):
        listed = Listing(write(tmp_path, text, name), kind=kind, image_root=os.fspath(tmp_path / "images"))
        assert [*listed.images] == [f"a{suffix}", f"b{suffix}"] and (f"--image_suffix={suffix}" in listed.source.detected) == bool(suffix)


ROLES = "file_name,label,key,split,group,weight\n1.jpg,cat,k1,val,g1,0.5\n2.jpg,dog,k2,TRAIN,,2\n"
ROLE_CASES: list[tuple[dict[str, Any], list[InputRecord]]] = [
    ({}, [InputRecord("k1", "1.jpg", "cat", "validation", group="g1", values={"weight": 0.5}), InputRecord("k2", "2.jpg", "dog", "train", values={"weight": 2.0})]),
    (
        {"split_column": "", "group": "", "weight_column": "", "key_column": "label"},
        [InputRecord("cat", "1.jpg", "cat", None), InputRecord("dog", "2.jpg", "dog", None)],
    ),
    (
        {"split_column": "label", "group": "key", "weight_column": "weight", "key_column": "label, key"},
        [
            InputRecord("cat|k1", "1.jpg", "cat", "cat", group="k1", values={"weight": 0.5}),
            InputRecord("dog|k2", "2.jpg", "dog", "dog", group="k2", values={"weight": 2.0}),
        ],
    ),
]


@pytest.mark.parametrize("options, expected", ROLE_CASES)
def test_key_split_group_and_weight_columns(tmp_path: pathlib.Path, options: dict[str, Any], expected: list[InputRecord]) -> None:
    listed = Listing(write(tmp_path, ROLES), **options)
    assert listed.all == expected and listed.source.targets == ("label",)
    assert listed.source.features == (LABEL, *([Feature("weight", "float")] if expected[0].values else []))


MISSING_COLUMNS = {
    "--label or --feature": [{"labels": ["x"]}, {"features": ["x:integer"]}],
    **{"--image_column": [{"image_column": "x"}], "--key_column": [{"key_column": "x"}], "--split_column": [{"split_column": "x"}]},
    **{"--group": [{"group": "x"}], "--weight_column": [{"weight_column": "x"}]},
}


@pytest.mark.parametrize("option", MISSING_COLUMNS)
def test_error_lists_missing_and_available_columns(tmp_path: pathlib.Path, option: str) -> None:
    path = write(tmp_path, "file_name,label\n1.jpg,cat\n")
    for options in MISSING_COLUMNS[option]:
        with pytest.raises(UserError) as caught:
            open_rows(path, **options)
        assert all(part in str(caught.value) for part in ("labels.csv: ", f"'x' ({option})", "file_name, label")), options


BAD_HEADERS: dict[str, tuple[str | bytes, str]] = {
    "no image column": ("a,label", "columns file_name, image,"),
    "no label column": ("file_name,a", "--label none"),
    "row instead of a header": ("1.jpg,cat", "1.jpg, cat"),
    "duplicate name": ("file_name,label,label", "2 columns are named 'label'"),
    "empty file": ("", "--column_names"),
    "UTF-16": ("file_name,label".encode("utf-16"), "not valid UTF-8"),
    "unclosed quote": ('file_name,"label', "invalid CSV"),
    "huge line": ("x" * (17 << 20), "--skip_lines"),
    "control characters": ("file_name\x1b[31m,b", r"file_name\x1b[31m"),
}


@pytest.mark.parametrize("name", BAD_HEADERS)
def test_rejects_invalid_headers(tmp_path: pathlib.Path, name: str) -> None:
    header, part = BAD_HEADERS[name]
    with pytest.raises(UserError) as caught:
        open_rows(write(tmp_path, (header.encode() if isinstance(header, str) else header) + (b"\n1.jpg,cat\n" if header else b"")))
    assert part in str(caught.value) and str(caught.value).isprintable()


# Labels


@pytest.mark.parametrize("name", ["labels.jsonl", "labels.parquet"])
def test_list_is_a_multi_label_in_typed_formats(tmp_path: pathlib.Path, name: str) -> None:
    rows = [{"file_name": "1.jpg", "labels": ["b", "a"]}, {"file_name": "2.jpg", "labels": []}]
    listed = Listing(write(tmp_path, WRITERS[name](rows), name))
    assert listed.source.features == (Feature("label", "class_label", (None,)),)
    assert [image.values for image in listed.all] == [{"label": ("a", "b")}, {"label": ()}]


@pytest.mark.parametrize("labels, label, values, targets", [
    (["w", "g"], "", {"w": "fog", "g": "3"}, ("w", "g")),
    (["cat,dog:multi_label"], "", {"label": ("cat",)}, ("label",)),
    (["x,y:float"], "", {"label": (0.5, 2.0)}, ("label",)),
    (["m:mask"], "", {"mask": FilePart("masks/1.png")}, ("mask",)),
    (["w"], "fog", None, ("label",)),
    (["none"], "", None, ()),
])  # fmt: skip
def test_label_option_selects_the_targets(tmp_path: pathlib.Path, labels: list[str], label: str, values: Any, targets: tuple) -> None:
    listed = Listing(write(tmp_path, "image,w,g,cat,dog,x,y,m\n1.jpg,fog,3,1,0,.5,2,masks/1.png\n"), labels)
    assert (listed.all[0].label, listed.all[0].values, listed.source.targets) == (label, values, targets)


@pytest.mark.parametrize("kind, text, bad", [("table", "image,maps\n1.jpg,a.npy\n", "image,maps\n"), ("text", "bad\n1.jpg a.npy\n", "bad\n")])
def test_shape_of_arrays_is_the_shape_of_the_first(tmp_path: pathlib.Path, kind: str, text: str, bad: str) -> None:
    np.save(tmp_path / "a.npy", np.zeros((4, 5, 2), np.float32))
    listed = Listing(write(tmp_path, text), ["maps:array"], kind=kind)
    assert listed.source.features == (Feature("label", "float", (4, 5, 2)),)
    assert listed.all[0].values == {"label": FilePart("a.npy")}
    with pytest.raises(UserError, match="maps:array"):
        open_rows(write(tmp_path, bad), ["maps:array"], kind=kind)


BOXES = {"bbox": [[10, 20, 30, 40], [0.5, 0, 1, 1]], "category": ["cat", 3]}
BOTH = Objects(((20.0, 10.0, 60.0, 40.0), (0.0, 0.5, 1.0, 1.5)), ("cat", "3"))
ONE = {"bbox": [[1, 2, 3, 4]], "category": ["a"]}
OBJECTS: list[tuple[Any, Objects]] = [
    (BOXES, BOTH),
    ({"bbox": BOXES["bbox"], "categories": ["cat", "3"], "area": [1, 2]}, BOTH),
    ([{"bbox": [10, 20, 30, 40], "category": "cat"}, {"bbox": [0.5, 0, 1, 1], "category": 3}], BOTH),
    ({"bbox": [], "category": []}, Objects((), ())),
    (None, Objects((), ())),
]


@pytest.mark.parametrize("labels", [None, ["objects"]])
def test_reads_boxes_and_classes_of_objects(tmp_path: pathlib.Path, labels: list[str] | None) -> None:
    rows = [{"file_name": f"{index}.jpg", "objects": cell} for index, (cell, _) in enumerate(OBJECTS)]
    listed = Listing(write(tmp_path, to_jsonl(rows), "metadata.jsonl"), labels)
    assert listed.source.features == (Feature("objects/bbox", "bbox", (None, 4)), Feature("objects/label", "class_label", (None,)))
    assert listed.source.targets == ("objects",) and listed.source.unused_fields.names == {"area"}
    assert [image.values for image in listed.all] == [{"objects": value} for _, value in OBJECTS]
    rows = [{"file_name": "1.jpg", "objects": {"bbox": [[1.0, 2.0, 3.0, 4.0]], "category": [7]}}]
    listed = Listing(write(tmp_path, to_parquet(rows), "objects.parquet"), labels)
    assert listed.all[0].values == {"objects": Objects(((2.0, 1.0, 6.0, 4.0),), ("7",))}


def test_flags_of_the_first_objects_are_kept(tmp_path: pathlib.Path) -> None:
    flags = [{"is_crowd": [True]}, {}, {"is_crowd": [None]}, *[{}] * 100, {"is_difficult": [True]}]
    rows = [{"file_name": f"{index}.jpg", "objects": {**ONE, **some}} for index, some in enumerate(flags)]
    listed = Listing(write(tmp_path, to_jsonl(rows), "metadata.jsonl"))
    assert [image.values["objects"].flags for image in listed.all] == [{"is_crowd": (int(index == 0),)} for index in range(len(rows))]
    assert listed.source.unused_fields.names == {"is_difficult"}


BAD_OBJECTS = [
    *({"bbox": [box], "category": ["a"]} for box in ([1, 2, 3], [1, 2, 3, "4"], [1, 2, 3, float("nan")], [1, 2, 3, 1e300], [1, 2, 3, True])),
    *({"bbox": [[1, 2, 3, 4]], "category": []}, {"bbox": 7, "category": ["a"]}, {"boxes": []}, [7], "none"),
]


def test_bad_objects_are_dead_letters(tmp_path: pathlib.Path) -> None:
    rows = [{"file_name": f"{index}.jpg", "objects": cell} for index, cell in enumerate([ONE, *BAD_OBJECTS, {**ONE, "category": ["dog"]}])]
    listed = Listing(write(tmp_path, to_jsonl(rows), "metadata.jsonl"), label_names=("a",))
    assert [*listed.images] == ["0.jpg"] and [*listed.reasons.values()] == ["bad_objects"] * len(BAD_OBJECTS) + ["bad_label"]
    assert all(letter.message.startswith("column 'objects' ") for letter in listed.dead_letters.values())


# Files and splits


def test_paths_are_relative_to_the_image_root(tmp_path: pathlib.Path) -> None:
    images = write_files(tmp_path / "images", {"a.jpg": jpeg()})
    path = write(tmp_path / "tables", f"image,label\na.jpg,1\n{images}/b.jpg,2\n{tmp_path}/c.jpg,3\n")
    listed = Listing(path, image_root=os.fspath(images), with_sizes=True)
    assert listed.source.root == os.path.realpath(images)
    assert {key: image.num_bytes for key, image in listed.images.items()} == {"a.jpg": len(jpeg()), "b.jpg": 0}
    assert [letter.reason for letter in listed.dead_letters.values()] == ["outside"]


def row(name: str) -> bytes:
    return f"file_name,label\n{name}.jpg,1\n".encode()


TRAIN = {"splits": parse_splits("train=1")}
NO_SPLITS = {"split_folders": False}
FOLDERS = {
    "train/metadata.jsonl": to_jsonl([{"file_name": "a.jpg", "label": 1}]),
    "valid/metadata.csv": b"label,file_name\n2,deep/b.jpg\n3,/c.jpg\n4,../train/d.jpg\n5,../../e.jpg\n",
    "test/metadata.parquet": to_parquet([{"file_name": "f.jpg", "label": 6}]),
    "README.md": b"",
}
IN_FOLDERS = {"train/a.jpg": "train", "valid/deep/b.jpg": "validation", "train/d.jpg": "validation", "test/f.jpg": "test"}
PARTS = {"part-0.csv": b"file_name,label,more\n0.jpg,0,x\n", "part-1.csv": b"label,file_name\n1,1.jpg\n", ".hidden.csv": b"", "_SUCCESS": b"", "0.jpg": jpeg()}
PATTERNS = {name: row(str(index)) for index, name in enumerate(("a-0.csv", "a-1.csv", "b.csv", "deep/train.csv", "deep/test-00.csv"))}
PATTERNS |= {"other.parquet": row("5"), "notes.csv/x": b""}
ROBOFLOW = {f"{site}{split}/_annotations.csv": row("x") for site in ("", "a/", "b/") for split in ("train", "valid", "test")}
ROBOFLOW |= {"more/_annotations.csv": row("x"), "_annotations.csv": row("x")}
SHARDS = {f"{name}.parquet": to_parquet([{"file_name": f"{name[:2]}{name[-1]}.jpg", "label": 1}]) for name in ("train-00000-of-00002", "train-00001-of-00003", "test-00000-of-00001", "validation")}
SPLIT_COLUMN = {"train/metadata.csv": b"file_name,label,split\na.jpg,1,test\n"}
METADATA = {"metadata.csv": row("a"), "other.csv": b"", "c/b.jpg": jpeg()}

# Files, the input, options, and the expected splits by key or the error.
LAYOUTS: list[tuple[dict[str, bytes], str, dict[str, Any], dict[str, str | None] | str]] = [
    (METADATA, "", {}, {"a.jpg": None}),
    (METADATA, "", {"config": {"split_folders": True}}, "--split_folders=yes: "),
    (METADATA, "metadata.csv", {"config": {"split_folders": True}}, "--split_folders=yes: "),
    ({**METADATA, "metadata.jsonl": b"{}"}, "", {}, "metadata.csv, metadata.jsonl"),
    (FOLDERS, "", {}, IN_FOLDERS),
    (FOLDERS, "", {"config": NO_SPLITS}, dict.fromkeys(IN_FOLDERS)),
    (FOLDERS, "", {"config": TRAIN}, "--splits: .* has splits .*--split_folders=no"),
    ({**FOLDERS, "more/metadata.csv": row("g")}, "", {}, "'more'"),
    ({**FOLDERS, "more/metadata.csv": row("g")}, "", {"config": {"split_folders": True}}, {**IN_FOLDERS, "more/g.jpg": "more"}),
    (PARTS, "", {}, {"0.jpg": None, "1.jpg": None}),
    ({**PARTS, "part-2.csv": b"file_name,species\n3.jpg,3\n"}, "", {}, "part-2.csv: .*'label'.* file_name, species"),
    ({**PARTS, "part-2.parquet": b""}, "", {}, "part-0.csv"),
    ({"part-0.jsonl": b"", "part-1.jsonl": b"\n[]\n", "part-2.jsonl": to_jsonl(ROWS[2:])}, "", {}, {"cat/2.jpg": None}),
    ({"part-0.jsonl": b""}, "part-0.jsonl", {}, "part-0.jsonl: .*--image_column"),
    (PATTERNS, "*.csv", {}, dict.fromkeys(("0.jpg", "1.jpg", "2.jpg"))),
    (PATTERNS, "a-?.csv", {}, dict.fromkeys(("0.jpg", "1.jpg"))),
    (PATTERNS, "a-{0..1}.csv", {}, dict.fromkeys(("0.jpg", "1.jpg"))),
    (PATTERNS, "{a-0,b}.csv", {}, dict.fromkeys(("0.jpg", "2.jpg"))),
    (PATTERNS, "deep/*.csv", {}, {"3.jpg": "train", "4.jpg": "test"}),
    (PATTERNS, "**/a*.csv", {}, dict.fromkeys(("0.jpg", "1.jpg"))),
    (PATTERNS, "**/*.csv", {"config": NO_SPLITS}, dict.fromkeys(("0.jpg", "1.jpg", "2.jpg", "deep/3.jpg", "deep/4.jpg"))),
    (PATTERNS, "**/*.csv", {}, "'a' is not named like a split"),
    (PATTERNS, "*", {}, "a-0.csv, a-1.csv, b.csv, other.parquet"),
    (PATTERNS, "x*.csv", {}, "no file"),
    (PATTERNS, "[z-a].csv", {}, "bad character range z-a"),
    (PATTERNS, "deep/{..,a}/*.csv", {}, "no file"),  # `..` is an ordinary name in a pattern
    (ROBOFLOW, "{train,valid,test}/_annotations.csv", {}, {"train/x.jpg": "train", "valid/x.jpg": "validation", "test/x.jpg": "test"}),
    (ROBOFLOW, "t*/_annotations.csv", {}, {"train/x.jpg": "train", "test/x.jpg": "test"}),
    (ROBOFLOW, "?/t*/_annotations.csv", {}, {f"{site}/{split}/x.jpg": split for site in "ab" for split in ("train", "test")}),
    (ROBOFLOW, "t*/_annotations.csv", {"config": NO_SPLITS}, {"train/x.jpg": None, "test/x.jpg": None}),
    (ROBOFLOW, "t*/_annotations.csv", {"config": TRAIN}, "--splits: .* has splits .*--split_folders=no"),
    *((ROBOFLOW, f"{names}.csv", {}, "not named like a split.*--split_folders=no") for names in ("{train,a/test}/*", "*/_annotations", "{.,train}/_annotations")),
    (SHARDS, "", {}, {"tr2.jpg": "train", "tr3.jpg": "train", "te1.jpg": "test", "van.jpg": "validation"}),
    (SPLIT_COLUMN, "", {}, {"train/a.jpg": "train"}),
    (SPLIT_COLUMN, "", {"split_column": "split"}, {"train/a.jpg": "test"}),
    (SPLIT_COLUMN, "train/metadata.csv", {"config": TRAIN}, "--splits: .*column 'split'.*--split_column="),
    (SPLIT_COLUMN, "train/metadata.csv", {"config": TRAIN, "split_column": ""}, {"a.jpg": None}),
    *(({"a.json": b"[]\n", "empty/1.jpg": jpeg()}, name, {}, "^--input=") for name in ("nothing.csv", "a.json", "empty")),
]


@pytest.mark.parametrize("files, name, options, expected", LAYOUTS)
def test_finds_tables_and_their_splits(tmp_path: pathlib.Path, files: dict, name: str, options: dict, expected: dict | str) -> None:
    write_files(tmp_path, files)
    if isinstance(expected, str):
        with pytest.raises(UserError, match=expected):
            Listing(tmp_path / name, **options)
        return
    listed = Listing(tmp_path / name, **options)
    assert listed.splits == expected
    if files is FOLDERS:
        assert listed.source.parts() == ["test/metadata.parquet", "train/metadata.jsonl", "valid/metadata.csv"]
        assert listed.labels["train/d.jpg"] == "4" and listed.reasons == {"valid/metadata.csv:3": "outside", "valid/metadata.csv:5": "outside"}


@pytest.mark.parametrize("kind, header, mark", [("table", "image,label,mask,height\n", ","), ("text", "", " ")])
def test_ignored_images_are_counted_and_their_other_cells_are_not_checked(tmp_path: pathlib.Path, kind: str, header: str, mark: str) -> None:
    rows = ("a.jpg,1,a.png,1", "valid/b.jpg,\x07,../b.png,1", "valid/c.jpg,1,c.png,tall", "d.jpg,1,../d.png,1", "e.gif,1,e.png,1")
    path = write(tmp_path, header + "".join(f"{row}\n".replace(",", mark) for row in rows))
    columns = {"labels": ["label"], "features": ["mask:mask", "height:float"]}
    listed = Listing(path, **columns, kind=kind, config={"ignore": ("valid/*", "*.gif")})
    assert ([*listed.images], [*listed.reasons.values()], listed.source.num_ignored) == (["a.jpg"], ["outside"], 3)


def test_metadata_link_to_outside_is_not_followed(tmp_path: pathlib.Path) -> None:
    write_files(tmp_path, {"secret.csv": b"file_name,label\na.jpg,1\n", "images/a.jpg": jpeg()})
    (tmp_path / "images" / "metadata.csv").symlink_to(tmp_path / "secret.csv")
    with pytest.raises(UserError, match="--follow_links"):
        open_rows(tmp_path / "images")


# Images in the table


@pytest.mark.parametrize("in_struct", [True, False])
def test_images_in_parquet_are_spooled(tmp_path: pathlib.Path, in_struct: bool) -> None:
    data = [jpeg(1), png(2), jpeg(3)]
    rows = [{"image": {"bytes": image, "path": "same.jpg"} if in_struct else image, "label": index} for index, image in enumerate(data)]
    path = write(tmp_path / "in", to_parquet(rows, row_group_size=2), "train.parquet")
    spool_directory = os.fspath(tmp_path / "spool")
    listed = Listing(path, spool_directory=spool_directory)
    assert listed.labels == {f"train.parquet/{index:09d}": str(index) for index in range(3)}
    with SpoolReader(spool_directory) as reader:
        assert [reader.read(image.spool, image.offset, image.num_bytes) for image in listed.all] == data
    estimated = Listing(path)
    assert [image.num_bytes for image in estimated.all] == [*map(len, data)]
    assert {image.spool for image in estimated.all} == {0}


def test_spooled_image_can_be_read_during_the_listing(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path / "in", to_parquet([{"image": jpeg(seed), "label": 0} for seed in range(3)]), "a.parquet")
    source = open_rows(path, spool_directory=os.fspath(tmp_path / "spool"))
    first = next(iter(source.list("a.parquet")))
    reader = SpoolReader(os.fspath(tmp_path / "spool"))
    assert isinstance(first, InputRecord) and reader.read(first.spool, first.offset, first.num_bytes) == jpeg(0)
    reader.close()


def test_image_cell_may_have_only_a_path(tmp_path: pathlib.Path) -> None:
    cells = ((jpeg(), None), (None, "a.jpg"), (None, None), (b"", "../a.jpg"))
    rows = [{"image": {"bytes": data, "path": path}, "label": index} for index, (data, path) in enumerate(cells, start=1)]
    listed = Listing(write(tmp_path, to_parquet(rows), "a.parquet"), spool_directory=os.fspath(tmp_path / "spool"))
    assert listed.labels == {"a.parquet/000000000": "1", "a.jpg": "2"}
    assert listed.images["a.jpg"].offset == ENTIRE_FILE and listed.images["a.jpg"].spool == 0
    assert listed.reasons == {"a.parquet:3": "bad_value", "a.parquet:4": "outside"}
    rows = [{"image": {"path": "a.jpg"}, "label": "x"}, {"image": {"file_name": "b.jpg"}, "label": "y"}]
    assert Listing(write(tmp_path, to_jsonl(rows), "a.jsonl")).labels == {"a.jpg": "x", "b.jpg": "y"}


@pytest.mark.parametrize("first", ["bytes", "path"])
def test_files_of_a_table_may_mix_images_and_paths(tmp_path: pathlib.Path, first: str) -> None:
    files = {"bytes": {"image": jpeg(1), "other": png(2), "label": 1}, "path": {"image": "a.jpg", "other": "b.png", "label": 2}}
    names = {first: "part-0.parquet", ({*files} - {first}).pop(): "part-1.parquet"}
    write_files(tmp_path / "in", {"a.jpg": jpeg(3), "b.png": png(4), **{names[kind]: to_parquet([row]) for kind, row in files.items()}})
    (tmp_path / "spool").mkdir()
    listed = Listing(tmp_path / "in", features=["other:image"], with_sizes=True, spool_directory=os.fspath(tmp_path / "spool"))
    images = {image.label: image for image in listed.all}
    assert not listed.dead_letters and images["2"].key == "a.jpg" and images["1"].key == f"{names['bytes']}/000000000"
    assert (images["2"].num_bytes, images["2"].values["other"].num_bytes) == (len(jpeg(3)), len(png(4)))
    with SpoolReader(os.fspath(tmp_path / "spool")) as reader:
        assert [reader.read(image.spool, image.offset, image.num_bytes) for image in (images["1"], images["1"].values["other"])] == [jpeg(1), png(2)]


def named(rows: list[dict[str, Any]], features: Any) -> bytes:
    """Returns a Parquet file with the metadata that Hugging Face libraries write."""
    metadata = features if isinstance(features, bytes) else json.dumps({"info": {"features": features}})
    return to_parquet(pa.Table.from_pylist(rows).replace_schema_metadata({"huggingface": metadata}))


def class_label(*names: str) -> dict[str, Any]:
    return {"names": names, "_type": "ClassLabel"}


def test_class_names_of_integers_come_from_the_file(tmp_path: pathlib.Path) -> None:
    rows = [{"file_name": f"{label}.jpg", "label": label} for label in (1, 0, -1, 2)]
    path = write(tmp_path, named(rows, {"label": class_label("cat", "dog")}), "a.parquet")
    listed = Listing(path)
    assert listed.labels == {"1.jpg": "dog", "0.jpg": "cat"} and [*listed.reasons.values()] == ["bad_label"] * 2
    assert listed.source.label_names() == {"label": ("cat", "dog")}
    given = {"1.jpg": "b", "0.jpg": "a", "2.jpg": "c"}
    assert Listing(path, label_names=("a", "b", "c")).labels == given
    for other in ({}, {"label": class_label("dog", "cat")}):  # for example another export of the same images
        write_files(tmp_path / "two", {"a.parquet": path.read_bytes(), "b.parquet": named(rows, other)})
        with pytest.raises(UserError, match="b.parquet: .*'label' .*(no names|dog, cat)"):
            Listing(tmp_path / "two")
        assert Listing(tmp_path / "two", label_names=("a", "b", "c")).labels == given
    for odd in (b"[", b"7", b'{"info": {"features": {"label": 3}}}', b"[" * 100_000):
        assert Listing(write(tmp_path, named(rows, odd), "a.parquet")).labels == {"1.jpg": "1", "0.jpg": "0", "2.jpg": "2"}


@pytest.mark.parametrize("group, features, values", [
    ("label", [], [None] * 4),
    ("breed", [], [None] * 4),
    ("breed", ["breed:class"], ["x", "x", "y", "y"]),
    ("breed", ["breed:integer"], [0, 0, 1, 1]),
    ("breed", ["breed:text"], ["x", "x", "y", "y"]),
    ("label", ["breed:class"], ["x", "x", "y", "y"]),
])  # fmt: skip
def test_group_keeps_the_integer_if_its_column_has_class_names(tmp_path: pathlib.Path, group: str, features: list[str], values: list) -> None:
    rows = [{"file_name": f"{number}.jpg", "label": number % 2, "breed": number // 2} for number in range(4)]
    path = write(tmp_path, named(rows, {"label": class_label("cat", "dog"), "breed": class_label("x", "y")}), "a.parquet")
    listed = Listing(path, features=features, group=group)
    assert [image.label for image in listed.all] == ["cat", "dog", "cat", "dog"]
    assert [image.values and image.values["breed"] for image in listed.all] == values
    assert [image.group for image in listed.all] == [str(row[group]) for row in rows]


def test_text_feature_uses_the_class_name_of_an_integer(tmp_path: pathlib.Path) -> None:
    rows = [{"file_name": f"{breed}.jpg", "label": "cat", "breed": breed, "breeds": [0, 1]} for breed in (0, 1, 2)]
    path = write(tmp_path, named(rows, {"breeds": [class_label("x", "y")], "breed": class_label("x", "y")}), "a.parquet")
    listed = Listing(path, features=["breed", "breeds:text[]"])
    assert {image.key: image.values for image in listed.all} == {f"{i}.jpg": {"breed": "xy"[i], "breeds": ("x", "y")} for i in (0, 1)}
    (letter,) = listed.dead_letters.values()
    assert "column 'breed' has 2" in letter.message and not listed.source.label_names()
    # If two features read a column, both get the integer.
    listed = Listing(path, features=["breed", "number=breed:integer"])
    assert [image.values for image in listed.all] == [{"breed": str(number), "number": number} for number in (0, 1, 2)]
    write_files(tmp_path, {"b.parquet": to_parquet(rows)})
    with pytest.raises(UserError, match="b.parquet: .*'breed'"):
        Listing(tmp_path, features=["breed"])


# Hostile tables


_OUTSIDE = {
    **{"relative path to outside": "../a.jpg", "relative path to outside through a folder": "b/../../a.jpg", "Windows path to outside": r"..\a.jpg"},
    **{"absolute path": "/etc/passwd", "URL": "s3://bucket/a.jpg", "file URL": "file:///etc/passwd", "link to outside": "out/a.jpg"},
}
_HUGE = "x" * (17 << 20)
# The kind of file, the row, and the reason and a part of the message of the dead letter.
BAD_ROWS: dict[str, tuple[str, str | bytes, str, str]] = {
    **{f"csv, {case}": ("csv", f"{path},cat,x", "outside", path.lstrip(".\\")) for case, path in _OUTSIDE.items()},
    **{f"text, {case}": ("txt", f"{path} 7", "outside", path.lstrip(".\\")) for case, path in _OUTSIDE.items()},
    "csv, too few cells": ("csv", "a.jpg", "bad_row", "1 cells"),
    "csv, too many cells": ("csv", "a.jpg,cat,x,y", "bad_row", "4 cells"),
    "csv, text after a quote": ("csv", '"a.jpg"b,cat,x', "bad_row", "expected after"),
    "csv, NUL": ("csv", b"a.jpg,c\0t,x", "not_utf8", "NUL"),
    "csv, NUL in an unused column": ("csv", b"a.jpg,cat,\0", "not_utf8", "NUL"),
    "csv, invalid UTF-8": ("csv", b"a.jpg,caf\xe9,x", "not_utf8", "UTF-8"),
    "csv, empty label": ("csv", "a.jpg,,x", "bad_label", "column 'label' is empty"),
    "csv, label with a line break": ("csv", 'a.jpg,"c\nt",x', "bad_label", r"'c\nt'"),
    "csv, label with an escape": ("csv", "a.jpg,\x1b[2Jt,x", "bad_label", r"\x1b[2Jt"),
    "csv, empty path": ("csv", ",cat,x", "bad_value", "column 'image' is empty"),
    "csv, huge cell": ("csv", f"a.jpg,cat,{_HUGE}", "bad_row", "more than"),
    "csv, too long label": ("csv", f"a.jpg,{_HUGE[: 1 << 20]},x", "bad_label", "at most 256"),
    "csv, too long path": ("csv", f"{_HUGE[: 1 << 20]},cat,x", "bad_value", "at most 4096"),
    "text, path only": ("txt", "a.jpg", "bad_row", "1 fields"),
    "text, empty label": ("txt", "a.jpg\t", "bad_label", "column 'label' is empty"),
    "text, empty path": ("txt", "\t7", "bad_value", "column 'path' is empty"),
    "text, negative label": ("txt", "a.jpg -1", "bad_label", "'-1'"),
    "text, control character": ("txt", b"a.jpg c\x07t", "bad_label", r"'c\x07t'"),
    "text, NUL": ("txt", b"a.jpg c\0t", "bad_row", "NUL"),
    "text, invalid UTF-8": ("txt", b"a.jpg caf\xe9", "not_utf8", "UTF-8"),
    "text, too long line": ("txt", _HUGE, "bad_row", "16777216"),
    "json, not valid JSON": ("jsonl", "a.jpg,cat", "bad_row", "not valid JSON"),
    "json, duplicate column": ("jsonl", '{"image": "a.jpg", "label": "cat", "label": "dog"}', "bad_row", "'label'"),
    "json, duplicate field": ("jsonl", '{"image": "a.jpg", "label": "cat", "more": [{"x": 1, "x": 1}]}', "bad_row", "'x'"),
    "json, list": ("jsonl", '["a.jpg"]', "bad_row", "JSON of type list"),
    "json, number": ("jsonl", "7", "bad_row", "type int"),
    "json, missing label": ("jsonl", '{"image": "a.jpg"}', "bad_label", "is empty"),
    "json, null": ("jsonl", '{"image": null, "label": "a"}', "bad_value", "is empty"),
    "json, NaN": ("jsonl", '{"image": "a.jpg", "label": NaN}', "bad_label", "nan"),
    "json, number with many digits": ("jsonl", '{"image": "a.jpg", "label": ' + "9" * 10_000 + "}", "bad_row", "not valid JSON"),
    "json, number with a huge exponent": ("jsonl", '{"image": "a.jpg", "label": 1e999}', "bad_label", "inf"),
    "json, deep nesting": ("jsonl", "[" * 1_000_000, "bad_row", "nested too deep"),
    "json, lone surrogate in the label": ("jsonl", '{"image": "a.jpg", "label": "\\ud800"}', "bad_label", r"\ud800"),
    "json, lone surrogate in the path": ("jsonl", '{"image": "\\udcff.jpg", "label": "a"}', "bad_value", r"\udcff"),
    "json, escaped NUL": ("jsonl", '{"image": "a\\u0000.jpg", "label": "a"}', "outside", "x00"),
    "json, invalid UTF-8": ("jsonl", b'{"image": "a.jpg", "label": "caf\xe9"}', "not_utf8", "UTF-8"),
    "json, list of images": ("jsonl", '{"image": ["a.jpg", "b.jpg"], "label": "a"}', "bad_value", "['a.jpg', 'b.jpg']"),
    "json, huge line": ("jsonl", '{"image": "' + _HUGE + '"}', "bad_row", "more than"),
}
# The lines around the row, and the number of the row.
AROUND = {
    "csv": (b'\xef\xbb\xbfimage, label,note\nfirst.jpg,1,"a\nb"\r\n', b"\n\nlast.jpg,2,z\n", 4),
    "txt": (b"\xef\xbb\xbffirst.jpg 1\n", b"\nlast.jpg 2\n", 2),
    "jsonl": (b'{"image": "first.jpg", "label": 1}\n\n', b'\n{"label": 2, "image": "last.jpg"}', 3),
}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_bad_row_is_a_dead_letter(tmp_path: pathlib.Path, case: str) -> None:
    suffix, row, reason, part = BAD_ROWS[case]
    before, after, number = AROUND[suffix]
    row = row.encode() if isinstance(row, str) else row
    path = write(tmp_path / "images", before + row + after, f"labels.{suffix}")
    (tmp_path / "images/out").symlink_to("/etc")
    listed = Listing(path, kind="text" if suffix == "txt" else "table")
    assert listed.labels == {"first.jpg": "1", "last.jpg": "2"}
    (letter,) = listed.dead_letters.values()
    assert (letter.path, letter.stage, letter.reason) == (f"labels.{suffix}:{number}", "list", reason)
    assert part in letter.message and letter.message.isprintable() and len(letter.message) < 500


@pytest.mark.parametrize("end", ["", "\nd.jpg,4\n", '\nd.jpg,4\n"e" f.jpg,5\n'])
def test_unclosed_quote_fails_instead_of_hiding_rows(tmp_path: pathlib.Path, end: str) -> None:
    path = write(tmp_path, f'image,label\na.jpg,1\n"b.jpg,2\nc.jpg,3{end}')
    with pytest.raises(UserError, match="labels.csv:3: .*CSV .*line "):
        Listing(path)


SKIPPED: list[tuple[str, str, dict[str, Any]]] = [
    ("a.csv", '7 images\n\n# made by hand\nimage,label\n# "one\na.jpg,1\n"b.jpg","x\n#y"\n', {"skip_lines": 1, "comment": "#"}),
    ("a.jsonl", 'skipped\n// comment\n{"image": "a.jpg", "label": "1"}\n', {"skip_lines": 1, "comment": "//"}),
    ("a.txt", "202599\npath label\n# one\na.jpg 1\n#b.jpg 2\n../c.jpg 3\n", {"skip_lines": 2, "comment": "#", "kind": "text"}),
]


@pytest.mark.parametrize("name, text, options", SKIPPED)
def test_skips_lines_and_comments(tmp_path: pathlib.Path, name: str, text: str, options: dict[str, Any]) -> None:
    path = write(tmp_path, text, name)
    listed = Listing(path, **options)
    assert listed.labels == {"a.jpg": "1"}
    # A quoted cell may start with the comment prefix.
    assert [*listed.dead_letters] == {"a.csv": ["a.csv:7"], "a.txt": ["a.txt:6"]}.get(name, [])
    if name == "a.txt":
        assert not Listing(path, **{**options, "skip_lines": 10**12}).all
        return
    parquet = write(tmp_path, to_parquet(ROWS), "a.parquet")
    for option, value, other in (("skip_lines", 1, parquet), ("delimiter", ";", parquet), ("column_names", ("a", "b"), parquet)):
        with pytest.raises(UserError, match=f"{other.name}: .*--{option}"):
            open_rows(other, **{option: value})


def test_blanks_can_separate_cells(tmp_path: pathlib.Path) -> None:
    rows = 'Smiling  Young \n1.jpg -1  1\n"2 3.jpg"  1 -1 \n4.jpg 1\n'
    listed = Listing(write(tmp_path, rows), ["Smiling:integer"], features=["Young:integer"], delimiter=" ")
    assert {key: image.values for key, image in listed.images.items()} == {"1.jpg": {"label": -1, "Young": 1}, "2 3.jpg": {"label": 1, "Young": -1}}
    assert listed.reasons == {"labels.csv:4": "bad_row"}


@pytest.mark.parametrize(
    "name, text, column_names",
    [
        ("labels.tsv", "image\tlabel\ta, b\n{}", ()),
        ("labels.tsv.gz", "image\tlabel\ta, b\n{}", ()),
        ("labels.TSV", "{}", ("image", "label", "a")),
        ("labels.csv", "{}", ("image", "label", "a")),
        ("semicolons.csv", "{}", ("image", "label", "a")),
    ],
)
def test_delimiter_is_detected_despite_commas_in_cells(
    tmp_path: pathlib.Path, name: str, text: str, column_names: tuple[str, ...]
) -> None:
    mark = ";" if name.startswith("semi") else "\t"
    data = text.format("".join(f"{index}.jpg{mark}cat, dog{mark}1\n" for index in range(2))).encode()
    path = write(tmp_path, gzip.compress(data) if name.endswith(".gz") else data, name)
    assert Listing(path, column_names=column_names).labels == {"0.jpg": "cat, dog", "1.jpg": "cat, dog"}


def test_comma_is_preferred_among_equal_delimiters(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path, "1.jpg,a;b\n")
    assert Listing(path, column_names=("image", "label")).labels == {"1.jpg": "a;b"}


@pytest.mark.parametrize("kind, text, labels, bad", [
    ("table", '{"id": "a", "label": 1}\n{"id": 7, "label": 2}\n{"id": "c.jpg", "label": 3}\n{"id": null, "label": 4}\n{"id": "", "label": 5}\n', {"a.jpg": "1", "7.jpg": "2", "c.jpg": "3"}, [4, 5]),
    ("text", "a 1\nb.jpg 2\nc.v2 3\n../d 4\n", {"a.jpg": "1", "b.jpg": "2", "c.v2.jpg": "3"}, [4]),
])  # fmt: skip
def test_image_suffix_is_appended_to_names_without_it(tmp_path: pathlib.Path, kind: str, text: str, labels: dict[str, str], bad: list[int]) -> None:
    options = {"image_column": "id"} if kind == "table" else {}
    listed = Listing(write(tmp_path, text, "a.jsonl"), image_suffix=".jpg", kind=kind, **options)
    assert listed.labels == labels and [*listed.dead_letters] == [f"a.jsonl:{number}" for number in bad]


BAD_ROLES = [
    ("split", "", "no_split", "is empty"),
    ("split", "../x", "bad_split", "'../x'"),
    ("split", "1st", "bad_split", "'1st'"),
    ("weight", "-1", "bad_value", "at least 0"),
    ("weight", "nan", "bad_value", "finite"),
    ("weight", "", "bad_value", "is empty"),
    ("key", "", "bad_key", "is empty"),
    ("key", '"a\nb"', "bad_key", "on one line"),
    ("group", '"a\nb"', "bad_group", "on one line"),
]


@pytest.mark.parametrize("column, cell, reason, part", BAD_ROLES)
def test_bad_split_key_group_or_weight_is_a_dead_letter(
    tmp_path: pathlib.Path, column: str, cell: str, reason: str, part: str
) -> None:
    (letter,) = Listing(write(tmp_path, f"image,label,{column}\na.jpg,1,{cell}\n")).dead_letters.values()
    assert letter.reason == reason and part in letter.message and letter.message.startswith(f"column {column!r} ")


def test_bad_parquet_cells_are_dead_letters(tmp_path: pathlib.Path) -> None:
    text = pa.array([b"a.jpg", b"caf\xe9.jpg", b"../c.jpg", b"d.jpg", None]).cast(pa.binary()).view(pa.string())
    table = pa.table({"image": text, "label": pa.array([1, 2, 3, None, 5]), "age": pa.array([1.0, 2.0, 3.0, 4.0, 5.0])})
    listed = Listing(write(tmp_path, to_parquet(table), "a.parquet"))
    assert listed.labels == {"a.jpg": "1"}
    assert listed.reasons == {
        "a.parquet:2": "not_utf8",
        "a.parquet:3": "outside",
        "a.parquet:4": "bad_label",
        "a.parquet:5": "bad_value",
    }
    listed = Listing(tmp_path / "a.parquet", ["age"])  # whole floats are classes, as pandas writes integers with nulls
    assert listed.labels == {"a.jpg": "1", "d.jpg": "4"}


@pytest.mark.parametrize("has_pandas", [True, False])
def test_typed_parquet_cells_are_written_like_python_values(tmp_path: pathlib.Path, monkeypatch, has_pandas: bool) -> None:
    """Timestamps keep nanosecond precision, even if pandas is not installed."""
    if not has_pandas:
        monkeypatch.setattr(pa.lib, "_pandas_api", types.SimpleNamespace(have_pandas=False))
    some, second = uuid.UUID(int=7), 1_600_000_000_000_000_000
    cells = {
        "day": (pa.array([datetime.date(2020, 1, 2)]), "2020-01-02"),
        "decimal": (pa.array([decimal.Decimal("12.30")]), "12.30"),
        "time": (pa.array([datetime.datetime(2020, 1, 2)], pa.timestamp("us", "UTC")), "2020-01-02 00:00:00+00:00"),
        "took": (pa.array([datetime.timedelta(hours=1)], pa.duration("us")), "1:00:00"),
        "id": (pa.ExtensionArray.from_storage(pa.uuid(), pa.array([some.bytes], pa.binary(16))), str(some)),
        "whole": (pa.array([second], pa.timestamp("ns")), "2020-09-13 12:26:40"),
        "micro": (pa.array([second + 1_200_000], pa.timestamp("ns")), "2020-09-13 12:26:40.001200"),
        "nano": (pa.array([second + 1], pa.timestamp("ns")), "2020-09-13 12:26:40.000000001"),
        "early": (pa.array([-1], pa.timestamp("ns")), "1969-12-31 23:59:59.999999999"),
        "zone": (pa.array([second], pa.timestamp("ns", "+01:00")), "2020-09-13 13:26:40+0100"),
        "clock": (pa.array([1_001], pa.time64("ns")), "00:00:00.000001001"),
        "days": (pa.array([[datetime.date(2020, 1, 2)]]), '["2020-01-02"]'),
    }
    table = pa.table({"image": ["a.jpg"], **{name: column for name, (column, _) in cells.items()}})
    path = write(tmp_path, to_parquet(table), "a.parquet")
    (image,) = Listing(path, ["none"], features=[*cells], key_column="decimal", group="nano").all
    assert (image.key, image.group) == ("12.30", "2020-09-13 12:26:40.000000001")
    assert image.values == {name: text for name, (_, text) in cells.items()}


def test_time_outside_of_python_years_gives_a_one_line_error(tmp_path: pathlib.Path) -> None:
    table = pa.table({"image": ["a.jpg"], "time": pa.array([10**12], pa.timestamp("s"))})
    with pytest.raises(UserError, match=r"a.parquet: .*Parquet"):
        Listing(write(tmp_path, to_parquet(table), "a.parquet"), ["none"], features=["time"])


@pytest.mark.slow(0.2)
@pytest.mark.parametrize("name", ["a.parquet", "a.csv.gz", "a.jsonl.gz"])
@pytest.mark.parametrize("corruption", ["cut", "noise", "empty"])
def test_rejects_corrupt_files(tmp_path: pathlib.Path, name: str, corruption: str) -> None:
    rows = [{"file_name": f"{index}-{index * 7919 % 1000}.jpg", "label": index % 7} for index in range(20_000)]
    data = {"a.parquet": to_parquet, "a.csv.gz": WRITERS["labels.csv.gz"], "a.jsonl.gz": WRITERS["labels.jsonl.gz"]}[
        name
    ](rows)
    noise = np.random.default_rng(0).bytes(len(data) // 2)
    data = {"cut": data[: len(data) // 2], "noise": data[:20] + noise + data[20 + len(noise) :], "empty": b""}[corruption]
    path = write(tmp_path, data, name)
    with pytest.raises(UserError) as caught:
        Listing(path)
    assert str(caught.value).startswith(name) and str(caught.value).isprintable()


@pytest.mark.slow
def test_listing_needs_little_memory(tmp_path: pathlib.Path) -> None:
    rows = "".join(f"images/{index:07d}.jpg,{index % 10}\n" for index in range(20_000))
    source = open_rows(write(tmp_path, f"image,label\n{rows}"))
    tracemalloc.start()
    num_listed = sum(1 for _ in source.list("labels.csv"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert num_listed == 20_000 and peak < 4_000_000, peak


def test_large_parquet_rows_are_converted_in_small_batches(tmp_path: pathlib.Path, monkeypatch) -> None:
    read, batches = parquet_rows._to_rows, []
    monkeypatch.setattr(parquet_rows, "_to_rows", lambda batch: batches.append(batch) or read(batch))
    names = [f"{index}.jpg" for index in range(300)]
    maps = pa.array([*np.arange(300 * 5_000, dtype=np.float32).reshape(300, -1)])
    for case, column in (("maps", maps), ("labels", pa.array(range(300)))):
        batches.clear()
        table = pa.table({"image": names, "x": column})
        path = write(tmp_path, to_parquet(table, row_group_size=200), "a.parquet")
        assert [row for _, row in parquet_rows.parquet_rows(str(path), path.name, ["image", "x"])] == table.to_pylist(), case
        assert (len(batches) > 2) == (case == "maps") and max(batch.nbytes for batch in batches) <= 1 << 20, case


BOMBS = {
    "repeated long text": lambda text: {"label": pa.array([text] * 1024)},
    "long text in lists": lambda text: {"label": pa.array([[text] * 16] * 64)},
    "repeated image": lambda text: {"image": pa.array([{"bytes": text.encode(), "path": None}] * 1024)},
    "lists of equal numbers": lambda text: {"label": pa.array([np.zeros(1 << 18, np.float32)] * 1024)},
}


@pytest.mark.slow(5)
@pytest.mark.parametrize("case", BOMBS)
def test_highly_compressed_rows_are_decoded_in_small_batches(tmp_path: pathlib.Path, case: str) -> None:
    table = pa.table(BOMBS[case]("x" * (1 << 20)))
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, compression="zstd", dictionary_pagesize_limit=1 << 30)
    decoded, names = table.nbytes, table.schema.names
    del table
    assert decoded >= 1 << 30 and path.stat().st_size < 1 << 18
    before = pa.total_allocated_bytes()
    largest = 0
    for _ in itertools.islice(parquet_rows.parquet_rows(str(path), path.name, names), 4):
        largest = max(largest, pa.total_allocated_bytes() - before)
    assert largest < 400 << 20


def test_row_with_too_many_numbers_is_a_dead_letter(tmp_path: pathlib.Path) -> None:
    short, long = [1.0], np.zeros(parquet_rows.MAX_LIST_BYTES // 4 + 1, np.float32)
    for case, lists, num_bad in (("one of several", [short] * 5 + [long], 1), ("all", [long] * 2, 2)):
        names = [f"{index}.jpg" for index in range(len(lists))]
        pq.write_table(pa.table({"image": names, "x": pa.array(lists, pa.list_(pa.float32()))}), tmp_path / "a.parquet")
        listed = Listing(tmp_path / "a.parquet", ["none"], features=["x:float[]"])
        assert [letter.reason for letter in listed.dead_letters.values()] == ["too_large"] * num_bad, case
        assert len(listed.all) == len(lists) - num_bad, case


# Object stores


@pytest.fixture(scope="module")
def server() -> Iterator[StoreServer]:
    with connected_to(shared_server("s3")) as server:
        yield server


def test_reads_tables_in_an_object_store(server: StoreServer) -> None:
    root = upload_files(
        server,
        {
            "train/metadata.csv": b"file_name,label\na.jpg,1\n../../b.jpg,2\n",
            "train/a.jpg": jpeg(),
            "test/part-0.parquet": to_parquet([{"file_name": "c.jpg", "label": 3}]),
            "test/part-1.parquet": to_parquet(
                [{"file_name": f"{root}/d.jpg", "label": 4} for root in ("gs://other", "/")]
            ),
        },
    )
    listed = Listing(root, with_sizes=True)
    assert listed.source.root == root
    assert listed.all == [
        InputRecord("test/c.jpg", "test/c.jpg", "3", "test"),
        InputRecord("train/a.jpg", "train/a.jpg", "1", "train", len(jpeg())),
    ]
    assert listed.reasons == {
        "test/part-1.parquet:1": "outside",
        "test/part-1.parquet:2": "outside",
        "train/metadata.csv:3": "outside",
    }
    matching = Listing(f"{root}/test/part-*.parquet")
    assert (matching.source.root, matching.labels) == (f"{root}/test", {"c.jpg": "3"})
    assert matching.source.parts() == ["part-0.parquet", "part-1.parquet"]
    item = Listing(f"{root}/train/metadata.csv")
    assert (item.source.root, item.labels) == (f"{root}/train", {"a.jpg": "1"})
    listed = Listing(
        upload_files(server, {"all.jsonl.gz": gzip.compress(to_jsonl([{"image": f"{root}/train/a.jpg", "label": 1}]))}),
        image_root=root,
    )
    assert listed.labels == {"train/a.jpg": "1"}
    with pytest.raises(UserError, match="contains no table"):
        open_rows(f"{root}/nothing")
