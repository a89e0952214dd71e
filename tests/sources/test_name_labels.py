"""Tests labels that `--label_pattern` extracts from file names."""

import json
import pathlib

import numpy as np
import pytest

import tf_input
from beam_pipelines.__main__ import main
from made_images import encode, noise, png, write_files

NUM = 12


def prepare(root: pathlib.Path, *options: str, name: str = "in") -> int:
    return main(["prepare", "--input", str(root / name), "--output", str(root / "out"), "--splits=train=1", *options])


def read_examples(root: pathlib.Path) -> dict[str, dict]:
    return {str(example["key"]): example for example in tf_input.open(root / "out")["train"]}


def label_names(root: pathlib.Path, feature: str = "label") -> tuple[str, ...]:
    return tf_input.open(root / "out").features[feature].label_names


PETS = [f"{('Abyssinian', 'basset_hound', 'Bengal')[index % 3]}_{index}.png" for index in range(NUM)]
PATTERNS = {
    "first group": (r"([^/]+)_\d+\.png$", [], "label"),
    "one named group": (r"(?P<breed>[^/]+)_\d+\.", [], "label"),
    "whole match": (r"[A-Za-z]+[a-z_]*[a-z]", [], "label"),
}


@pytest.mark.slow(1)
@pytest.mark.parametrize("folder", ["", "images/"])
@pytest.mark.parametrize("case", PATTERNS)
def test_class_is_part_of_the_file_name(tmp_path: pathlib.Path, case: str, folder: str) -> None:
    pattern, options, feature = PATTERNS[case]
    if case == "whole match" and folder:
        pattern = "Abyssinian|basset_hound|Bengal"
    write_files(tmp_path / "in", {f"{folder}{name}": png(index) for index, name in enumerate(PETS)})
    assert prepare(tmp_path, "--label_pattern", pattern, *options) == 0
    examples = read_examples(tmp_path)
    names = label_names(tmp_path, feature)
    assert names == ("Abyssinian", "Bengal", "basset_hound")
    assert {key: names[example[feature]] for key, example in examples.items()} == {f"{folder}{name}": name.rpartition("_")[0] for name in PETS}


@pytest.mark.slow(1)
def test_named_groups_are_several_targets_with_kinds(tmp_path: pathlib.Path) -> None:
    """The file names have the format of the UTKFace dataset."""
    names = {f"{20 + index}_{index % 2}_{index % 3}_2017.png": index for index in range(NUM)}
    write_files(tmp_path / "in", {name: png(index) for name, index in names.items()})
    pattern = r"^(?P<age>\d+)_(?P<sex>\d)_(?P<race>\d)_"
    assert prepare(tmp_path, "--label_pattern", pattern, "--label", "age:integer", "--label", "sex", "--feature", "race") == 0
    assert {key: (int(item["age"]), int(item["sex"]), item["race"]) for key, item in read_examples(tmp_path).items()} == {
        name: (20 + index, index % 2, str(index % 3)) for name, index in names.items()
    }
    assert tf_input.open(tmp_path / "out").targets == ("age", "sex")
    assert prepare(tmp_path, "--label_pattern", pattern, "--overwrite") == 0
    assert set(tf_input.open(tmp_path / "out").targets) == {"age", "sex", "race"}
    assert prepare(tmp_path, "--label_pattern", pattern, "--label", "age:float", "--overwrite") == 0
    assert sorted(float(item["label"]) for item in read_examples(tmp_path).values()) == [20.0 + index for index in range(NUM)]


@pytest.mark.slow(1)
def test_name_that_does_not_match_is_a_dead_letter(tmp_path: pathlib.Path) -> None:
    write_files(tmp_path / "in", {name: png(index) for index, name in enumerate(["cat.0.png", "dog.1.png", "cat.2.png", "3.png"])})
    assert prepare(tmp_path, "--label_pattern", r"^([a-z]+)\.", "--max_bad_fraction=0.3") == 0
    (letter,) = map(json.loads, (tmp_path / "out/dead_letters.jsonl").read_text().splitlines())
    assert (letter["path"], letter["reason"]) == ("3.png", "bad_label") and "--label_pattern" in letter["message"]
    assert label_names(tmp_path) == ("cat", "dog")


