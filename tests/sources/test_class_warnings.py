"""Tests the warnings about labels that are probably not classes."""

import json
import pathlib

import numpy as np
import pytest

from beam_pipelines.__main__ import main
from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.config.source_config import SourceConfig
from beam_pipelines.columns.forms import parse_labels
from beam_pipelines.sources.listing.listing_warnings import class_warnings
from beam_pipelines.sources.registry import find_kind
from made_images import encode, jpeg, write_files
from tf_input.dataset_format import read_manifest

DISTINCT = [str(number) for number in range(50)]
CASES = {  # names of the classes, number of examples, words of the warning; None: no warning
    "fractions": ({"0.5", "1.25", "3"}, 1000, ["--label=price:float", "'0.5'"]),
    "fractions with a word": ({"0.5", "1.25", "3", "?"}, 1000, ["--label=price:float"]),
    "exponents": ({"5e-1", "-.25"}, 1000, ["--label=price:float"]),
    "integers as floats": ({"1.0", "2.0"}, 1000, None),
    "versions": ({"v1.5", "v2.5"}, 1000, None),
    "a number for each example": (set(DISTINCT), 50, ["--label=price:float", "50 examples", "50 classes"]),
    "a name for each example": ({f"p{name}" for name in DISTINCT}, 60, ["--label", "60 examples", "50 classes"]),
    "two examples for each class": (set(DISTINCT), 100, None),
    "a few examples": (set(DISTINCT[:19]), 19, None),
    "one class": ({"x"}, 50, ["'x'", "--label=none"]),
}


@pytest.mark.parametrize("case", CASES)
def test_warns_about_values_that_are_probably_not_classes(case):
    names, num_examples, words = CASES[case]
    config = PrepareOptions("rows.csv", "out", "made", source=SourceConfig(kind=find_kind("table"), labels=parse_labels(["price"])))
    warnings = [*class_warnings(config, {"label": names}, num_examples)]
    assert len(warnings) == (words is not None), warnings
    assert all(word in warnings[0] for word in words or ()), warnings


def prepare(root: pathlib.Path, *options: str) -> list[str]:
    """Prepares a dataset and returns its warnings."""
    assert main(["prepare", f"--output={root / 'out'}", "--splits=train=1", "--no_report", "--overwrite", *options]) == 0
    return json.loads((root / "out/statistics.json").read_text())["warnings"]


GRAY = encode(np.array([[[1, 1, 1], [2, 2, 2]]], np.uint8).repeat(16, 0).repeat(8, 1), "PNG")
IN_SPLITS = {f"{folder}/{index}.jpg": jpeg(index) for index, folder in enumerate(("train/rose", "train/tulip", "val/rose", "val/tulip"))}
COLORS = {"class_dict.csv": b"name,r,g,b\nsky,1,1,1\nsky,2,2,2\n", "images/1.jpg": jpeg(), "masks/1.png": GRAY}
FAULTS = {  # files, folders, options, words of the only warning; None: no warning
    "class in one split": ({**IN_SPLITS, "val/tulips/1.jpg": jpeg(9)}, [], [], ["'tulips'", "'train'"]),
    "class in the training split only": ({**IN_SPLITS, "train/lily/1.jpg": jpeg(9)}, [], [], None),
    "empty split folder": (IN_SPLITS, ["test"], [], ["'test'"]),
    "split of empty class folders": (IN_SPLITS, ["test/rose", "test/tulip"], [], ["'test'"]),
    "two colors of one class": (COLORS, [], ["--splits=train=1"], ["2 colors", "'sky'"]),
    "one row without a group": (
        {"rows.csv": b"image,label,group\n1.jpg,a,\n2.jpg,b,g\n", "1.jpg": jpeg(1), "2.jpg": jpeg(2)},
        [],
        ["--source=table", "--splits=train=1"],
        ["inputs without a group: 1 ("],
    ),
}


@pytest.mark.parametrize("case", FAULTS)
def test_faults_of_the_input_are_warned_about(tmp_path, case):
    files, folders, options, words = FAULTS[case]
    root = write_files(tmp_path / "in", files)
    for folder in folders:
        (root / folder).mkdir(parents=True)
    output = f"--output={tmp_path}/out"
    assert main(["prepare", f"--input={root}", output, "--no_report", *options]) == 0
    warnings = json.loads((tmp_path / "out/statistics.json").read_text())["warnings"]
    assert len(warnings) == (words is not None), warnings
    assert all(word in warnings[0] for word in words or ()), warnings


def test_advice_for_numbers_that_are_read_as_classes_succeeds(tmp_path, capsys):
    write_files(tmp_path, {f"{index}.jpg": jpeg(index) for index in range(5)})
    write_files(tmp_path, {"rows.csv": "image,price\n".encode() + "".join(f"{index}.jpg,{index / 2}\n" for index in range(5)).encode()})
    (warning,) = prepare(tmp_path, f"--input={tmp_path}/rows.csv", "--label=price")
    assert "--label=price:float" in warning and warning in capsys.readouterr().err
    (tmp_path / "names.txt").write_text("".join(f"{index / 2}\n" for index in range(5)))
    assert not prepare(tmp_path, f"--input={tmp_path}/rows.csv", "--label=price", f"--label_names={tmp_path}/names.txt")
    assert not prepare(tmp_path, f"--input={tmp_path}/rows.csv", "--label=price:float")
    assert read_manifest(tmp_path / "out").features["label"].kind == "float"


def test_single_class_folder_is_warned_about(tmp_path, capsys):
    write_files(tmp_path, {f"pics/batch1/{index}.jpg": jpeg(index) for index in range(4)})
    (warning,) = prepare(tmp_path, f"--input={tmp_path}/pics")
    assert "'batch1'" in warning and "--label=none" in warning and "table" not in warning and warning in capsys.readouterr().err
    (tmp_path / "labels.csv").write_text("image,label\n" + "".join(f"{index}.jpg,{'ab'[index % 2]}\n" for index in range(4)))
    (warning,) = prepare(tmp_path, f"--input={tmp_path}/pics")
    assert "--source=table" in warning and "'labels.csv'" in warning
    assert not prepare(tmp_path, f"--input={tmp_path}/pics", "--label=none")
    assert not prepare(tmp_path, f"--input={tmp_path}/labels.csv", "--source=table", f"--image_root={tmp_path}/pics/batch1")
