"""Tests tables in which each row is a box: the rows of an image become one example."""

import csv
import json
import pathlib
from collections import defaultdict
from typing import Any, Iterable, Mapping, Sequence

import numpy as np
import pytest

from beam_pipelines.__main__ import main
from beam_pipelines.errors import InvalidInput
from beam_pipelines.sources.cells.box_columns import near_box_column
from beam_pipelines.sources.formats.table import image_rows
from listed_rows import Listing, open_rows, write_rows
from made_images import encode, noise, write_files
from test_table_values import read_records

HEIGHT, WIDTH = 32, 48


def write_images(root: pathlib.Path, names: Iterable[str]) -> pathlib.Path:
    return write_files(root, {name: encode(noise(index, HEIGHT, WIDTH), "PNG") for index, name in enumerate(names)})


def write_csv(path: pathlib.Path, header: str, rows: Sequence[Sequence[Any]]) -> pathlib.Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header.split(","), *rows] if header else rows)
    return path


def prepare(path: pathlib.Path, *options: str) -> int:
    return main(["prepare", "--input", str(path), "--output", str(path.parent / "out"), *options])


def stored_boxes(root: pathlib.Path) -> dict[str, set[tuple[Any, ...]]]:
    """Returns the boxes of each example in pixels, as (xmin, ymin, xmax, ymax, label)."""
    boxes = {}
    for record in read_records(root):
        sides = np.array(record["objects/bbox"]).reshape(-1, 4)[:, [1, 0, 3, 2]] * (WIDTH, HEIGHT, WIDTH, HEIGHT)
        rows = zip(np.round(sides, 3).tolist(), record["objects/label"])
        boxes[record["key"][0].decode()] = {(*box, label) for box, label in rows}
    return boxes


# (xmin, ymin, xmax, ymax) of random boxes, in pixels, of 12 images. Rows of an image are not adjacent.
_RANDOM = np.random.default_rng(0)
_CORNERS = np.sort(_RANDOM.permuted(np.tile(np.arange(0, 32), (60, 1)), axis=1)[:, :4].reshape(60, 2, 2), axis=1).reshape(60, 4)
BOXES = [(f"{index % 12}.png", *map(int, corners), ("cat", "dog", "owl")[index % 3]) for index, corners in enumerate(_CORNERS)]
EXPECTED: Mapping[str, set] = defaultdict(set)
for _name, *_box in BOXES:
    EXPECTED[_name].add((*map(float, _box[:4]), ("cat", "dog", "owl").index(_box[4])))

def cells(name: str, x0: int, y0: int, x1: int, y1: int, label: str) -> dict[str, Any]:
    """Returns table cells that describe one box in several coordinate formats."""
    w, h = x1 - x0, y1 - y0
    relative = {"rx0": x0 / WIDTH, "ry0": y0 / HEIGHT, "rx1": x1 / WIDTH, "ry1": y1 / HEIGHT, "rw": w / WIDTH, "rh": h / HEIGHT}
    box = {"x0": x0, "y0": y0, "x1": x1, "y1": y1, "w": w, "h": h, "cx": (x0 + x1) / 2, "cy": (y0 + y1) / 2, "box": [float(x0), y0, w, h]}
    image = {"name": name, "stem": name.removesuffix(".png"), "W": WIDTH, "H": HEIGHT}
    return {**relative, **box, **image, "label": label, "owl": int(label == "owl")}


OPEN_IMAGES = "ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax,IsOccluded,IsTruncated,IsGroupOf,IsDepiction,IsInside"
FORMS = {
    # Header, cells of a row, options.
    "TensorFlow tutorials": ("filename,width,height,class,xmin,ymin,xmax,ymax", "name W H label x0 y0 x1 y1", []),
    "sizes of boxes": ("image_id,x,y,w,h,label", "stem x0 y0 w h label", ["--image_suffix=.png"]),
    "centers": ("image,x_center,y_center,width,height,class_name", "name cx cy w h label", []),
    "one cell": ("image_id,width,height,bbox,category", "name W H box label", []),
    "sizes of boxes and of images": (
        "image_name,image_width,image_height,bbox_x,bbox_y,bbox_width,bbox_height,label_name", "name W H x0 y0 w h label", []
    ),
    "Open Images": (OPEN_IMAGES, "stem xclick label 1 rx0 rx1 ry0 ry1 -1 0 owl 0 1", ["--image_suffix=.png"]),
    "RetinaNet": ("", "name x0 y0 x1 y1 label", ["--column_names=path,x1,y1,x2,y2,class"]),
    "unusual class column": ("file,x0,y0,x1,y1,species,class", "name x0 y0 x1 y1 label animal", ["--label=objects=species"]),
    "requested rows of boxes": ("file,x0,y0,x1,y1,species,class", "name x0 y0 x1 y1 label animal", ["--rows=boxes", "--label=species"]),
    "contradicting option": ("file,xmin,ymin,xmax,ymax,class", "name rx0 ry0 rw rh label", ["--box_format=xywh", "--box_unit=relative"]),
}  # fmt: skip


