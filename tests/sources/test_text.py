"""Tests that the source `text` reads the fields of lines, and supports splits and options. `test_table` tests invalid lines."""

import gzip
import os
import pathlib
from typing import Any

import pytest

from beam_pipelines.elements.input_record import FilePart, InputRecord
from beam_pipelines.errors import UserError
from listed_rows import Listing, write
from made_images import jpeg, write_files
from tf_input.dataset_format import Feature


def list_text(path: pathlib.Path, labels: list[str] | None = None, **options: Any) -> Listing:
    return Listing(path, labels, kind="text", **options)


def test_line_has_a_path_and_a_label(tmp_path: pathlib.Path) -> None:
    lines = "cat/1.jpg 7\n\ncat/2.jpg\tsmall cat\r\n  cat/3.jpg   8  \na b/4.jpg\t9\n./5.jpg x\nc d/6 7.jpg  y"
    listed = list_text(write(tmp_path, lines, "list.txt"))
    assert listed.labels == {"cat/1.jpg": "7", "cat/2.jpg": "small cat", "cat/3.jpg": "8", "a b/4.jpg": "9", "5.jpg": "x", "c d/6 7.jpg": "y"}
    assert not listed.dead_letters and listed.source.root == os.path.realpath(tmp_path)
    assert (listed.source.features, listed.source.targets) == ((Feature("label", "class_label"),), ("label",))
    assert listed.images["cat/1.jpg"] == InputRecord("cat/1.jpg", "cat/1.jpg", "7", None)


FIELDS: dict[str, tuple[list[str], list[str], str, str, Any]] = {
    # Labels, features, line, expected label, expected values.
    "two labels": (["weather", "ground"], [], "a.jpg fog 3", "", {"weather": "fog", "ground": "3"}),
    "numbers in separate columns": (["x,y:float"], [], "a.jpg 1 2.5", "", {"label": (1.0, 2.5)}),
    "numbers in one column": (["gaze:float[3]"], [], "a.jpg 1 2 3", "", {"label": (1.0, 2.0, 3.0)}),
    "number": (["age:float"], [], "a.jpg 31", "", {"label": 31.0}),
    "names in the remaining fields": (["tags:multi_label"], [], "a.jpg b c a", "", {"label": ("a", "b", "c")}),
    "names with bars": (["tags:multi_label"], [], "a.jpg b|a", "", {"label": ("a", "b")}),
    "no names": (["tags:multi_label"], [], "a.jpg", "", {"label": ()}),
    "names after a label": (["kind", "tags:multi_label"], [], "a.jpg k b c", "", {"kind": "k", "tags": ("b", "c")}),
    "flags": (["dog,cat:multi_label"], [], "a.jpg 0 1", "", {"label": ("cat",)}),
    "features after the label": (["kind"], ["age:integer", "note"], "a.jpg\tk\t3\tfound at sea", "k", {"age": 3, "note": "found at sea"}),
    "list in the remaining fields": (["none"], ["ids:integer[]"], "a.jpg 3 5 8", "", {"ids": (3, 5, 8)}),
    "empty list": (["none"], ["ids:integer[]"], "a.jpg", "", {"ids": ()}),
    "mask": (["m:mask"], [], "a.jpg a.png", "", {"mask": FilePart("a.png")}),
    "no label": (["none"], [], "a.jpg", "", None),
}


@pytest.mark.parametrize("case", FIELDS)
def test_fields_are_assigned_to_columns_in_order(tmp_path: pathlib.Path, case: str) -> None:
    labels, features, line, label, values = FIELDS[case]
    listed = list_text(write(tmp_path, f"{line}\n", "list.txt"), labels, features=features)
    assert not listed.dead_letters
    assert (listed.images["a.jpg"].label, listed.images["a.jpg"].values) == (label, values)


def test_lists_named_like_splits_give_splits(tmp_path: pathlib.Path) -> None:
    write_files(tmp_path, {"train.txt": b"1.jpg 1\n", "val.txt": b"2.jpg 2\n", "test.lst": b"3.jpg 3\n"})
    listed = list_text(tmp_path)
    assert listed.splits == {"1.jpg": "train", "2.jpg": "validation", "3.jpg": "test"}
    assert listed.source.parts() == ["test.lst", "train.txt", "val.txt"]
    assert {*list_text(tmp_path, config={"split_folders": False}).splits.values()} == {None}
    write(tmp_path, "4.jpg 4\n", "more.txt")
    with pytest.raises(UserError, match="'more'"):
        list_text(tmp_path)
    assert len(list_text(tmp_path, config={"ignore": ("more*",)}).images) == 3


def test_reads_compressed_lists_with_a_byte_order_mark(tmp_path: pathlib.Path) -> None:
    images = write_files(tmp_path / "images", {"a.jpg": jpeg()})
    path = write(tmp_path / "lists", gzip.compress("\ufeffa.jpg Löwe\n".encode()), "list.txt.gz")
    listed = list_text(path, image_root=os.fspath(images), with_sizes=True)
    assert listed.labels == {"a.jpg": "Löwe"} and listed.source.root == os.path.realpath(images)
    assert listed.images["a.jpg"].num_bytes == len(jpeg())
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(UserError, match="list.txt.gz: cannot be read"):
        list_text(path)


def test_rejects_a_field_called_path(tmp_path: pathlib.Path) -> None:
    with pytest.raises(UserError, match="--label or --feature path: "):
        list_text(write(tmp_path, "a.jpg 1\n", "list.txt"), ["a", "path"])


def test_rejects_an_input_without_a_list(tmp_path: pathlib.Path) -> None:
    with pytest.raises(UserError, match=f"{tmp_path}: contains no"):
        list_text(write_files(tmp_path, {"a.jpg": jpeg()}))
    with pytest.raises(UserError):
        list_text(tmp_path / "nothing")
