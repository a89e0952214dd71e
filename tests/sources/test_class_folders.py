"""Tests which level of nested folders contains the class names, and how split, copy and mask folders are detected."""

import json
import pathlib

import numpy as np
import pytest

from beam_pipelines.__main__ import main
from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.config.source_config import SourceConfig
from beam_pipelines.errors import UserError
from beam_pipelines.sources.formats.image_folder.class_folders import label_of, read_class_folders
from beam_pipelines.sources.formats.image_folder.image_folder import ImageFolder
from beam_pipelines.sources.listing.make_listing import make_listing
from beam_pipelines.sources.registry import find_kind
from made_images import encode, jpeg, noise, write_files
from made_references import list_parts

CHOSEN = {
    "no nested folders": (["cat", "dog"], None),
    "single class": (["cat"], None),
    "classes named by their path": (["animals/cat", "animals/dog", "plants/rose"], "all"),
    "folder around the classes": (["flowers/rose", "flowers/tulip"], "all"),
    "class inside a class": (["cat", "cat/wild", "dog"], "all"),
    "ImageNet ids": (["dogs/n02085620", "cats/n02123045"], "all"),
    "repeated names": (["cat/left", "cat/right", "dog/left"], "1"),
    "sessions": (["cat/session1", "cat/session2", "dog/session3"], "1"),
    "dates": (["cat/2024-05-01", "dog/2024-05-02"], "1"),
    "numbers": (["cat/001", "dog/002"], "1"),
    "clips of a class": (["Archery/v_Archery_g01", "Biking/v_Biking_g02"], "1"),
    "different classes in each folder": (["bmw/bmw_sedan", "audi/audi_coupe"], "all"),
    "class called train": (["road/bus", "rail/train"], "all"),
    "class with one session": (["cat/session1"], "1"),
    "images beside sessions": (["cat", "cat/session1", "dog/session1"], "1"),
    "three levels": (["cat/a/x", "dog/b/x"], "1"),
    "numbered classes with sessions": (["0/session1", "1/session1", "1/session2"], "1"),
    "sessions of subjects": (["subject1/run1", "subject2/run1", "subject2/run2"], "1"),
    "repeated names in a folder around the classes": (["data/cat/s1", "data/dog/s1"], "2"),
    "classes called mask": (["with_mask", "without_mask"], None),
    "mask beside another class": (["mask", "hat"], None),
    "classes mask and no_mask": (["mask", "no_mask"], None),
    "class names that contain split names": (["bullet_train", "test_tube", "cat", "dog", "ship"], None),
    "single class name with a split name": (["bus", "test_tube"], None),
}


@pytest.mark.parametrize("case", CHOSEN)
def test_class_folder_is_chosen_by_folder_names(case):
    paths, depth = CHOSEN[case]
    for order in (paths, paths[::-1]):
        reading = read_class_folders("in", {"": order})
        assert (reading and reading.depth) == depth


def test_folders_around_the_classes_of_each_split_are_ignored():
    doubled = {"train": ["train/cat", "train/dog"], "test": ["test/cat", "test/dog"]}
    assert read_class_folders("in", doubled).depth == "2"
    assert read_class_folders("in", doubled | {"pred": ["pred"]}).depth == "2"  # the listing rejects images without a class
    assert read_class_folders("in", {"train": ["jpg/cat", "jpg/dog"], "test": ["jpg/cat"]}).depth == "all"
    assert read_class_folders("in", {"train": ["cat"], "test": ["dog"]}) is None
    with pytest.raises(UserError, match="--ignore='all'"):
        read_class_folders("in", {"train": ["N"], "all": ["train/N", "test/N"]}, split_folders=True)
    with pytest.raises(UserError, match="--ignore='train/x'"):
        read_class_folders("in", {"train": ["N", "P", "x/N", "x/P"], "test": ["N"]})
    assert read_class_folders("in", {"train": ["cat/s1", "dog/s1"], "test": ["cat/s2"]}).depth == "1"