@pytest.mark.slow(2)
@pytest.mark.parametrize("form", FORMS)
def test_rows_of_an_image_become_one_example_with_exact_boxes(tmp_path: pathlib.Path, capsys, form: str) -> None:
    header, names, options = FORMS[form]
    write_images(tmp_path, EXPECTED)
    write_csv(tmp_path / "boxes.csv", header, [[cells(*box).get(name, name) for name in names.split()] for box in BOXES])
    assert prepare(tmp_path / "boxes.csv", *options, "--splits=train=1") == 0
    assert stored_boxes(tmp_path) == EXPECTED
    reported = capsys.readouterr().err
    assert "--rows=boxes" in reported
    if form == "Open Images":
        flags = {record["key"][0].decode(): record for record in read_records(tmp_path)}
        assert "in relative" in reported
        assert all(set(item["objects/is_occluded"]) == {-1} and set(item["objects/is_inside"]) == {1} for item in flags.values())
        assert all(item["objects/is_group_of"] == [int(label == 2) for label in item["objects/label"]] for item in flags.values())


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_each_table_format_gives_the_same_boxes(tmp_path: pathlib.Path, suffix: str) -> None:
    names = ("filename", "xmin", "ymin", "xmax", "ymax", "class")
    rows = [dict(zip(names, box)) for box in [*BOXES, ("empty.png", *[None] * 5)]]
    listed = Listing(write_rows(tmp_path, rows, suffix))
    assert not listed.dead_letters and len(listed.images) == 13
    actual = {key: {(x0, y0, x1, y1) for y0, x0, y1, x1 in image.values["objects"].boxes} for key, image in listed.images.items()}
    assert actual == {name: {box[:4] for box in boxes} for name, boxes in EXPECTED.items()} | {"empty.png": set()}
    assert all(image.values["objects"].image_size is None for image in listed.all)


@pytest.mark.slow(2)
def test_tables_in_split_folders_are_detected(tmp_path: pathlib.Path, capsys) -> None:
    root = tmp_path / "in"
    for folder in ("train", "valid", "test"):
        names = [f"{folder}{index}.png" for index in range(4)]
        write_images(root / folder, names)
        rows = [[name, WIDTH, HEIGHT, "cat", 1, 2, 11, 12] for name in (*names, *names[:2])]
        write_csv(root / folder / "_annotations.csv", "filename,width,height,class,xmin,ymin,xmax,ymax", rows)
    assert prepare(root) == 0
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    assert [*manifest["splits"]] == ["train", "validation", "test"]
    assert "--source=table" in capsys.readouterr().err


def test_images_that_no_row_of_roboflow_names_are_counted(tmp_path: pathlib.Path) -> None:
    """Roboflow omits images without objects from its tables."""
    for folder in ("train", "valid"):
        write_images(tmp_path / folder, [f"{folder}{index}.png" for index in range(4)])
        rows = [[f"{folder}{index}.png", 9, 9, "cat", 1, side, 3, 4] for index, side in ((0, 2), (0, 1), (1, "?"))]
        rows += [[f"valid{index}.png", 9, 9, "cat", 1, 2, 3, 4] for index in (2, 3) if folder == "valid"]
        for name in ("_annotations.csv", "others.csv"):
            write_csv(tmp_path / folder / name, "filename,width,height,class,xmin,ymin,xmax,ymax", rows)
    write_images(tmp_path, ["train9.png"])
    cases = [("*/_annotations.csv", {}, [2]), ("*/_annotations.csv", {"image_root": str(tmp_path)}, []), ("train/_annotations.csv", {}, [2]), ("train/others.csv", {}, [])]
    for name, options, expected in cases:
        table = open_rows(tmp_path / name, **options)
        assert all([*table.list(part)] for part in table.parts())
        assert [*table.noted.values()] == expected, name


