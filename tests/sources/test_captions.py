"""Tests tables with several rows for each image, such as captions."""

import json
import pathlib

import pytest

import tf_input
from beam_pipelines.__main__ import main
from made_images import png, write_files

NAMES = [f"{index}.png" for index in range(6)]
# Rows of an image are not adjacent. Captions contain commas and quotes.
CAPTIONS = [(name, number, f'A "dog", {number}, runs from {name}') for number in range(3) for name in NAMES]
EXPECTED = {name: [text for other, _, text in CAPTIONS if other == name] for name in NAMES}


def quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


TABLES = {
    "Flickr8k": ("captions.txt", ["image,caption", *(f"{name},{quoted(text)}" for name, _, text in CAPTIONS)], "caption", ["--source=table"]),
    "Flickr8k tokens": (
        "Flickr8k.token.txt",
        [f"{name}#{number}\t{text}" for name, number, text in CAPTIONS],
        "caption",
        ["--source=table", "--column_names=image,caption"],
    ),
    "Flickr30k": (
        "results.csv",
        ["image_name| comment_number| comment", *(f"{name}| {number}| {text}" for name, number, text in CAPTIONS)],
        "comment",
        [],
    ),
    "another delimiter": (
        "captions.csv",
        ["image~caption", *(f"{name}~{text}" for name, _, text in CAPTIONS)],
        "caption",
        ["--delimiter=~"],
    ),
    "named delimiter": (
        "captions.dat",
        [f"{name}\t{text}" for name, _, text in CAPTIONS],
        "caption",
        ["--source=table", "--delimiter=tab", "--column_names=file,caption"],
    ),
    "requested rows": (
        "captions.jsonl",
        [json.dumps({"image": name, "caption": text}) for name, _, text in CAPTIONS],
        "caption",
        ["--rows=values"],
    ),
}


def prepare(root: pathlib.Path, name: str, *options: str) -> int:
    return main(["prepare", "--input", str(root / name), "--output", str(root / "out"), *options])


def write_table(root: pathlib.Path, case: str) -> tuple[str, str, list[str]]:
    name, lines, column, options = TABLES[case]
    write_files(root, {**{image: png(index) for index, image in enumerate(NAMES)}, name: "\n".join(lines).encode()})
    return name, column, options


@pytest.mark.slow(1)
@pytest.mark.parametrize("case", TABLES)
def test_rows_of_an_image_become_a_list_of_captions(tmp_path: pathlib.Path, capsys, case: str) -> None:
    name, column, options = write_table(tmp_path, case)
    assert prepare(tmp_path, name, "--label", f"{column}:text[]", *options, "--splits=train=1") == 0
    assert "--rows=values" in capsys.readouterr().err
    examples = {str(item["key"]): [str(text) for text in item["label"]] for item in tf_input.open(tmp_path / "out")["train"]}
    assert examples == EXPECTED


@pytest.mark.slow(1)
@pytest.mark.parametrize("case", ["Flickr8k", "Flickr8k tokens", "Flickr30k"])
def test_each_row_can_be_an_example_in_the_group_of_its_image(tmp_path: pathlib.Path, case: str) -> None:
    name, column, options = write_table(tmp_path, case)
    keys = {"Flickr8k": "image,caption", "Flickr8k tokens": "image", "Flickr30k": "image_name,comment_number"}[case]
    group = ["--group_pattern=^[^#]+"] if case == "Flickr8k tokens" else [f"--group={keys.split(',')[0]}"]
    images = ["--image_column=image_name"] if case == "Flickr30k" else []
    splits = ["--splits=train=0.5,test=0.5"]
    assert prepare(tmp_path, name, "--label", f"{column}:text", "--key_column", keys, *images, *group, *options, *splits) == 0
    dataset = tf_input.open(tmp_path / "out")
    images_of = {split: {str(item["label"]).rpartition(" ")[2] for item in dataset[split]} for split in dataset.splits}
    assert sum(len(dataset[split]) for split in dataset.splits) == len(CAPTIONS)
    assert not images_of["train"] & images_of["test"] and images_of["train"] | images_of["test"] == set(NAMES)


@pytest.mark.slow(1)
def test_classes_in_several_rows_are_a_multi_label(tmp_path: pathlib.Path) -> None:
    rows = ["ImageID,Source,LabelName,Confidence", "0.png,v,cat,1", "1.png,v,dog,1", "0.png,v,dog,1"]
    write_files(tmp_path, {**{name: png(index) for index, name in enumerate(NAMES)}, "labels.csv": "\n".join(rows).encode()})
    assert prepare(tmp_path, "labels.csv", "--rows=values", "--label", "LabelName:multi_label", "--splits=train=1") == 0
    dataset = tf_input.open(tmp_path / "out")
    names = dataset.features["label"].label_names
    assert {str(item["key"]): {name for name, flag in zip(names, item["label"]) if flag} for item in dataset["train"]} == {
        "0.png": {"cat", "dog"},
        "1.png": {"dog"},
    }


@pytest.mark.parametrize("delimiter", ["ab", '"', "x", "\n"])
def test_invalid_delimiters_fail(tmp_path: pathlib.Path, capsys, delimiter: str) -> None:
    name, column, options = write_table(tmp_path, "Flickr8k")
    assert prepare(tmp_path, name, "--label", f"{column}:text[]", *options, f"--delimiter={delimiter}") == 2
    assert "--delimiter" in capsys.readouterr().err
