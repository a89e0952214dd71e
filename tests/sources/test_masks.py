"""Tests that the source `masks` pairs images with masks in common layouts, reads splits, and rejects unsafe links."""

import dataclasses
import json
import os
import pathlib
from typing import Any, Iterable

import numpy as np
import pytest

import listed
import tf_input
from beam_pipelines.__main__ import main
from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.config.source_config import SourceConfig
from beam_pipelines.elements.input_record import FilePart, InputRecord
from beam_pipelines.errors import UserError
from beam_pipelines.sources.files.mask_classes import read_mask_classes
from beam_pipelines.sources.formats.masks.masks import Masks
from beam_pipelines.sources.guess import guess_source
from beam_pipelines.sources.listing.make_schema import mask_names
from beam_pipelines.sources.registry import find_kind
from made_images import encode, jpeg, write_files
from tf_input.dataset_format import Feature


class Listing(listed.Listing):
    """The result of listing an input. As on Beam workers, each part is listed with a new source object."""

    def __init__(self, root: os.PathLike[str], **options: Any) -> None:
        super().__init__(root, "masks", **options)
        self.masks = {image.path: image.values["mask"].path for image in self.images.values() if image.values}


def make_folder(root: pathlib.Path, paths: Iterable[str]) -> pathlib.Path:
    """Writes files with arbitrary content, because the listing does not read the content."""
    return write_files(root, dict.fromkeys(paths, b"not looked at"))