# Maps each case to its folders with images and words of the error message.
REJECTED = {
    "copies": (["yes", "no", "x/yes", "x/no"], ["--ignore='x'", "--class_folder_depth=last"]),
    "copies in a folder of the same name": (["f/rose", "f/tulip", "f/f/rose", "f/f/tulip"], ["--ignore='f/f'"]),
    "splits with a prefix": (["seg_train/cat", "seg_test/cat"], ["seg_test", "--split_folders=yes", "--split_folders=no"]),
    "splits in camel case": (["TrainSet/cat", "TestSet/cat"], ["TestSet", "--split_folders=yes"]),
    "splits without classes": (["train_images", "test_images"], ["test_images", "--label=none", "--image_root"]),
    "splits in a folder": (["pets/train/cat", "pets/test/cat"], ["--input=in/pets ", "--class_folder_depth=all"]),
    "splits in classes": (["cat/train", "cat/test", "dog/train"], ["--class_folder_depth=1"]),
    "splits in different folders": (["A/train/cat", "B/test/cat"], ["B/test", "--class_folder_depth=1"]),
    "single split in a folder": (["data/cat", "data/test/cat"], ["data/test"]),
    "images and masks": (["img", "gt"], ["--source=masks", "--class_folder_depth=1"]),
    "images and masks with a prefix": (["ISIC_Images", "ISIC_GroundTruth_masks"], ["--source=masks"]),
    "folder and mask folder": (["cells", "cells_mask", "other"], ["'cells_mask'", "--source=masks"]),
    "images, masks and another folder": (["images", "labels", "other"], ["--source=masks"]),
    "folds with classes": (["fold_1/cat", "fold_1/dog", "fold_2/cat"], ["fold_1", "--class_folder_depth=1", "--class_folder_depth=2"]),
    "patients with numbered classes": (["10253/0", "10253/1", "8863/0"], ["10253", "--class_folder_depth=2"]),
    "years in a folder": (["data/2019/cat", "data/2020/cat", "data/2020/dog"], ["--class_folder_depth=2", "--class_folder_depth=3"]),
    "images without classes": (["images"], ["--label=none", "--class_folder_depth=1"]),
}


@pytest.mark.parametrize("case", REJECTED)
def test_ambiguous_folders_are_rejected_with_possible_options(case):
    paths, words = REJECTED[case]
    for order in (paths, paths[::-1]):
        with pytest.raises(UserError) as caught:
            read_class_folders("in", {"": order})
        assert all(word in str(caught.value) for word in words), str(caught.value)


def test_split_names_are_classes_if_split_folders_is_false():
    assert read_class_folders("in", {"": ["seg_train", "seg_test"]}, split_folders=False) is None
    assert read_class_folders("in", {"": ["seg_train/cat", "seg_test/cat"]}, split_folders=False).depth == "all"


@pytest.mark.parametrize(
    "depth, expected",
    [(None, "a/b/c"), ("all", "a/b/c"), ("1", "a"), ("2", "b"), ("3", "c"), ("4", None), ("last", "c")],
)
def test_label_is_the_folder_at_the_given_depth(depth, expected):
    assert label_of(["a", "b", "c"], depth) == expected and label_of([], depth) is None


def prepare(root: pathlib.Path, paths: list[str], *options: str) -> int:
    table = b"image_id,label\n1.jpg,a\n"
    write_files(root / "in", {path: table if path.endswith(".csv") else jpeg(index) for index, path in enumerate(paths)})
    return main(["prepare", "--input", str(root / "in"), "--output", str(root / "out"), "--no_report", *options])


MASK = encode(np.kron(np.eye(2, dtype=np.uint8) * 255, np.ones((8, 8), np.uint8)), "PNG")


@pytest.mark.parametrize(
    "first, second, is_rejected",
    [
        (("a/{}.jpg", jpeg(0)), ("b/{}.png", MASK), True),
        (("b/{}.jpg", jpeg(0)), ("a/{}_mask.png", MASK), True),
        (("train/a/{}.png", encode(noise(0, 16, 16)[..., 0], "PNG")), ("train/b/{}.png", MASK), True),
        (("a/{}.jpg", jpeg(0)), ("b/{}.jpg", jpeg(1)), False),
        (("a/{}.jpg", jpeg(0)), ("b/x{}.png", MASK), False),
        (("a/{}.png", MASK), ("b/{}.png", MASK), False),  # black and white images such as digits
    ],
)
def test_class_folder_with_masks_of_another_folder_is_rejected(tmp_path, first, second, is_rejected):
    write_files(tmp_path, {name.format(number): data for number in range(5) for name, data in (first, second)})
    source = ImageFolder(PrepareOptions(str(tmp_path), "out", "made", source=SourceConfig(kind=find_kind("image_folder"))))
    if is_rejected:
        with pytest.raises(UserError, match="--source=masks"):
            source.choose_class_folders()
    else:
        assert source.choose_class_folders() is None


