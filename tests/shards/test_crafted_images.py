"""Tests that malicious images cause dead letters or error messages with the file name, and never a traceback."""

import json

import numpy as np
import pytest

from beam_pipelines.__main__ import main
from images.test_png_files import CORRUPT_PNGS, VALID_PNGS
from made_images import encode, jpeg, png, write_files

MASK = encode(np.zeros((9, 7), np.uint8), "PNG")
SECOND_HEADER, IN_COLOUR = CORRUPT_PNGS["a second header"], png(1, 8, 8)
# Pillow raises ValueError when it converts an image with more than 256 transparency values.
TRANSPARENT = VALID_PNGS["transparency, more than 256 values"]


def dead_letters(output) -> dict[str, dict[str, str]]:
    lines = map(json.loads, (output / "dead_letters.jsonl").read_text().splitlines())
    return {line["path"]: line for line in lines}


@pytest.mark.slow
@pytest.mark.parametrize("size", [[], ["--image_size=exact=8x8"]])
def test_crafted_image_is_a_dead_letter_in_every_feature(tmp_path, size):
    bad = {"second": SECOND_HEADER, "colour": IN_COLOUR, "none": CORRUPT_PNGS["no palette"], "rows": CORRUPT_PNGS["missing rows"]}
    files = {f"{name}.png": png(number, 9, 7) for number, name in enumerate("abcdefghij")}
    files |= {"mask.png": MASK, "right.png": png(4, 6, 6), "clear.png": TRANSPARENT} | {f"{name}.png": data for name, data in bad.items()}
    rows = ["path,label,mask,right", "second.png,x,mask.png,right.png", "b.png,x,colour.png,right.png", "c.png,y,mask.png,rows.png"]
    rows += ["d.png,y,none.png,right.png", "e.png,y,mask.png,clear.png"] + [f"{name}.png,x,mask.png,right.png" for name in "afghij"]
    files["rows.csv"] = "\n".join(rows).encode()
    write_files(tmp_path / "in", files)
    options = ["--label=label", "--label=mask:mask", "--feature=right:image", "--splits=train=1", "--max_bad_fraction=1", *size]
    assert main(["prepare", "--input", str(tmp_path / "in/rows.csv"), "--output", str(tmp_path / "out"), *options]) == 0
    actual = dead_letters(tmp_path / "out")
    assert {path: letter["reason"] for path, letter in actual.items()} == {
        "second.png": "bad_image", "b.png": "bad_mask", "c.png": "bad_image", "d.png": "bad_mask"
    }  # fmt: skip
    for path, name, file in (("b.png", "mask", "colour.png"), ("c.png", "right", "rows.png"), ("d.png", "mask", "none.png")):
        assert actual[path]["message"].startswith(f"{name}: {file}: "), path


@pytest.mark.slow(2)
def test_commands_report_crafted_images_in_the_dataset(tmp_path, capsys):
    files = {f"{label}/{number}.png": png(number, 20, 30) for label in "ab" for number in range(4)}
    crafted = {**CORRUPT_PNGS, **VALID_PNGS, "half": jpeg(1, 64, 64)[:900] + b"\xff\xd9"}
    files |= {f"{'ab'[number % 2]}/x{number}.png": data for number, data in enumerate(crafted.values())}
    write_files(tmp_path / "in", files)
    output = str(tmp_path / "out")
    prepare = ["prepare", "--input", str(tmp_path / "in"), "--output", output, "--splits=train=.5,test=.5"]
    assert main([*prepare, "--check=none"]) == 0
    capsys.readouterr()
    assert main(["verify", "--decode", output]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert sum("tfrecord-" in line for line in lines) == len(CORRUPT_PNGS) + 1
    assert main(["report", output]) == 0
    assert main(["leaks", output]) in (0, 1)
    assert main(["leaks", str(tmp_path / "in/a"), str(tmp_path / "in/b")]) in (0, 1, 2)