LAYOUTS = {
    "plain": ("images/{}.jpg", "masks/{}.png"),
    "with a suffix": ("images/{}.jpg", "masks/{}_mask.gif"),
    "labels": ("images/{}.png", "labels/{}.png"),
    "annotations": ("images/{}.png", "annotations/{}.bmp"),
    "pets": ("images/{}.jpg", "annotations/trimaps/{}.png"),
    "VOC": ("JPEGImages/{}.jpg", "SegmentationClass/{}.png"),
    "upper case": ("Images/{}.JPG", "Masks/{}.PNG"),
    "same folders for images and masks": ("images/a/b/{}.jpg", "masks/a/b/{}.png"),
    "folders with a common part": ("scene_images/{}.jpg", "scene_masks/{}.png"),
    "segmentation suffix": ("images/{}.jpg", "masks/{}_segmentation.png"),
    "masks beside images": ("{}.jpg", "{}_mask.png"),
    "DeepGlobe": ("{}_sat.jpg", "{}_mask.png"),
    "different Unicode normal forms": ("images/Lo\u0308we {}.jpg", "masks/L\u00f6we {}.png"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_pairs_images_with_masks_in_usual_layouts(layout, tmp_path):
    image, mask = LAYOUTS[layout]
    expected = {image.format(name): mask.format(name) for name in ("1", "2.b")}
    actual = Listing(make_folder(tmp_path, [*expected, *expected.values()]))
    assert actual.masks == expected and set(actual.splits.values()) == {None}
    assert not actual.letters and not actual.num_ignored


SPLITS = {
    "image and mask folders in split folders": "{split}/images/{name}",
    "split folders in image and mask folders": "images/{split}/{name}",
    "nested folders in split folders": "images/{split}/city/{name}",
}

# (images, masks) of layouts with the split in the names of folders
SPLIT_NAMES = {
    "Kaggle": ("train_images/a.jpg", "train_masks/a.png"),
    "short names": ("train_imgs/a.jpg", "train_labels/a.png"),
    "split first": ("images_train/a.jpg", "masks-train/a.png"),
    "labels of a split": ("train/a.jpg", "train_labels/a.png"),
    "CamVid": ("train/a.png", "trainannot/a.png"),
    "Carvana": ("train/a.jpg", "train_masks/a_mask.gif"),
    "Cityscapes": ("leftImg8bit/train/aachen/a_leftImg8bit.png", "gtFine/train/aachen/a_gtFine_labelIds.png"),
    "masks beside images": ("train/a.jpg", "train/a_mask.png"),
    "ISIC": ("ISIC2018_Task1-2_train_Input/a.jpg", "ISIC2018_Task1_train_GroundTruth/a_segmentation.png"),
}


@pytest.mark.parametrize("case", SPLITS)
def test_split_folders_give_splits(case, tmp_path):
    expected = {}
    for folder, split in {"train": "train", "val": "validation", "testing": "test"}.items():
        image = SPLITS[case].format(split=folder, name="a.jpg")
        make_folder(tmp_path, [image, image.replace("images", "masks").replace(".jpg", ".png")])
        expected[image] = split
    assert Listing(tmp_path).splits == expected
    assert Listing(tmp_path, split_folders=False).splits == dict.fromkeys(expected)


@pytest.mark.parametrize("layout", SPLIT_NAMES)
def test_names_of_folders_give_splits(layout, tmp_path):
    expected = {}
    for name, split in {"train": "train", "val": "validation"}.items():
        image, mask = (make.replace("train", name) for make in SPLIT_NAMES[layout])
        make_folder(tmp_path, [image, mask])
        expected[image] = (mask, split)
    actual = Listing(tmp_path)
    assert {image: (actual.masks[image], actual.splits[image]) for image in actual.images} == expected and not actual.letters
    assert guess_source(str(tmp_path)).kind.name == "masks"


def test_rejects_folders_if_only_some_are_named_like_splits(tmp_path):
    make_folder(tmp_path, ["images/train/a.jpg", "masks/train/a.png", "images/more/b.jpg", "masks/more/b.png"])
    with pytest.raises(UserError, match="'train' .* 'more'"):
        Listing(tmp_path)
    assert set(Listing(tmp_path, split_folders=True).splits.values()) == {"train", "more"}
    assert set(Listing(tmp_path, split_folders=False).splits.values()) == {None}


def test_lists_select_images_and_splits(tmp_path):
    make_folder(tmp_path, [f"JPEGImages/{name}.jpg" for name in "abcde"])
    make_folder(tmp_path, [f"SegmentationClass/{name}.png" for name in "abd"])
    write_files(
        tmp_path, {"ImageSets/Segmentation/train.txt": b"a\n", "ImageSets/Segmentation/val.txt": b"b\nc\nx\na\n"}
    )
    write_files(tmp_path, {"ImageSets/Main/train.txt": b"e\n"})
    actual = Listing(tmp_path)
    assert actual.splits == {"JPEGImages/a.jpg": "train", "JPEGImages/b.jpg": "validation"}
    assert actual.reasons == {
        "JPEGImages/c.jpg": "no_mask",
        "ImageSets/Segmentation/val.txt:3": "missing",
        "ImageSets/Segmentation/val.txt:4": "duplicate",
    }
    assert actual.num_ignored == 3  # image d, its mask, and image e
    assert len(Listing(tmp_path, split_folders=False).images) == 3


SIMPLE = {"images/a.jpg": "masks/a.png"}
CITY, CITY_MASK = "leftImg8bit/train/a/x_leftImg8bit.png", "gtFine/train/a/x_gtFine_"
# Maps each case to paths, options, the mask of each listed image, the reasons of dead letters, and the number of ignored files.
LISTED = {
    "unpaired": (
        "images/a.jpg masks/a.png images/b.jpg masks/c.png masks/sub/a.png",
        *({}, SIMPLE, {"images/b.jpg": "no_mask", "masks/c.png": "missing", "masks/sub/a.png": "missing"}, 0),
    ),
    "other files": ("images/a.jpg masks/a.png images/._a.jpg images/notes.txt masks/a.mat masks/Thumbs.db", {}, SIMPLE, {}, 4),
    "two masks": (
        "images/a.jpg masks/a.png masks/a_mask.png images/b.jpg masks/b.png masks/b.bmp",
        *({}, {}, {"images/a.jpg": "ambiguous", "images/b.jpg": "ambiguous"}, 0),
    ),
    "two images": ("images/a.jpg images/a.png masks/a.png", {}, {**SIMPLE, "images/a.png": "masks/a.png"}, {}, 0),
    "ignored": (
        "images/a.jpg masks/a.png images/x/b.jpg masks/c_colour.png",
        *({"ignore": ("images/x/*", "*_colour.png")}, SIMPLE, {}, 2),
    ),
    "Cityscapes": (
        f"{CITY} {CITY_MASK}color.png {CITY_MASK}labelIds.png {CITY_MASK}polygons.json",
        *({}, {CITY: f"{CITY_MASK}labelIds.png"}, {}, 2),
    ),
    "colors of Cityscapes": (
        f"{CITY} {CITY_MASK}color.png {CITY_MASK}labelIds.png",
        *({"source": {"mask_suffix": "_gtFine_color"}}, {CITY: f"{CITY_MASK}color.png"}, {}, 1),
    ),
    "suffix": (
        "images/a.jpg masks/a_part.png masks/a_full.png",
        *({"source": {"mask_suffix": "_part"}}, {"images/a.jpg": "masks/a_part.png"}, {}, 1),
    ),
    "suffix of images": (
        "images/a_part.jpg masks/a_part.png",
        *({"source": {"mask_suffix": "_part"}}, {}, {"images/a_part.jpg": "no_mask", "masks/a_part.png": "missing"}, 0),
    ),
    "suffix beside images": ("b.jpg b-part.png", {"source": {"mask_suffix": "-part"}}, {"b.jpg": "b-part.png"}, {}, 0),
    "split without masks": (
        "train/a.jpg train_masks/a_mask.gif test/b.jpg",
        *({}, {"train/a.jpg": "train_masks/a_mask.gif"}, {"test/b.jpg": "no_mask"}, 0),
    ),
    "split without masks beside images": (
        "train/1_sat.jpg train/1_mask.png test/2_sat.jpg other/3.jpg",
        *({}, {"train/1_sat.jpg": "train/1_mask.png"}, {"test/2_sat.jpg": "no_mask"}, 0),
    ),
    "split without masks in folders": (
        "images/train/a.jpg masks/train/a.png images/test/b.jpg",
        *({}, {"images/train/a.jpg": "masks/train/a.png"}, {"images/test/b.jpg": "no_mask"}, 0),
    ),
    "name that is not UTF-8": ("images/\udce9.jpg images/a.jpg masks/a.png", {}, SIMPLE, {"images/\\xe9.jpg": "not_utf8"}, 0),
}


@pytest.mark.parametrize("case", LISTED)
def test_each_image_and_mask_is_listed_or_counted(tmp_path, case):
    paths, options, masks, reasons, num_ignored = LISTED[case]
    actual = Listing(make_folder(tmp_path, paths.split()), **options)
    assert (actual.masks, actual.reasons, actual.num_ignored) == (masks, reasons, num_ignored)


def test_messages_about_missing_masks_advise_options(tmp_path):
    letters = Listing(make_folder(tmp_path / "suffix", ["images/a.jpg", "masks/a_part.png", "masks/a_full.png"])).letters
    assert "--mask_suffix=_full" in letters["images/a.jpg"].message
    root = make_folder(tmp_path / "split", ["train/a.jpg", "train_masks/a_mask.gif", "test/b.jpg"])
    assert "--ignore='test'" in Listing(root).letters["test/b.jpg"].message and not Listing(root, ignore=("test",)).letters
    with pytest.raises(UserError, match="--mask_suffix"):
        SourceConfig(mask_suffix="_part.png")


def test_links_to_outside_are_dead_letters(tmp_path):
    outside = make_folder(tmp_path / "outside", ["a.png", "b.jpg", "f/d.png"])
    root = make_folder(
        tmp_path / "in", ["images/a.jpg", "masks/b.png", "images/c.jpg", "images/f/d.jpg", "images/e.jpg"]
    )
    links = {"masks/a.png": "a.png", "images/b.jpg": "b.jpg", "masks/c.png": "nowhere.png", "masks/f": "f"}
    for name, target in links.items():
        (root / name).symlink_to(outside / target)
    (root / "masks/e.png").symlink_to(root / "masks/b.png")
    os.mkfifo(root / "images/pipe.jpg")
    actual = Listing(root)
    assert actual.masks == {"images/e.jpg": "masks/e.png"}
    assert actual.reasons == {
        "masks/a.png": "outside",
        "images/a.jpg": "no_mask",
        "images/b.jpg": "outside",
        "masks/b.png": "missing",
        "masks/c.png": "outside",
        "images/c.jpg": "no_mask",
        "masks/f": "outside",
        "images/f/d.jpg": "no_mask",
        "images/pipe.jpg": "not_a_file",
    }


def test_rejects_a_mask_folder_that_is_a_link(tmp_path):
    outside = make_folder(tmp_path / "outside", ["a.png"])
    root = make_folder(tmp_path / "in", ["images/a.jpg"])
    (root / "masks").symlink_to(outside)
    with pytest.raises(UserError, match="'masks' .*--follow_links"):
        Listing(root)


def test_features_and_targets_follow_the_options(tmp_path):
    source = Masks(PrepareOptions("in", "out", "made", source=SourceConfig(kind=find_kind("masks"))))
    assert (source.features, source.targets, source.label_names()) == ((Feature("mask", "mask"),), ("mask",), {})
    source = Masks(PrepareOptions("in", "out", "made", source=SourceConfig(kind=find_kind("masks"), labels=())))
    assert (source.features, source.targets) == ((), ())
    root = make_folder(tmp_path, ["images/a.jpg", "masks/a.png"])
    assert Listing(root, source={"labels": ()}).images["images/a.jpg"].values is None
    image = InputRecord("images/a.jpg", "images/a.jpg", "", None, values={"mask": FilePart("masks/a.png")})
    assert Listing(root).images == {"images/a.jpg": image}


@pytest.mark.parametrize(
    "paths", [[], ["images/a.jpg"], ["a.jpg", "a.png"], ["train/images/a.jpg", "train/other/a.png"]]
)
def test_rejects_a_folder_without_masks(paths, tmp_path):
    with pytest.raises(UserError, match="images/ and masks/"):
        Listing(make_folder(tmp_path, paths))


def test_rejects_a_file(tmp_path):
    with pytest.raises(UserError, match="is a file.*--source"):
        Listing(make_folder(tmp_path, ["a.png"]) / "a.png")


COLORS = {"sky": (0, 0, 192), "road": (128, 64, 128), "car": (64, 0, 128)}
COLORED = np.zeros((16, 16, 3), np.uint8)
COLORED[:8], COLORED[8:], COLORED[8:, 12:] = COLORS.values()
ROW_7 = np.where(np.arange(16) == 7, np.uint8(255), np.uint8(0)).repeat(16).reshape(16, 16)
TWOS = np.full((16, 16), 2, np.uint8)
NAMES = {"names.txt": "sky\nroad\ncar\n"}
TABLE = "name,r,g,b\nsky,0,0,192\nroad,128,64,128\ncar,64,0,128\n"


def prepare(root: pathlib.Path, *options: object) -> int:
    return main(["prepare", "--input", str(root), "--output", str(root.parent / "out"), "--splits=train=1", "--overwrite", *map(str, options)])


def stored_masks(root: pathlib.Path) -> list[np.ndarray]:
    return [np.squeeze(example["mask"]) for example in tf_input.open(str(root.parent / "out"))["train"]]


def stored_names(root: pathlib.Path) -> list[str]:
    manifest = json.loads((root.parent / "out/manifest.json").read_text())
    return next(feature for feature in manifest["schema"] if feature["name"] == "mask").get("label_names", [])


def black_and_white(*values: int) -> np.ndarray:
    return np.resize(np.repeat(np.array(values, np.uint8), 8), (16, 16))


# Maps each case to the masks of an input, a file beside the folders of images and masks, other files with options that name
# them as {name}, words of the error message, the stored class names, and the first values of the first stored mask in row 15.
RUNS = {
    "columns in another order": ([COLORED], {"class_dict.csv": "R, G ,B,Name\n0,0,192,sky\n128,64,128,road\n64,0,128,car\n"}, {}, "", "", [*COLORS], [1, 2]),
    "CamVid": ([COLORED], {"label_colors.txt": "0 0 192\tsky\n128 64 128\t\troad\n64 0 128\tcar\n"}, {}, "", "", [*COLORS], [1, 2]),
    "CVAT": ([COLORED], {"labelmap.txt": "# label:color_rgb:parts:actions\nsky:0,0,192::\nroad:128,64,128::\ncar:64,0,128::\n"}, {}, "", "", [*COLORS], [1, 2]),
    "without a header": ([COLORED], {"class_dict.csv": "sky,0,0,192\nroad,128,64,128\ncar,64,0,128\n"}, {}, "", "", [*COLORS], [1, 2]),
    "no file": ([COLORED], {}, {}, "", "--mask_colors FILE|0,0,192 (50.00%); 128,64,128 (37.50%); 64,0,128 (12.50%)", [], []),
    "file elsewhere": ([COLORED], {}, {"colors.csv": TABLE}, "--mask_colors {colors.csv}", "", [*COLORS], [1, 2]),
    "file that does not fit": ([TWOS], {"label_colors.txt": "0 0 192 sky\n"}, {}, "", "--mask_colors none", [], []),
    "values": ([TWOS], {"label_colors.txt": "0 0 192 sky\n"}, {}, "--mask_colors none", "", [], [2, 2]),
    "named values": ([TWOS], {}, NAMES, "--label_names {names.txt}", "", [*COLORS], [2, 2]),
    "value without a name": ([TWOS], {}, {"names.txt": "sky\nroad\n"}, "--label_names {names.txt}", "the value 2 at x 0, y 0", [], []),
    "converted values": ([black_and_white(0, 255)], {}, {"names.txt": "a\nb\n"}, "--mask_values 0=0,255=1 --label_names {names.txt}", "", ["a", "b"], [0, 1]),
    "value that is not converted": ([ROW_7], {}, {}, "--mask_values 0=0", "the value 255 at x 0, y 7", [], []),
    "value converted twice": ([ROW_7], {}, {}, "--mask_values 0=0,0=1", "--mask_values", [], []),
    "conversion of a name": ([ROW_7], {}, {}, "--mask_values black=0", "--mask_values", [], []),
}


@pytest.mark.slow(3)
@pytest.mark.parametrize("case", RUNS)
def test_colors_and_values_of_masks_become_classes(case, tmp_path, capsys):
    masks, beside, files, options, message, names, values = RUNS[case]
    root = tmp_path / "in"
    for number, mask in enumerate(masks * 4):
        write_files(root, {f"images/{number}.jpg": jpeg(number, 16, 16), f"masks/{number}.png": encode(mask, "PNG")})
    for folder, texts in ((root, beside), (tmp_path, files)):
        write_files(folder, {name: text.encode() for name, text in texts.items()})
    for name in files:
        options = options.replace(f"{{{name}}}", str(tmp_path / name))
    assert prepare(root, *options.split()) == (2 if message else 0)
    output = capsys.readouterr()
    assert all(part in output.err for part in message.split("|")), output.err
    if message:
        return
    assert stored_names(root) == names and all(f"--mask_colors={name}" in output.err for name in beside if not options)
    assert all(mask[15, [0, 15]].tolist() == values for mask in stored_masks(root))
    assert not json.loads((tmp_path / "out/statistics.json").read_text())["warnings"]


@pytest.mark.slow(5)
def test_classes_of_colors_are_published_and_other_colors_are_dead_letters(tmp_path, capsys):
    import tensorflow_datasets as tfds

    root, other = tmp_path / "in", COLORED.copy()
    other[3:5, 7] = (1, 2, 3)
    for number in range(12):
        mask = encode(np.dstack([other if number == 5 else COLORED, np.full((16, 16), 255, np.uint8)]), "PNG")
        write_files(root, {f"images/{number}.jpg": jpeg(number, 16, 16), f"masks/{number}.png": mask})
    (tmp_path / "colors.json").write_text(json.dumps(COLORS))
    assert prepare(root, "--mask_colors", tmp_path / "colors.json", "--max_bad_fraction=0.5") == 0
    assert "0 sky, 1 road, 2 car" in capsys.readouterr().out
    letter = json.loads((tmp_path / "out/dead_letters.jsonl").read_text())
    assert letter["path"] == "images/5.jpg" and all(part in letter["message"] for part in ("1,2,3", "x 7, y 3", "pixels: 2"))
    builder = tfds.builder_from_directory(str(tmp_path / "out"))
    assert builder.info.features["mask"].names == ["sky", "road", "car"]
    assert (next(iter(tfds.as_numpy(builder.as_dataset("train"))))["mask"][15, 15] == 2).all()
    assert "road" in (tmp_path / "out/report.html").read_text() and "| 1 | road |" in (tmp_path / "out/README.md").read_text()


@pytest.mark.slow(1)
@pytest.mark.parametrize(
    "values, is_warned",
    [
        ([(0, 255)] * 3, True),
        ([(0, 255), (0, 0), (255, 255)], True),  # an empty and a full mask
        ([(0, 1), (0, 0), (1, 1)], False),
        ([(0, 3, 255), (0, 255), (1, 255)], False),  # 255 marks borders
        ([(0, 0)] * 3, False),
    ],
)
def test_warns_about_black_and_white_masks(tmp_path, values, is_warned):
    for number, mask_values in enumerate(values):
        mask = encode(black_and_white(*mask_values), "PNG")
        write_files(tmp_path / "in", {f"images/{number}.jpg": jpeg(number, 16, 16), f"masks/{number}.png": mask})
    assert prepare(tmp_path / "in", "--no_report") == 0
    warnings = json.loads((tmp_path / "out/statistics.json").read_text())["warnings"]
    assert len(warnings) == is_warned and all("0 and 255" in warning and "--mask_values 0=0,255=1" in warning for warning in warnings)


@pytest.mark.slow(2)
def test_roboflow_lists_the_classes_of_values(tmp_path):
    root = tmp_path / "in"
    for split in ("train", "valid"):
        write_files(root / split, {"_classes.csv": b"Pixel Value, Class\n0, background\n1, leaf\n"})
        for number in range(4):
            write_files(root / split, {f"{number}_jpg.rf.ab.jpg": jpeg(number, 16, 16), f"{number}_jpg.rf.ab_mask.png": encode(np.full((16, 16), number % 2, np.uint8), "PNG")})
    assert guess_source(str(root)).kind.name == "masks"
    assert main(["prepare", "--input", str(root), "--output", str(tmp_path / "out"), "--no_report"]) == 0
    assert stored_names(root) == ["background", "leaf"]
    assert set(tf_input.open(str(tmp_path / "out")).splits) == {"train", "validation"}


def test_numbers_of_an_earlier_dataset_are_kept():
    source = SourceConfig(first_label_names={"mask": ("a", "b")}, mask_colors={"0,0,0": "b", "1,1,1": "c"})
    assert mask_names(source, "mask", [Feature("mask", "mask")]) == ("a", "b", "c")
    with pytest.raises(UserError, match="--label_names: lacks 'c'"):
        mask_names(dataclasses.replace(source, label_names=("b", "d")), "mask", [Feature("mask", "mask")])


@pytest.mark.slow(3)
def test_values_of_masks_in_a_table_become_classes(tmp_path, capsys):
    root = tmp_path / "in"
    for number in range(4):
        write_files(root, {f"{number}.jpg": jpeg(number, 16, 16), f"{number}.png": encode(np.full((16, 16), 255, np.uint8), "PNG")})
    write_files(root, {"rows.csv": b"path,seg\n" + b"".join(b"%d.jpg,%d.png\n" % (number, number) for number in range(4))})
    (tmp_path / "names.txt").write_text("background\nperson\n")
    arguments = ["prepare", "--input", str(root / "rows.csv"), "--output", str(tmp_path / "out"), "--splits=train=1", "--mask_values", "0=0,255=1", "--no_report"]
    assert main([*arguments, "--label", "seg:mask", "--label_names", str(tmp_path / "names.txt")]) == 0
    assert (stored_masks(root)[0] == 1).all() and stored_names(root) == ["background", "person"]
    assert main([*arguments, "--overwrite", "--label", "seg:text"]) == 2 and "--mask_values" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text, problem",
    [
        ("name,r,g,b\na,0,0,256\n", "from 0 to 255"),
        ("name,r,g,b\na,0,0,0\nb,0,0,0\n", "'a' and of 'b'"),
        ("name,r,g,b\na,0,0\n", "3 cells"),
        ("name,r,g,b\n,0,0,0\n", "class name"),
        ('{"a": [0, 0]}', "three integers"),
        ('{"a": [0, 0, NaN]}', "three integers"),
        ("[" * 100_000, "recursion"),
        ("no colors\n", "no colors"),
        ("", "no classes"),
    ],
)
def test_rejects_invalid_files_of_classes(text, problem, tmp_path):
    (tmp_path / "colors").write_text(text)
    with pytest.raises(UserError, match=f"--mask_colors.*{problem}|{problem}.*--mask_colors"):
        read_mask_classes(str(tmp_path / "colors"))
