"""Tests tables whose cells contain pixel values."""

import pathlib
from typing import Any

import numpy as np
import pytest

import tf_input
from beam_pipelines.__main__ import main
from listed_rows import read_letters, write_rows
from made_images import write_files

NUM = 12


def pictures(height: int, width: int, num_channels: int = 1) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (NUM, height, width, num_channels), dtype=np.uint8)


def prepare(path: pathlib.Path, *options: str) -> int:
    return main(["prepare", "--input", str(path), "--output", str(path.parent / "out"), *options])


def read_images(root: pathlib.Path) -> dict[str, tuple[str, np.ndarray]]:
    """Returns the split and the pixels of each example by key."""
    dataset = tf_input.open(root / "out")
    return {str(example["key"]): (split, example["image"]) for split in dataset.splits for example in dataset[split]}


def write_csv(root: pathlib.Path, header: list[str], rows: list[list[Any]]) -> pathlib.Path:
    text = "\n".join(",".join(map(str, row)) for row in [header, *rows])
    write_files(root, {"rows.csv": text.encode()})
    return root / "rows.csv"


def numbered(index: int) -> str:
    return f"rows.csv:{index + 2}"


SPLITS = ("Training", "PublicTest", "PrivateTest")


@pytest.mark.slow(1)
def test_one_cell_of_pixels_and_a_column_of_splits(tmp_path: pathlib.Path, capsys) -> None:
    """The table has the columns of FER2013."""
    images = pictures(48, 48)
    rows = [[index % 7, " ".join(map(str, image.ravel())), SPLITS[index % 3]] for index, image in enumerate(images)]
    path = write_csv(tmp_path, ["emotion", "pixels", "Usage"], rows)
    assert prepare(path, "--label", "emotion") == 0
    reported = capsys.readouterr().err
    assert "--pixel_shape=48,48" in reported and "Usage" in reported
    actual = read_images(tmp_path)
    assert {key: split for key, (split, _) in actual.items()} == {
        numbered(index): ("train", "PublicTest", "PrivateTest")[index % 3] for index in range(NUM)
    }
    assert all(np.array_equal(actual[numbered(index)][1], image) for index, image in enumerate(images))


FORMS = {
    "Kaggle digits": (lambda y, x: f"pixel{y * 28 + x}", (28, 28), []),
    "sign MNIST": (lambda y, x: f"pixel{y * 28 + x + 1}", (28, 28), []),
    "grid": (lambda y, x: f"{y + 1}x{x + 1}", (6, 4), []),
    "numbers with zeros": (lambda y, x: f"pixel{y * 4 + x:04d}", (3, 4), ["--pixel_shape=3,4"]),
}


@pytest.mark.slow(1)
@pytest.mark.parametrize("form", FORMS)
def test_one_column_for_each_pixel(tmp_path: pathlib.Path, form: str) -> None:
    name, (height, width), options = FORMS[form]
    images = pictures(height, width)
    columns = [name(y, x) for y in range(height) for x in range(width)]
    order = np.random.default_rng(1).permutation(len(columns))  # the names decide, not the order
    rows = [[index % 3, *image.ravel()[order]] for index, image in enumerate(images)]
    path = write_csv(tmp_path, ["label", *(columns[index] for index in order)], rows)
    assert prepare(path, *options, "--splits=train=1") == 0
    actual = read_images(tmp_path)
    assert all(np.array_equal(actual[numbered(index)][1], image) for index, image in enumerate(images))


@pytest.mark.slow(1)
@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_lists_of_pixels_in_a_named_column(tmp_path: pathlib.Path, suffix: str) -> None:
    images = pictures(5, 4, 3)
    cells = [image.tolist() if suffix == "jsonl" else image.ravel().tolist() for image in images]
    path = write_rows(tmp_path, [{"label": index % 3, "picture": cell} for index, cell in enumerate(cells)], suffix)
    assert prepare(path, "--image_column", "picture", "--pixel_shape", "[5,4,3]", "--splits=train=1") == 0
    actual = read_images(tmp_path)
    assert all(np.array_equal(actual[f"rows.{suffix}:{index + 1}"][1], image) for index, image in enumerate(images))


BAD_CELLS = {
    "too few": ("1 2 3", "4"),
    "too many": ("1 2 3 4 5", "4"),
    "above 255": ("1 2 3 256", "256"),
    "negative": ("1 2 3 -1", "-1"),
    "fraction": ("1 2 3 0.5", "0.5"),
    "not a number": ("1 2 3 x", "'x'"),
    "NaN": ("1 2 3 nan", "nan"),
    "huge": ("1 2 3 " + "9" * 400, "inf"),
    "empty": ("", "0 numbers"),
}


@pytest.mark.slow(1)
def test_invalid_pixels_are_dead_letters(tmp_path: pathlib.Path) -> None:
    path = write_csv(tmp_path, ["label", "pixels"], [[0, "1 2 3 4"], *([1, cell] for cell, _ in BAD_CELLS.values())])
    assert prepare(path, "--splits=train=1", "--max_bad_fraction=0.95") == 0
    letters = read_letters(tmp_path / "out")
    for number, (case, (_, part)) in enumerate(BAD_CELLS.items(), start=3):
        letter = letters[f"rows.csv:{number}"]
        assert letter["reason"] == "bad_image" and part in letter["message"], case
    path = write_csv(tmp_path, ["label", "pixel0", "pixel1", "pixel2", "pixel3"], [[0, 1, 2, 3, 4], [1, 1, "", 3, 4], [1, 1, 300, 3, 4]])
    assert prepare(path, "--splits=train=1", "--max_bad_fraction=0.7", "--overwrite") == 0
    assert {*read_letters(tmp_path / "out")} == {"rows.csv:3", "rows.csv:4"}


REFUSED = {
    "not a square": (["pixels"], ["1 2 3 4 5 6"], [], "--pixel_shape HEIGHT,WIDTH"),
    "another shape": (["pixel0", "pixel1", "pixel2", "pixel3"], [1, 2, 3, 4], ["--pixel_shape=3,3"], "--pixel_shape=3,3"),
    "no pixels": (["image"], ["1.png"], ["--pixel_shape=3,3"], "--pixel_shape"),
    "not integers": (["pixels"], ["1 2 3 4"], ["--pixel_shape=3,x"], "--pixel_shape=3,x"),
    "one side": (["pixels"], ["1 2 3 4"], ["--pixel_shape=4"], "HEIGHT,WIDTH"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_unknown_shape_fails_with_advice(tmp_path: pathlib.Path, capsys, case: str) -> None:
    columns, row, options, part = REFUSED[case]
    path = write_csv(tmp_path, ["label", *columns], [[0, *row]])
    assert prepare(path, *options) == 2
    assert part in capsys.readouterr().err


def test_pixel_columns_can_be_a_feature(tmp_path: pathlib.Path) -> None:
    path = write_csv(tmp_path, ["label", "pixel0", "pixel1", "pixel2", "pixel3"], [[0, 1, 2, 3, 4]])
    assert prepare(path, "--feature", "x=pixel0,pixel1,pixel2,pixel3:float", "--splits=train=1") == 0
    (example,) = tf_input.open(tmp_path / "out")["train"]
    assert example["x"].tolist() == [1, 2, 3, 4] and "image" not in example