BAD_ROWS = {
    # The second row of the image, the reason, and parts of the message.
    "another split": (["a.png", 1, 2, 3, 4, "cat", 9, 9, "test"], "row_conflict", ["'train'", "'test'", "row 2", "row 3"]),
    "another width": (["a.png", 1, 2, 3, 4, "cat", 9, 8, "train"], "row_conflict", ["'9'", "'8'", "width"]),
    "not a number": (["a.png", 1, "two", 3, 4, "cat", 9, 9, "train"], "bad_value", ["row 3", "'two'", "ymin"]),
    "a side is missing": (["a.png", 1, "", 3, 4, "cat", 9, 9, "train"], "bad_value", ["row 3", "ymin"]),
    "a huge number": (["a.png", 1, "1e30", 3, 4, "cat", 9, 9, "train"], "bad_objects", ["row 3", "1e+30"]),
    "not finite": (["a.png", 1, "nan", 3, 4, "cat", 9, 9, "train"], "bad_value", ["row 3", "'nan'"]),
    "no class": (["a.png", 1, 2, 3, 4, "", 9, 9, "train"], "bad_label", ["row 3", "class"]),
}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_invalid_row_rejects_its_image(tmp_path: pathlib.Path, case: str) -> None:
    row, reason, parts = BAD_ROWS[case]
    good, other = ["a.png", 1, 2, 3, 4, "cat", 9, 9, "train"], ["b.png", 1, 2, 3, 4, "cat", 9, 9, "test"]
    listed = Listing(write_csv(tmp_path / "boxes.csv", "filename,xmin,ymin,xmax,ymax,class,height,width,split", [good, row, other]))
    (letter,) = listed.dead_letters.values()
    assert [*listed.images] == ["b.png"]
    assert (letter.path, letter.reason) == ("boxes.csv:2", reason)
    assert all(part in letter.message for part in parts), letter.message


def test_row_without_an_image_is_a_dead_letter(tmp_path: pathlib.Path) -> None:
    write_csv(tmp_path / "boxes.csv", "filename,xmin,ymin,xmax,ymax,class", [["", 1, 2, 3, 4, "a"], ["a.png", 1, 2, 3, 4, "a"], ["a.png"]])
    listed = Listing(tmp_path / "boxes.csv")
    assert [*listed.images] == ["a.png"] and listed.reasons == {"boxes.csv:2": "bad_value", "boxes.csv:4": "bad_row"}


def test_values_of_an_image_are_kept_beside_its_boxes(tmp_path: pathlib.Path) -> None:
    rows = [["a.png", 1, 2, 3, 4, "cat", "sun", 0.5], ["a.png", 5, 6, 7, 8, "dog", "sun", 0.25]]
    write_csv(tmp_path / "boxes.csv", "filename,xmin,ymin,xmax,ymax,class,weather,score", rows)
    listed = Listing(tmp_path / "boxes.csv", ["objects", "weather"])
    values = listed.images["a.png"].values
    assert listed.source.targets == ("weather", "objects") and values["weather"] == "sun" and values["objects"].labels == ("cat", "dog")
    listed = Listing(tmp_path / "boxes.csv", ["objects=class", "score:float[]"])
    assert listed.images["a.png"].values["score"] == (0.5, 0.25)


def test_requested_columns_are_not_boxes(tmp_path: pathlib.Path, capsys) -> None:
    write_images(tmp_path, ["a.png", "b.png"])
    table = write_csv(tmp_path / "rows.csv", "image,label,x1,y1,x2,y2", [["a.png", "ant", 1, 2, 30, 20], ["b.png", "bee", 3, 4, 5, 6]])
    assert prepare(table, "--feature=pose=x1,y1,x2,y2:keypoints", "--splits=train=1") == 0
    assert "each row is a box" not in capsys.readouterr().err
    first, _ = sorted(read_records(tmp_path), key=lambda record: record["key"])
    assert "objects/bbox" not in first
    np.testing.assert_allclose(first["pose"], [1 / WIDTH, 2 / HEIGHT, 30 / WIDTH, 20 / HEIGHT], rtol=1e-6)
    listed = Listing(table, features=["x1:float[]"], rows="boxes")
    assert [len(image.values["objects"].boxes) for image in listed.all] == [1, 1]


def test_requested_box_columns_of_repeated_images_need_a_choice(tmp_path: pathlib.Path, capsys) -> None:
    write_images(tmp_path, ["a.png"])
    table = write_csv(tmp_path / "rows.csv", "image,label,x1,y1,x2,y2", [["a.png", "ant", 1, 2, 30, 20], ["a.png", "ant", 3, 4, 5, 6]])
    assert prepare(table, "--feature=x1:float[]") == 2
    error = capsys.readouterr().err
    assert "--rows boxes" in error and "--rows images" in error