def test_invalid_value_in_a_name_is_a_dead_letter(tmp_path: pathlib.Path, capsys) -> None:
    write_files(tmp_path / "in", {"a_1.png": png(), "b_x.png": png(1)})
    assert prepare(tmp_path, "--label_pattern", r"_(?P<age>.)\.png", "--label", "age:integer", "--max_bad_fraction=0.5") == 0
    (letter,) = map(json.loads, (tmp_path / "out/dead_letters.jsonl").read_text().splitlines())
    assert letter["path"] == "b_x.png" and "'age'" in letter["message"] and "'x'" in letter["message"]


@pytest.mark.slow(1)
def test_other_sources_can_have_labels_in_names(tmp_path: pathlib.Path) -> None:
    write_files(tmp_path / "in", {name: png(index) for index, name in enumerate(PETS)})
    write_files(tmp_path / "in", {"list.txt": "\n".join(PETS).encode(), "rows.csv": "\n".join(["image,weather", *(f"{name},sun" for name in PETS)]).encode()})
    expected = sorted(name.rpartition("_")[0] for name in PETS)
    for source in (["text", "list.txt"], ["table", "rows.csv"]):
        labels = ["--label", "breed", "--label", "weather"] if source[0] == "table" else []
        pattern = r"(?P<breed>.+)_\d"
        assert prepare(tmp_path, f"--source={source[0]}", "--label_pattern", pattern, *labels, "--overwrite", name=f"in/{source[1]}") == 0
        feature = "breed" if labels else "label"
        names = label_names(tmp_path, feature)
        assert sorted(names[item[feature]] for item in read_examples(tmp_path).values()) == expected
        assert not labels or all(item["weather"] == 0 for item in read_examples(tmp_path).values())


@pytest.mark.slow(1)
def test_masks_can_have_labels_in_names(tmp_path: pathlib.Path) -> None:
    masks = {f"masks/{name}": encode(np.full((16, 16), index % 5, np.uint8), "PNG") for index, name in enumerate(PETS)}
    images = {f"images/{name}": encode(noise(index), "PNG") for index, name in enumerate(PETS)}
    write_files(tmp_path / "in", {**images, **masks})
    assert prepare(tmp_path, "--label_pattern", r"([^/]+)_\d") == 0
    dataset = tf_input.open(tmp_path / "out")
    assert set(dataset.targets) == {"mask", "label"}
    names = label_names(tmp_path)
    for key, item in read_examples(tmp_path).items():
        index = PETS.index(key.rpartition("/")[2])
        assert names[item["label"]] == PETS[index].rpartition("_")[0] and set(np.unique(item["mask"])) == {index % 5}


@pytest.mark.slow(1)
def test_label_names_give_the_order(tmp_path: pathlib.Path) -> None:
    write_files(tmp_path / "in", {f"{('cat', 'dog')[index % 2]}.{index}.png": png(index) for index in range(NUM)})
    write_files(tmp_path, {"names.txt": b"dog\ncat\n"})
    assert prepare(tmp_path, "--label_pattern", r"^([a-z]+)", "--label_names", f"{tmp_path}/names.txt") == 0
    assert {key[:3]: int(item["label"]) for key, item in read_examples(tmp_path).items()} == {"dog": 0, "cat": 1}


REFUSED = {
    "not a pattern": (["--label_pattern", "("], "--label_pattern=("),
    "no such group": (["--label_pattern", "(?P<age>.)", "--label", "agee"], "'age'"),
    "a kind that is no text": (["--label_pattern", "(?P<age>.)", "--label", "age:mask"], "age"),
    "no named group": (["--label_pattern", "(.)", "--label", "sex"], "'sex'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_patterns_fail_with_exit_code_2(tmp_path: pathlib.Path, capsys, case: str) -> None:
    options, part = REFUSED[case]
    write_files(tmp_path / "in", {"a.png": png()})
    assert prepare(tmp_path, *options) == 2
    assert part in capsys.readouterr().err


def test_folder_without_classes_suggests_the_pattern(tmp_path: pathlib.Path, capsys) -> None:
    write_files(tmp_path / "in", {f"{('cat', 'dog')[index % 2]}.{index}.png": png(index) for index in range(NUM)})
    assert prepare(tmp_path) == 2
    assert "--label_pattern" in capsys.readouterr().err
    write_files(tmp_path / "nested/pets", {f"{('cat', 'dog')[index % 2]}.{index}.png": png(index) for index in range(NUM)})
    assert prepare(tmp_path, name="nested") == 0
    assert "--label_pattern" in json.dumps(json.loads((tmp_path / "out/statistics.json").read_text())["warnings"])
