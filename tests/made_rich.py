"""Provides a dataset with many kinds of features, which is created once for several test modules."""

import json
import pathlib

import numpy as np
import pytest

from beam_pipelines.__main__ import main
from made_images import encode, write_files
from prepared import make_once, picture

SIZE, COUNT = 16, 24
NAMES = ("red", "green", "blue")


def analyzed_rich(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Returns an analyzed dataset whose examples have boxes, masks, several labels, numbers, text and weights."""
    return make_once(tmp_path_factory, "rich", _make)


def _make(folder: pathlib.Path) -> pathlib.Path:
    lines = []
    for index in range(COUNT):
        image, mask = picture(seed=index), np.zeros(picture(seed=index).shape[:2], np.uint8)
        mask[4:12, 5:15] = 1 + index % 3
        write_files(folder / "in", {f"{index}.png": encode(image, "PNG"), f"m/{index}.png": encode(mask, "PNG")})
        boxes = [[5, 4, 10, 8], [0, 0, 3, 3], [8, 8, 9, 9]][: index % 4]
        row = {"file_name": f"{index}.png", "mask": f"m/{index}.png", "weight": 1 + index % 2}
        row |= {"age": index / 7, "city": f"c{index % 5}"}
        row |= {"objects": {"bbox": boxes, "categories": [NAMES[location] for location in range(len(boxes))]}}
        lines.append(json.dumps(row | {"colours": list(NAMES[: index % 3]), "weather": NAMES[index % 2]}) + "\n")
    (folder / "in/rows.jsonl").write_text("".join(lines))
    command = ["prepare", "--input", str(folder / "in/rows.jsonl"), "--output", str(folder / "out"), "--splits=train=1"]
    labels = ["--label=objects", "--label=mask:mask", "--label=colours:multi_label", "--label=weather"]
    assert main([*command, *labels, "--feature=age:float", "--feature=city"]) == 0
    assert main(["analyze", str(folder / "out"), f"--image_size={SIZE}"]) == 0
    return folder / "out"