def test_boxes_without_a_class_column_have_one_class(tmp_path: pathlib.Path) -> None:
    write_csv(tmp_path / "boxes.csv", "image_id,width,height,bbox,source", [["a.png", 48, 32, "[1.0, 2.0, 3.0, 4.0]", "x"]])
    listed = Listing(tmp_path / "boxes.csv")
    objects = listed.images["a.png"].values["objects"]
    assert objects.labels == ("object",) and objects.image_size == (32, 48) and "one class" in listed.source.detected


REFUSED = {
    "rows are images although an image has several": (["--label", "class"], "--rows boxes --label class"),
    "two labels": (["--rows", "boxes", "--label", "class", "--label", "weather"], "--label objects=COLUMN"),
    "the class is a number": (["--label", "objects=class:float"], "objects=COLUMN"),
    "no such column": (["--label", "objects=clas"], "'class'"),
    "no image": (["--image", "none", "--rows", "boxes"], "--image=none"),
    "boxes that are not read": (["--rows", "images", "--label", "class", "--box_format", "xyxy"], "--box_format"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_contradicting_options_fail_with_advice(tmp_path: pathlib.Path, capsys, case: str) -> None:
    options, part = REFUSED[case]
    rows = [["a.png", 1, 2, 3, 4, "cat", "sun"], ["a.png", 5, 6, 7, 8, "dog", "sun"]]
    write_csv(tmp_path / "boxes.csv", "filename,xmin,ymin,xmax,ymax,class,weather", rows)
    assert prepare(tmp_path / "boxes.csv", *options) == 2
    assert part in capsys.readouterr().err


def test_table_without_box_columns_cannot_have_rows_of_boxes(tmp_path: pathlib.Path, capsys) -> None:
    write_csv(tmp_path / "rows.csv", "filename,a,b,c,d,class", [["a.png", 1, 2, 3, 4, "cat"]])
    assert prepare(tmp_path / "rows.csv", "--rows", "boxes") == 2
    assert "--column_names" in capsys.readouterr().err
    options = ["--rows", "boxes", "--skip_lines", "1", "--column_names", "filename,x,y,width,height,class"]
    write_images(tmp_path, ["a.png"])
    assert prepare(tmp_path / "rows.csv", *options, "--splits=train=1") == 0  # as advised


def test_relative_numbers_in_a_pixel_format_are_refused(tmp_path: pathlib.Path, capsys) -> None:
    write_images(tmp_path, ["a.png", "b.png"])
    rows = [[name, 0.25, 0.25, 0.75, 0.75, "cat"] for name in ("a.png", "a.png", "b.png")]
    write_csv(tmp_path / "boxes.csv", "filename,xmin,ymin,xmax,ymax,class", rows)
    assert prepare(tmp_path / "boxes.csv") == 2
    reported = capsys.readouterr().err
    assert "--box_unit relative" in reported and "--box_format" not in reported.partition("--box_unit relative")[2]
    assert prepare(tmp_path / "boxes.csv", "--box_unit", "relative", "--splits=train=1") == 0
    assert stored_boxes(tmp_path)["b.png"] == {(12.0, 8.0, 36.0, 24.0, 0)}


# Grouping in bounded memory


@pytest.mark.parametrize("cache_kib", [1 << 10, 8])
def test_groups_rows_by_key_with_any_cache(tmp_path: pathlib.Path, monkeypatch, cache_kib: int) -> None:
    monkeypatch.setattr(image_rows, "_CACHE_KIB", cache_kib)
    rows = [(f"key{index * 7919 % 150}", index + 1, {"a": index, "b": "x" * (index % 50)}) for index in range(400)]
    rows += [("large", 10_000 + index, {"a": 1, "b": "y" * 90}) for index in range(50)]
    errors = [("", 5000 + index, InvalidInput("bad_row", "x")) for index in range(50)]
    directory = tmp_path / "it's scratch"
    actual = dict(image_rows.group_rows([*errors, *rows], ("a", "b"), str(directory), max_bytes=5000))
    assert actual.pop(10_000).reason == "too_large"
    assert [actual.pop(number) for _, number, _ in errors] == [error for *_, error in errors]
    expected = defaultdict(list)
    for key, number, row in rows[:400]:
        expected[key].append((number, row))
    assert actual == {some[0][0]: some for some in expected.values()} and not [*directory.iterdir()]


NEAR = {
    "filename,xmn,ymin,xmax,ymax": ("xmn", "xmin"),
    "image,left,top,right,botom": ("botom", "bottom"),
    "image,x,y,width,weight": None,
    "image,x,y,w,label": None,
    "image,xmin,ymin,xmax,ymax": None,
}


@pytest.mark.parametrize("columns", NEAR)
def test_misspelled_side_of_a_box_is_found(columns):
    assert near_box_column(columns.split(",")) == NEAR[columns]