@pytest.mark.slow(2)
@pytest.mark.parametrize(
    "paths, options, names, reported",
    [
        (["cat/s1/1.jpg", "cat/s2/1.jpg", "dog/s1/1.jpg"], ["--splits=train=1"], ["cat", "dog"], "--class_folder_depth=1"),
        (["a/cat/1.jpg", "b/rose/1.jpg"], ["--splits=train=1"], ["a/cat", "b/rose"], "--class_folder_depth=all"),
        (["a/cat/1.jpg", "b/cat/1.jpg", "b/dog/1.jpg"], ["--splits=train=1", "--class_folder_depth=2"], ["cat", "dog"], ""),
        (["yes/1.jpg", "x/no/1.jpg"], ["--splits=train=1", "--class_folder_depth=last"], ["no", "yes"], ""),
        (["train/train/cat/1.jpg", "test/test/cat/1.jpg"], [], ["cat"], "--class_folder_depth=2"),
    ],
)
def test_chosen_depth_is_printed_and_recorded_in_run_json(tmp_path, capsys, paths, options, names, reported):
    assert prepare(tmp_path, paths, *options) == 0
    assert (tmp_path / "out/label.labels.txt").read_text().split() == names
    printed = capsys.readouterr().err
    assert (reported in printed) if reported else ("--class_folder_depth=" not in printed)
    recorded = json.loads((tmp_path / "out/run.json").read_text())["options"]["class_folder_depth"]
    assert recorded == (reported or options[-1]).rpartition("=")[2]


@pytest.mark.parametrize(
    "paths, options, words",
    [
        (["seg_train/seg_train/cat/1.jpg", "seg_test/seg_test/cat/1.jpg"], [], ["--split_folders=yes"]),
        (["cat/1.jpg", "dog/s1/1.jpg"], ["--class_folder_depth=2"], ["cat/1.jpg", "FOLDER/CLASS/IMAGE"]),
        (["cat/1.jpg"], ["--class_folder_depth=0"], ["--class_folder_depth=0", "last"]),
        (["train_images/1.jpg", "test_images/2.jpg", "train.csv"], [], ["train.csv", "--image_root"]),
        (["cat/1.jpg"], ["--class_folder_depth=1", "--label=none"], ["--class_folder_depth", "--label=none"]),
        (["rows.csv"], ["--class_folder_depth=1"], ["--class_folder_depth", "table"]),
    ],
)
def test_rejects_layouts_that_contradict_the_options(tmp_path, capsys, paths, options, words):
    assert prepare(tmp_path, paths, *options) == 2
    message = capsys.readouterr().err
    assert all(word in message for word in words), message
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "paths, words",
    [
        ([f"person{number}/1.jpg" for number in range(5)], [["5 images", "5 class folders", "--class_folder_depth"]]),
        (["a/1.jpg", "a/1_mask.png", "b/2.jpg", "b/3-gt.png"], [["2 of 4 images", "a/1_mask.png", "--source=masks"]]),
        (["a/1.jpg", "a/mask.png", "b/2.jpg", "with_mask/4.jpg"], []),
        (["Cat/1.jpg", "cat/2.jpg", "dog/3.jpg", "dog/4.jpg"], [["'Cat'", "'cat'"]]),
        (["01/1.jpg", "1/2.jpg", "10/3.jpg", "10/4.jpg"], [["'01'", "'1'"]]),
        (["big cat/1.jpg", "big  cat/2.jpg"], [["'big  cat'", "'big cat'"]]),
        (["a/1.jpg", "A/2.jpg", "0a/3.jpg"], []),  # single letters are classes of handwriting
        ([f"{name}/{index}.jpg" for name in "abcdef" for index in range(2)], []),
    ],
)
def test_warns_about_folders_that_may_not_be_classes(tmp_path, paths, words):
    write_files(tmp_path / "in", dict.fromkeys(paths, b"x"))
    config = PrepareOptions(str(tmp_path / "in"), str(tmp_path / "out"), "made", source=SourceConfig(kind=find_kind("image_folder")))
    source = ImageFolder(config)
    _, actual = list_parts(source, source.parts())
    warnings = make_listing(config, source, actual).warnings
    assert len(warnings) == len(words)
    assert all(word in warning for warning, some in zip(warnings, words) for word in some), warnings


def test_nested_folders_found_during_the_listing_are_rejected(tmp_path):
    write_files(tmp_path / "in", {f"{label}/s1/{index}.jpg": b"x" for label in ("cat", "dog") for index in range(2)})
    config = PrepareOptions(str(tmp_path / "in"), str(tmp_path / "out"), "made", source=SourceConfig(kind=find_kind("image_folder")))
    source = ImageFolder(config)
    _, actual = list_parts(source, source.parts())
    with pytest.raises(UserError, match="--class_folder_depth=1 .*--class_folder_depth=all"):
        make_listing(config, source, actual)
