"""Tests masks that tables store as run lengths."""

import json
import pathlib
from typing import Any, Sequence

import numpy as np
import pytest
from pycocotools import mask as coco_masks

import tf_input
from beam_pipelines.__main__ import main
from listed_rows import read_letters, write_rows
from made_images import encode, noise, write_files

HEIGHT, WIDTH = 12, 20
NUM = 6


def made_mask(index: int) -> np.ndarray:
    """Returns a mask of three rectangles, bool [height, width]."""
    random = np.random.default_rng(index)
    mask = np.zeros((HEIGHT, WIDTH), bool)
    for _ in range(3):
        top, left = random.integers(0, HEIGHT - 3), random.integers(0, WIDTH - 4)
        mask[top : top + random.integers(1, 4), left : left + random.integers(1, 5)] = True
    return mask


def pairs(mask: np.ndarray) -> str:
    """Encodes a mask in column-major order as pairs of a 1-based start and a length."""
    runs: list[int] = []
    flat = [bool(mask[y, x]) for x in range(WIDTH) for y in range(HEIGHT)]
    for index, is_set in enumerate(flat):
        if is_set and (index == 0 or not flat[index - 1]):
            runs += [index + 1, 0]
        if is_set:
            runs[-1] += 1
    return " ".join(map(str, runs))


def coco(mask: np.ndarray) -> dict[str, Any]:
    runs = coco_masks.encode(np.asfortranarray(mask.astype(np.uint8)))
    return {"size": list(map(int, runs["size"])), "counts": runs["counts"].decode()}


def write_table(root: pathlib.Path, rows: Sequence[dict[str, Any]]) -> pathlib.Path:
    write_files(root, {row[[*row][0]]: encode(noise(index, HEIGHT, WIDTH), "PNG") for index, row in enumerate(rows)})
    return write_rows(root, [*rows], "jsonl")


def prepare(path: pathlib.Path, *options: str) -> int:
    return main(["prepare", "--input", str(path), "--output", str(path.parent / "out"), "--splits=train=1", *options])


def masks_in(root: pathlib.Path, feature: str = "mask") -> dict[str, np.ndarray]:
    return {str(item["key"]): item[feature][..., 0] for item in tf_input.open(root / "out")["train"]}


FORMS = {
    "Kaggle": pairs,
    "COCO": coco,
    "JSON text": lambda mask: json.dumps(coco(mask)),
    "compressed text": lambda mask: coco(mask)["counts"],
    "counts": lambda mask: {"counts": coco_counts(mask)},
}


def coco_counts(mask: np.ndarray) -> list[int]:
    flat = [False, *mask.T.ravel().tolist()]
    changes = [index for index in range(1, len(flat)) if flat[index] != flat[index - 1]]
    return np.diff([1, *changes, len(flat)]).tolist()


@pytest.mark.slow(1)
@pytest.mark.parametrize("form", FORMS)
def test_run_lengths_become_masks(tmp_path: pathlib.Path, form: str) -> None:
    rows = [{"image": f"{index}.png", "EncodedPixels": FORMS[form](made_mask(index)) if index else None} for index in range(NUM)]
    assert prepare(write_table(tmp_path, rows), "--label", "EncodedPixels:rle") == 0
    masks = masks_in(tmp_path)
    for index in range(1, NUM):
        np.testing.assert_array_equal(masks[f"{index}.png"], made_mask(index), err_msg=str(index))
    assert not masks["0.png"].any()


@pytest.mark.slow(1)
@pytest.mark.parametrize("classes", [[1, 2, 3], ["crazing", "patch", "scratch"]])
def test_rows_of_an_image_are_regions_of_classes(tmp_path: pathlib.Path, capsys, classes: list[Any]) -> None:
    """The table has the format of the Severstal dataset. Later rows are drawn over earlier rows."""
    rows = [
        {"ImageId": f"{index}.png", "ClassId": classes[(index + number) % 3], "EncodedPixels": pairs(made_mask(index + 100 * number))}
        for number in range(2)
        for index in range(NUM)
    ]
    path = write_table(tmp_path, rows)
    write_files(tmp_path, {"names.txt": b"background\ncrazing\npatch\nscratch\n"})
    options = ["--label_names", f"mask={tmp_path}/names.txt"] if isinstance(classes[0], str) else []
    assert prepare(path, "--label", "EncodedPixels,ClassId:rle", "--image_column", "ImageId", *options) == 0
    assert "--rows=values" in capsys.readouterr().err
    for name, mask in masks_in(tmp_path).items():
        index = int(name.removesuffix(".png"))
        expected = np.where(made_mask(index), 1 + index % 3, 0)
        np.testing.assert_array_equal(mask, np.where(made_mask(index + 100), 1 + (index + 1) % 3, expected), err_msg=name)


BAD = {
    **{"an odd number": "1 2 3", "outside the image": f"{HEIGHT * WIDTH} 2", "a start of 0": "0 2", "huge": "9" * 30 + " 1", "words": "one two"},
    **{"a number": 7, "another size": {"size": [3, 3], "counts": [9]}, "no counts": {"size": [HEIGHT, WIDTH]}, "invalid JSON": "{"},
}


@pytest.mark.slow(1)
def test_invalid_run_lengths_are_dead_letters(tmp_path: pathlib.Path) -> None:
    rows = [{"image": f"{case}.png", "runs": cell} for case, cell in {**BAD, "good": "-1"}.items()]
    assert prepare(write_table(tmp_path, rows), "--label", "runs:rle", "--max_bad_fraction=0.95") == 0
    assert [*masks_in(tmp_path)] == ["good.png"]
    letters = read_letters(tmp_path / "out")
    for number, case in enumerate(BAD, start=1):
        letter = letters.get(f"{case}.png") or letters[f"rows.jsonl:{number}"]  # found when a row is listed, or an image is read
        assert letter["reason"] == "bad_mask", case


def test_class_names_need_label_names(tmp_path: pathlib.Path, capsys) -> None:
    path = write_table(tmp_path, [{"image": "0.png", "runs": "1 2", "class": "cat"}])
    assert prepare(path, "--label", "runs,class:rle") == 2
    assert "--label_names mask=" in capsys.readouterr().err
    assert prepare(path, "--label", "a,b,c:rle") == 2
    assert "RUNS,CLASS:rle" in capsys.readouterr().err
