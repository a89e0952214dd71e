"""Tests that the source `yolo` reads the layouts of Ultralytics, Roboflow and Darknet, and rejects invalid labels."""

import json
import os
import pathlib
from typing import Any

import numpy as np
import pytest

import tf_input
from beam_pipelines.__main__ import main
from beam_pipelines.errors import UserError
from beam_pipelines.sources.formats.yolo.plain_yaml import parse_yaml
from beam_pipelines.sources.guess import guess_source
from listed import Listing
from made_images import encode, exif, noise, png, write_files
from object_stores import connected_to, shared_server, upload_files

IMAGE = b"not looked at"
BOX = b"1 0.5 0.5 0.25 0.5\n"
NAMES = b"names: [cat, dog]\n"


def list_yolo(root: str | os.PathLike[str], **options: Any) -> Listing:
    return Listing(root, "yolo", **options)


@pytest.mark.slow(8)
def test_corners_of_oriented_boxes_follow_the_image(tmp_path):
    """A flip keeps the corners of each box."""
    oriented = b"0 0.5 0.25 0.75 0.5 0.5 0.75 0.25 0.5\n1 0.5 0.5 0.5 0.25\n"
    files = {"images/1.png": png(1, 32, 48), "labels/1.txt": oriented, "images/2.png": png(2, 32, 48), "labels/2.txt": b""}
    root, out = str(write_files(tmp_path / "in", files)), str(tmp_path / "out")
    assert main(["prepare", "--input", root, "--output", out, "--corners", "--splits=train=1"]) == 0
    assert main(["verify", out, "--decode"]) == 0
    dataset = tf_input.open(out)
    (stored,) = [example["objects"]["corners"] for example in dataset["train"] if example["key"] == "images/1.png"]
    expected = [[[0.5, 0.25], [0.75, 0.5], [0.5, 0.75], [0.25, 0.5]], [[0.25, 0.375], [0.75, 0.375], [0.75, 0.625], [0.25, 0.625]]]
    np.testing.assert_allclose(stored, expected, atol=1e-6)
    ((_, y),) = dataset.batches("train", batch_size=2, image_size=32, augment=tf_input.Augmentation(crop=False), seed=1).take(1)
    boxes, corners = y["bbox"].numpy(), y["corners"].numpy()
    for box, points in zip(boxes[y["valid"].numpy() > 0], corners[y["valid"].numpy() > 0]):
        np.testing.assert_allclose(box, [*points.min(axis=0)[::-1], *points.max(axis=0)[::-1]], atol=1e-5)


# Layouts: (path of --input, files, expected split of each image).

ULTRALYTICS = {"images/train/1.jpg": IMAGE, "labels/train/1.txt": BOX, "images/val/2.jpg": IMAGE, "labels/val/2.txt": BOX}
ROBOFLOW = {
    f"{folder}/{kind}": data
    for folder in ("train", "valid", "test")
    for kind, data in (("images/1.jpg", IMAGE), ("labels/1.txt", BOX))
}
DARKNET = {"obj_train_data/1.jpg": IMAGE, "obj_train_data/1.txt": BOX, "obj.names": b"cat\ndog\n"}
OF_ULTRALYTICS = {"images/train/1.jpg": "train", "images/val/2.jpg": "validation"}
OF_ROBOFLOW = {"train/images/1.jpg": "train", "valid/images/1.jpg": "validation", "test/images/1.jpg": "test"}


def yaml(text: str, names: bytes = NAMES) -> dict[str, bytes]:
    return {"data.yaml": text.encode() + b"\n" + names}


LAYOUTS = {
    "Ultralytics": ("", ULTRALYTICS | yaml("path: .\ntrain: images/train\nval: images/val\ntest:"), OF_ULTRALYTICS),
    "mapping of names": ("", ULTRALYTICS | yaml("train: images/train\nval: images/val", b"names:\n  1: dog\n  0: cat\n"), OF_ULTRALYTICS),
    "the dataset file as input": ("data.yaml", ULTRALYTICS | yaml("train: images/train\nval: images/val"), OF_ULTRALYTICS),
    "another file name": ("", ULTRALYTICS | {"pets.yml": b"train: images/train/\nval: ./images/val\n" + NAMES}, OF_ULTRALYTICS),
    "folder of another machine": ("", ULTRALYTICS | yaml("path: /content/dataset\ntrain: images/train\nval: images/val"), OF_ULTRALYTICS),
    "folder that was moved": ("data.yaml", ULTRALYTICS | yaml("path: ../datasets/pets\ntrain: images/train\nval: images/val"), OF_ULTRALYTICS),
    "absolute folders": ("", ULTRALYTICS | yaml("train: /content/pets/images/train\nval: C:\\pets\\images\\val"), OF_ULTRALYTICS),
    "inner folder": (
        "",
        {f"pets/{name}": data for name, data in ULTRALYTICS.items()} | yaml("path: pets\ntrain: images/train\nval: [images/val]"),
        {f"pets/{key}": split for key, split in OF_ULTRALYTICS.items()},
    ),
    "lists": (
        "",
        ULTRALYTICS | yaml("train: train.txt\nval: val.txt") | {"train.txt": b"./images/train/1.jpg\r\n\r\n", "val.txt": b"\xef\xbb\xbfimages/val/2.jpg"},
        OF_ULTRALYTICS,
    ),
    "lists of another machine": (
        "data.yaml",
        ULTRALYTICS
        | yaml("path: /content/pets\ntrain: /content/pets/lists/train.txt\nval: lists/val.txt")
        | {"lists/train.txt": b"/content/pets/images/train/1.jpg\n", "lists/val.txt": b"../images/val/2.jpg\n"},
        OF_ULTRALYTICS,
    ),
    "folders and lists": (
        "",
        ULTRALYTICS | yaml("train: [images/train, more.txt]\nval: images/val") | {"more.txt": b"extra/images/3.jpg", "extra/images/3.jpg": IMAGE, "extra/labels/3.txt": BOX},
        OF_ULTRALYTICS | {"extra/images/3.jpg": "train"},
    ),
    "CVAT": (
        "",
        ULTRALYTICS | yaml("path: .\ntrain: train.txt\nval: val.txt") | {"train.txt": b"data/images/train/1.jpg\n", "val.txt": b"data/images/val/2.jpg\n"},
        OF_ULTRALYTICS,
    ),
    "the whole folder": ("", {"1.jpg": IMAGE, "1.txt": BOX} | yaml("train: ."), {"1.jpg": "train"}),
    "without a dataset file": ("", ULTRALYTICS | {"labels/classes.txt": b"cat\ndog"}, OF_ULTRALYTICS),
    "names of years": (
        "",
        {name.replace("train", "train2017").replace("val", "val2017"): data for name, data in ULTRALYTICS.items()} | {"classes.txt": b"cat\ndog"},
        {"images/train2017/1.jpg": "train", "images/val2017/2.jpg": "validation"},
    ),
    "dataset file with names only": ("", ULTRALYTICS | yaml(""), OF_ULTRALYTICS),
    "without splits": ("", {"images/1.jpg": IMAGE, "labels/1.txt": BOX, "classes.txt": b"cat\ndog\n"}, {"images/1.jpg": None}),
    "folders below images": (
        "",
        {"images/a/1.jpg": IMAGE, "labels/a/1.txt": BOX, "images/b/1.jpg": IMAGE, "labels/b/1.txt": BOX, "labels/classes.txt": b"cat\ndog"},
        {"images/a/1.jpg": None, "images/b/1.jpg": None},
    ),
    "Roboflow": ("", ROBOFLOW | yaml("train: ../train/images\nval: ../valid/images\ntest: ../test/images\nnc: 2"), OF_ROBOFLOW),
    "Roboflow with folders of splits": ("", ROBOFLOW | yaml("train: train\nval: valid\ntest: test"), OF_ROBOFLOW),
    "Roboflow without a dataset file": ("", ROBOFLOW | {"classes.txt": b"cat\ndog"}, OF_ROBOFLOW),
    "Roboflow without test images": (
        "",
        {name: data for name, data in ROBOFLOW.items() if "test" not in name} | yaml("train: ../train/images\nval: ../valid/images\ntest: ../test/images"),
        {key: split for key, split in OF_ROBOFLOW.items() if split != "test"},
    ),
    "Darknet of Roboflow": (
        "",
        {f"{folder}/{name}": data for folder in ("train", "valid") for name, data in {"1.jpg": IMAGE, "1.txt": BOX, "_darknet.labels": b"cat\ndog"}.items()},
        {"train/1.jpg": "train", "valid/1.jpg": "validation"},
    ),
    "Darknet": (
        "",
        DARKNET
        | {"obj.data": b"classes = 2\ntrain  = data/train.txt\nnames = data/obj.names\nbackup = backup/\n", "train.txt": b"data/obj_train_data/1.jpg\n"},
        {"obj_train_data/1.jpg": "train"},
    ),
    "Darknet's file as input": (
        "obj.data",
        DARKNET | {"obj.data": b"classes=2\ntrain=/home/me/darknet/data/train.txt\nnames=data/obj.names\n", "train.txt": b"/home/me/darknet/data/obj_train_data/1.jpg\n"},
        {"obj_train_data/1.jpg": "train"},
    ),
    "Darknet without obj.data": ("", DARKNET | {"train.txt": b"data/obj_train_data/1.jpg\n"}, {"obj_train_data/1.jpg": "train"}),
    "Darknet without lists": ("", DARKNET, {"obj_train_data/1.jpg": None}),
    "LabelImg": ("", {"1.jpg": IMAGE, "1.txt": BOX, "classes.txt": b"cat\ndog\n"}, {"1.jpg": None}),
    "upper case": ("", {"1.JPG": IMAGE, "1.TXT": BOX, "classes.txt": b"cat\r\ndog\r\n"}, {"1.JPG": None}),
    "Unicode normal forms": ("", {"L\u00f6we.jpg": IMAGE, "Lo\u0308we.txt": BOX, "classes.txt": b"cat\ndog"}, {"L\u00f6we.jpg": None}),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layout_is_detected_and_read(layout, tmp_path):
    name, files, splits = LAYOUTS[layout]
    root = write_files(tmp_path / "pets", files)
    listed = list_yolo(root / name if name else root)
    assert guess_source(str(root / name if name else root)).kind.name == "yolo"
    assert listed.splits == splits
    assert not listed.letters and not listed.noted
    assert {listed.labels(key) for key in listed.images} == {("dog",)}
    assert listed.label_names == {("cat", "dog")}


OTHER_FORMATS = {
    "masks": {"images/1.jpg": IMAGE, "labels/1.png": IMAGE},
    "masks with a list": {"images/1.jpg": IMAGE, "labels/1.png": IMAGE, "train.txt": b"1\n"},
    "image_folder with a dataset file": {"train/cat/1.jpg": IMAGE, "val/cat/1.jpg": IMAGE, "pets.yaml": b"train: train\nval: val\n" + NAMES},
    "image_folder": {"train/cat/1.jpg": IMAGE, "val/cat/1.jpg": IMAGE},
    "voc": {"Annotations/1.xml": b"<annotation/>", "JPEGImages/1.jpg": IMAGE},
    "coco": {"annotations/instances_train.json": b"{}", "images/train/1.jpg": IMAGE},
}


@pytest.mark.parametrize("kind", OTHER_FORMATS)
def test_other_formats_are_not_read_as_yolo(kind, tmp_path):
    write_files(tmp_path, OTHER_FORMATS[kind])
    assert guess_source(str(tmp_path)).kind.name == kind.split()[0]


def test_label_file_as_input_is_rejected_with_advice(tmp_path):
    write_files(tmp_path, {"1.txt": b"0.0\t0.5 0.5  0.25 0.5\n"})
    with pytest.raises(UserError, match="--source=yolo"):
        guess_source(f"{tmp_path}/1.txt")


# Label files


def list_labels(root: pathlib.Path, data: bytes, **source: Any) -> Listing:
    """Lists a dataset with the classes `cat` and `dog`, in which the image `1.jpg` has the given label file."""
    write_files(root, {"images/1.jpg": IMAGE, "labels/1.txt": data, "images/2.jpg": IMAGE, "labels/2.txt": BOX, "classes.txt": b"cat\ndog"})
    return list_yolo(root, source=source)


# Valid label files: (content, expected boxes (ymin, xmin, ymax, xmax), expected classes).
VALID = {
    "box": (b"0 0.5 0.25 0.5 0.25", [(0.125, 0.25, 0.375, 0.75)], ["cat"]),
    "class as a float": (b"1.0 0.5 0.25 0.5 0.25", [(0.125, 0.25, 0.375, 0.75)], ["dog"]),
    "tabs and blanks": (b"\t1\t 0.5  0.25 5e-1 .25  ", [(0.125, 0.25, 0.375, 0.75)], ["dog"]),
    "byte order mark, CRLF, blank lines": (b"\xef\xbb\xbf1 0.5 0.25 0.5 0.25\r\n\r\n", [(0.125, 0.25, 0.375, 0.75)], ["dog"]),
    "polygon": (b"0 0.25 0.5 0.75 0.125 0.5 1", [(0.125, 0.25, 1, 0.75)], ["cat"]),
    "oriented box": (b"0 0.5 0.25 0.75 0.5 0.5 0.75 0.25 0.5", [(0.25, 0.25, 0.75, 0.75)], ["cat"]),
    "boxes and polygons": (b"0 0.5 0.5 1 1\n1 0 0 1 0 1 1", [(0, 0, 1, 1), (0, 0, 1, 1)], ["cat", "dog"]),
    "empty": (b"\n", [], []),
}


@pytest.mark.parametrize("case", VALID)
def test_valid_label_file(case, tmp_path):
    data, boxes, labels = VALID[case]
    objects = list_labels(tmp_path, data).images["images/1.jpg"].values["objects"]
    assert (list(objects.boxes), list(objects.labels), objects.is_relative) == (boxes, labels, True)


# Invalid label files: (content, reason, words of the message).
INVALID = {
    "unknown class": (b"0 0.5 0.5 1 1\n2 0.5 0.5 1 1", "bad_label", ["labels/1.txt", "line 2", "id 2", "0 to 1"]),
    "negative class": (b"-1 0.5 0.5 1 1", "bad_label", ["line 1", "-1"]),
    "fractional class": (b"0.5 0.5 0.5 1 1", "bad_label", ["0.5"]),
    "class name": (b"cat 0.5 0.5 1 1", "bad_annotation", ["cat"]),
    "huge class": (b"1e300 0.5 0.5 1 1", "bad_label", ["1e300"]),
    "confidence": (b"0 0.5 0.5 1 1 0.9", "bad_annotation", ["confidence"]),
    "too few columns": (b"0 0.5 0.5 1", "bad_annotation", ["4 columns"]),
    "class only": (b"0", "bad_annotation", ["1 columns"]),
    "even number of columns": (b"0 0.1 0.1 0.2 0.2 0.3 0.3 0.4", "bad_annotation", ["8 columns"]),
    "pixels": (b"0 320 240 50 60", "bad_box", ["320", "pixels"]),
    "outside": (b"0 0.5 0.5 1.25 1", "bad_box", ["1.25", "0 to 1"]),
    "negative corner of a polygon": (b"0 -0.25 0 1 0 1 1", "bad_box", ["-0.25"]),
    "negative width": (b"0 0.5 0.5 -0.005 1", "bad_box", ["-0.005"]),
    "zero height": (b"0 0.5 0.5 1 0", "bad_box", ["height of 0"]),
    "not a number": (b"0 nan 0.5 1 1", "bad_annotation", ["nan"]),
    "infinity": (b"0 inf 0.5 1 1", "bad_annotation", ["inf"]),
    "overflow": (b"0 1e999 0.5 1 1", "bad_annotation", ["1e999"]),
    "underscore": (b"0 0.5 0_1 1 1", "bad_annotation", ["0_1"]),
    "other digits": ("0 0.5 0.\u0665 1 1".encode(), "bad_annotation", ["line 1"]),
    "commas": (b"0,0.5,0.5,1,1", "bad_annotation", ["0,0.5"]),
    "Latin-1": (b"0 0.5 0.5 1 1 # \xe9", "not_utf8", ["byte 16"]),
    "binary": (b"\0\0\0", "bad_annotation", ["line 1"]),
    "too large": (b"0 0.5 0.5 1 1\n" * 400_000, "bad_annotation", ["bytes"]),
}


@pytest.mark.parametrize("case", INVALID)
def test_invalid_label_file_rejects_its_image(case, tmp_path):
    data, reason, words = INVALID[case]
    listed = list_labels(tmp_path, data)
    assert listed.reasons == {"images/1.jpg": reason}
    assert all(word in listed.letters["images/1.jpg"].message for word in words), listed.letters
    assert set(listed.images) == {"images/2.jpg"}


@pytest.mark.parametrize("data, is_clipped", [(b"0 0.5 0.5 1.25 1", True), (b"0 0.5 0.5 -0.1 1", True), (b"0 320 240 50 60", False), (b"0 nan 0 1 1", False)])
def test_bad_boxes_clip_keeps_boxes_that_are_outside(data, is_clipped, tmp_path):
    assert ("images/1.jpg" in list_labels(tmp_path, data, bad_boxes="clip").images) == is_clipped


def test_repeated_lines_are_left_out_and_counted(tmp_path):
    listed = list_labels(tmp_path, b"1 0.5 0.5 1 1\n0 0.5 0.5 1 1\n1.0 0.50 0.5 1 1\n")
    assert listed.labels("images/1.jpg") == ("dog", "cat")
    assert [(num, "repeat" in fact) for fact, num in listed.noted.items()] == [(1, True)]


def test_missing_label_files_are_counted(tmp_path):
    write_files(tmp_path, {f"images/{name}.jpg": IMAGE for name in "123"} | {"labels/1.txt": BOX, "labels/3.txt": b""})
    listed = list_yolo(tmp_path)
    assert {key: listed.labels(key) for key in listed.images} == {"images/1.jpg": ("1",), "images/2.jpg": (), "images/3.jpg": ()}
    assert [num for fact, num in listed.noted.items() if "label file" in fact] == [1]


def test_label_files_without_an_image_are_dead_letters(tmp_path):
    write_files(tmp_path, {"images/1.jpg": IMAGE, "labels/1.txt": BOX, "labels/a/2.txt": BOX, "labels/classes.txt": b"cat\ndog", "labels/notes.md": b"x"})
    listed = list_yolo(tmp_path)
    assert listed.reasons == {"labels/a/2.txt": "missing"}
    assert listed.num_ignored == 2


def test_images_with_the_same_name_share_their_label_file(tmp_path):
    write_files(tmp_path, {"images/1.jpg": IMAGE, "images/1.png": IMAGE, "labels/1.txt": BOX})
    listed = list_yolo(tmp_path)
    assert {key: listed.labels(key) for key in listed.images} == {"images/1.jpg": ("1",), "images/1.png": ("1",)}


def test_dataset_without_label_files_is_an_error(tmp_path):
    write_files(tmp_path, {"train/cat/1.jpg": IMAGE, "data.yaml": b"train: train\n" + NAMES})
    with pytest.raises(UserError, match="--label=none"):
        list_yolo(tmp_path)
    assert set(list_yolo(tmp_path, source={"labels": ()}).images) == {"train/cat/1.jpg"}


# Keypoints and masks


POSE = b"names: [cat]\nkpt_shape: [3, 3]\nflip_idx: [0, 2, 1]\ntrain: images\n"
POINTS = "0.5 0.25 2 0.25 0.125 1 0 0 0"


def test_keypoints_are_read_with_their_boxes(tmp_path):
    write_files(tmp_path, {"images/1.jpg": IMAGE, "labels/1.txt": f"0 0.5 0.5 1 1 {POINTS}".encode(), "images/2.jpg": IMAGE, "data.yaml": POSE})
    listed = list_yolo(tmp_path)
    objects = listed.images["images/1.jpg"].values["objects"]
    assert objects.points == {"keypoints": (((0.5, 0.25, 2), (0.25, 0.125, 1), (0, 0, 0)),)}
    assert objects.boxes == ((0, 0, 1, 1),)
    assert listed.images["images/2.jpg"].values["objects"].points == {"keypoints": ()}
    with pytest.raises(UserError, match="--masks"):
        list_yolo(tmp_path, source={"has_masks": True})


@pytest.mark.parametrize("text, reason", [("", "bad_keypoints"), (f"{POINTS} 1", "bad_keypoints"), (POINTS.replace(" 2 ", " 3 "), "bad_keypoints"), (POINTS.replace("0.125", "1.5"), "bad_box")])
def test_invalid_keypoints_reject_their_image(text, reason, tmp_path):
    write_files(tmp_path, {"images/1.jpg": IMAGE, "labels/1.txt": f"0 0.5 0.5 1 1 {text}".encode(), "data.yaml": POSE})
    assert list_yolo(tmp_path).reasons == {"images/1.jpg": reason}


def test_keypoints_without_kpt_shape_are_rejected_with_advice(tmp_path):
    listed = list_labels(tmp_path, f"0 0.5 0.5 1 1 {POINTS} {POINTS}"[:-2].encode())
    assert "kpt_shape" in listed.letters["images/1.jpg"].message


@pytest.mark.slow
def test_keypoints_are_stored_with_their_names(tmp_path):
    names = b"kpt_names: {0: [nose, left_ear, right_ear]}\n"
    write_files(tmp_path / "pets", {"images/1.png": png(1, 40, 80), "labels/1.txt": f"0 0.5 0.5 1 1 {POINTS}".encode(), "data.yaml": POSE + names})
    assert main(["prepare", "--input", str(tmp_path / "pets"), "--output", str(tmp_path / "out"), "--no_report"]) == 0
    data = tf_input.open(tmp_path / "out")
    feature = data.features["objects/keypoints"]
    assert feature.point_names == ("nose", "left_ear", "right_ear") and "(1, 2)" in feature.description
    np.testing.assert_array_equal(data["train"][0]["objects"]["keypoints"], [[[0.5, 0.25, 2], [0.25, 0.125, 1], [0, 0, 0]]])


def test_masks_draw_small_polygons_over_large_polygons(tmp_path):
    listed = list_labels(tmp_path, b"0 0 0 0.5 0 0.5 0.5\n1 0 0 1 0 1 1 0 1\n", has_masks=True)
    regions = listed.images["images/1.jpg"].values["mask"]
    assert regions.labels == ("dog", "cat") and regions.is_relative and regions.image_size is None
    assert listed.reasons == {"images/2.jpg": "bad_mask"}  # Its label file contains a box instead of a polygon.


@pytest.mark.slow
@pytest.mark.parametrize("orientation", [1, 6])
def test_masks_have_the_class_plus_1_in_the_polygon(orientation, tmp_path):
    image = encode(noise(0, 40, 80), "JPEG", exif=exif(orientation))
    write_files(tmp_path / "pets", {"images/1.jpg": image, "labels/1.txt": b"1 0.25 0.5 0.75 0.5 0.75 1 0.25 1\n", "classes.txt": b"cat\ndog"})
    command = ["prepare", "--input", str(tmp_path / "pets"), "--output", str(tmp_path / "out"), "--masks", "--no_report", "--splits=train=1"]
    assert main(command) == 0
    example = tf_input.open(tmp_path / "out")["train"][0]
    expected = np.zeros((40, 80), np.uint8)
    expected[20:40, 20:60] = 2
    box = [0.5, 0.25, 1, 0.75]
    if orientation == 6:  # The stored image is rotated by 90 degrees clockwise.
        expected, box = np.rot90(expected, -1), [0.25, 0, 0.75, 0.5]
    np.testing.assert_array_equal(example["mask"][..., 0], expected)
    np.testing.assert_allclose(example["objects"]["bbox"], [box])


# Links


def test_links_out_of_the_dataset_are_not_followed(tmp_path):
    write_files(tmp_path, {"secret.txt": BOX, "pets/images/1.jpg": IMAGE, "pets/images/2.jpg": IMAGE, "pets/labels/2.txt": BOX})
    (tmp_path / "pets/labels/1.txt").symlink_to(tmp_path / "secret.txt")
    assert list_yolo(tmp_path / "pets").reasons == {"images/1.jpg": "outside"}
    assert not list_yolo(tmp_path / "pets", follow_links=True).letters
    write_files(tmp_path / "pets", {"data.yaml": b"train: train.txt\nnc: 2", "train.txt": b"images/1.jpg\nimages/2.jpg"})
    assert list_yolo(tmp_path / "pets").reasons == {"images/1.jpg": "outside"}


@pytest.mark.parametrize("name", ["labels", "images"])
def test_linked_folders_are_rejected(name, tmp_path):
    write_files(tmp_path, {"images/1.jpg": IMAGE, "labels/1.txt": BOX})
    write_files(tmp_path / "pets", {f"{'labels' if name == 'images' else 'images'}/1.txt": BOX})
    (tmp_path / "pets" / name).symlink_to(tmp_path / name)
    with pytest.raises(UserError, match="--follow_links"):
        list_yolo(tmp_path / "pets")


@pytest.mark.parametrize("text", ["train: ../../etc", "train: /etc", "path: ..\ntrain: secret", "train: images/../../secret", "path: /\ntrain: secret"])
def test_dataset_file_does_not_lead_out_of_the_folder(text, tmp_path):
    write_files(tmp_path, {"secret/1.jpg": IMAGE})
    write_files(tmp_path / "pets", {"images/1.jpg": IMAGE, "labels/1.txt": BOX} | yaml(text))
    with pytest.raises(UserError, match="does not exist"):
        list_yolo(tmp_path / "pets")


# Dataset files


INVALID_FILES = {
    "nc differs from names": ("nc: 3\nnames: [cat, dog]", ["nc", "3", "2"]),
    "missing class id": ("names: {0: cat, 2: dog}", ["class 1"]),
    "class id that is not a number": ("names: {a: cat}", ["'a'"]),
    "repeated name": ("names: [cat, cat]", ["'cat'"]),
    "empty name": ("names: [cat, '']", ["class 1"]),
    "names that are a text": ("names: cat", ["names"]),
    "nested names": ("names: [[cat]]", ["class 0"]),
    "nc that is not a number": ("nc: two", ["nc"]),
    "train that is a mapping": ("names: [cat]\ntrain: {a: b}", ["train"]),
    "path that is a list": ("path: [a]\nnames: [cat]", ["path"]),
    "alias": ("a: &x [b]\nnames: *x", ["alias"]),
    "tag": ("names: !!python/object/apply:os.system [echo]", ["tag"]),
    "repeated key": ("names: [cat]\nnames: [dog]", ["repeats"]),
    "deep nesting": (f"names: {'[' * 5000}", ["data.yaml"]),
    "list": ("- cat", ["mapping"]),
    "two documents": ("names: [cat]\n---\nnames: [dog]", ["documents"]),
    "not YAML": ("names: [cat", ["line"]),
    "too large": ("#" * (1 << 20) + "\nnc: 1", ["bytes"]),
    "number of keypoints": ("names: [cat]\nkpt_shape: 17", ["kpt_shape"]),
    "columns of keypoints": ("names: [cat]\nkpt_shape: [17, 4]", ["kpt_shape"]),
    "names of keypoints": ("names: [cat]\nkpt_shape: [2, 3]\nkpt_names: {0: [nose]}", ["kpt_names"]),
    "flips that are no pairs": ("names: [cat]\nkpt_shape: [3, 3]\nflip_idx: [1, 2, 0]", ["flip_idx"]),
    "flips of other points": ("names: [cat]\nkpt_shape: [2, 3]\nflip_idx: [0, 2]", ["flip_idx"]),
    "missing images": ("names: [cat]\ntrain: pictures", ["pictures", "--image_root"]),
}


@pytest.mark.parametrize("case", INVALID_FILES)
def test_invalid_dataset_file_is_an_error(case, tmp_path):
    text, words = INVALID_FILES[case]
    write_files(tmp_path, {"images/1.jpg": IMAGE, "labels/1.txt": BOX} | yaml(text, b""))
    with pytest.raises(UserError) as caught:
        list_yolo(tmp_path)
    assert all(word in str(caught.value) for word in ["data.yaml", *words]), str(caught.value)


def test_yaml_scalars_are_texts():
    assert parse_yaml("names: {0: no, 1: 1.50, 2: '~'}\nval:\ntest: ~") == {"names": {"0": "no", "1": "1.50", "2": "~"}, "val": None, "test": None}
    assert parse_yaml("") is None


def test_image_root_replaces_the_path_of_a_dataset_file(tmp_path):
    write_files(tmp_path / "pets", ULTRALYTICS)
    write_files(tmp_path, {"files/data.yaml": b"path: /content\ntrain: images/train\nval: images/val\n" + NAMES})
    source = {"image_root": str(tmp_path / "pets")}
    assert list_yolo(tmp_path / "files/data.yaml", source=source).splits == OF_ULTRALYTICS
    with pytest.raises(UserError, match="--image_root"):
        list_yolo(tmp_path / "pets", source=source)


def test_path_of_a_dataset_file_as_input_may_be_another_folder(tmp_path):
    write_files(tmp_path / "datasets/pets", ULTRALYTICS)
    write_files(tmp_path, {"files/pets.yaml": b"path: ../datasets/pets\ntrain: images/train\nval: images/val\n" + NAMES})
    listed = list_yolo(tmp_path / "files/pets.yaml")
    assert listed.splits == OF_ULTRALYTICS and "datasets/pets" in listed.detected


def test_error_names_the_folders_that_were_searched(tmp_path):
    """Ultralytics dataset files contain a path that exists only after the dataset is downloaded."""
    write_files(tmp_path / "elsewhere", ULTRALYTICS)
    write_files(tmp_path, {"files/coco128.yaml": b"path: ../datasets/coco128\ntrain: images/train\nval: images/val\n" + NAMES})
    with pytest.raises(UserError) as caught:
        list_yolo(tmp_path / "files/coco128.yaml")
    for words in (f"{tmp_path}/datasets/coco128", f"or {tmp_path}/files.", f"--input={tmp_path}/files/coco128.yaml --image_root=FOLDER"):
        assert words in str(caught.value)
    assert list_yolo(tmp_path / "files/coco128.yaml", source={"image_root": str(tmp_path / "elsewhere")}).splits == OF_ULTRALYTICS


def test_left_out_paths_are_reported(tmp_path):
    text = "path: /content/pets\ntrain: images/train\nval: images/train\ntest: images/test"
    listed = list_yolo(write_files(tmp_path, ULTRALYTICS | yaml(text)))
    assert listed.splits == {"images/train/1.jpg": "train"}
    assert all(word in listed.detected for word in ["/content/pets", "images/test", "validation"])


def test_different_numbers_of_classes_and_names_are_an_error(tmp_path):
    write_files(tmp_path, DARKNET | {"obj.data": b"classes=3\ntrain=train.txt\nnames=obj.names", "train.txt": b"obj_train_data/1.jpg"})
    with pytest.raises(UserError, match="obj.data.* 3 .*obj.names.* 2 "):
        list_yolo(tmp_path)


# Class names


def test_different_files_of_class_names_are_an_error(tmp_path):
    write_files(tmp_path, ROBOFLOW | {"train/labels/classes.txt": b"cat\ndog", "valid/labels/classes.txt": b"dog\ncat"})
    with pytest.raises(UserError, match="train/labels/classes.txt.*valid/labels/classes.txt"):
        list_yolo(tmp_path)


def test_class_ids_are_the_names_of_unnamed_classes(tmp_path):
    listed = list_yolo(write_files(tmp_path, {"images/1.jpg": IMAGE, "labels/1.txt": b"7 0.5 0.5 1 1"}))
    assert listed.labels("images/1.jpg") == ("7",) and not listed.label_names
    assert [(num, "--label_names" in fact) for fact, num in listed.noted.items()] == [(1, True)]
    for source in ({"label_names": tuple("abcdefgh")}, {"labels": ()}):
        assert not list_yolo(tmp_path, source=source).noted


def test_number_of_classes_names_classes_by_their_ids(tmp_path):
    listed = list_yolo(write_files(tmp_path, ULTRALYTICS | yaml("train: images/train\nval: images/val\nnc: 3", b"")))
    assert listed.label_names == {("0", "1", "2")}


def test_label_names_rename_classes(tmp_path):
    assert list_labels(tmp_path, BOX, label_names=("Katze", "Hund")).labels("images/1.jpg") == ("Hund",)


@pytest.mark.parametrize("names", [("dog", "cat"), ("Katze", "cat"), ("cat",), ("cat", "dog", "cow")])
def test_label_names_that_contradict_the_dataset_are_an_error(names, tmp_path):
    with pytest.raises(UserError, match="--label_names"):
        list_labels(tmp_path, BOX, label_names=names)


# Splits and lists


def test_split_folders_no_ignores_splits(tmp_path):
    write_files(tmp_path, ULTRALYTICS)
    assert set(list_yolo(tmp_path, split_folders=False).splits.values()) == {None}
    write_files(tmp_path, yaml("train: images/train\nval: images/val"))
    assert set(list_yolo(tmp_path, split_folders=False).splits.values()) == {None}


def test_split_folders_yes_names_other_splits(tmp_path):
    write_files(tmp_path, {f"{folder}/{name}": data for folder in ("a", "b") for name, data in {"images/1.jpg": IMAGE, "labels/1.txt": BOX}.items()})
    assert list_yolo(tmp_path, split_folders=True).splits == {"a/images/1.jpg": "a", "b/images/1.jpg": "b"}
    with pytest.raises(UserError, match="--split_folders"):
        list_yolo(tmp_path / "a", split_folders=True)


def test_invalid_lines_of_a_list_are_dead_letters(tmp_path):
    lines = [b"images/1.jpg", b"", b"../secret.jpg", b"/etc/1.jpg", b"https://example.com/1.jpg", b"images/\xe9.jpg", b"images/2.png"]
    write_files(tmp_path / "pets", {"images/1.jpg": IMAGE, "labels/1.txt": BOX, "labels/2.txt": BOX, "train.txt": b"\n".join(lines)} | yaml("train: train.txt"))
    listed = list_yolo(tmp_path / "pets", ignore=("*.png",))
    assert set(listed.images) == {"images/1.jpg"} and listed.num_ignored == 1
    assert listed.reasons == {"train.txt:3": "outside", "train.txt:4": "outside", "train.txt:5": "outside", "train.txt:6": "bad_value"}


def test_long_line_of_a_list_is_an_error(tmp_path):
    write_files(tmp_path, {"images/1.jpg": IMAGE, "train.txt": b"images/1.jpg\n" + b"x" * 100_000} | yaml("train: train.txt"))
    with pytest.raises(UserError, match="train.txt: line 2"):
        list_yolo(tmp_path)


def test_long_lists_are_divided_into_parts(tmp_path, monkeypatch):
    monkeypatch.setattr("beam_pipelines.sources.annotations.paired_source.PART_FILES", 4)
    write_files(tmp_path, {f"images/{index}.jpg": IMAGE for index in range(10)} | {f"labels/{index}.txt": BOX for index in range(10)})
    in_folder = list_yolo(tmp_path)
    lines = [f"./images/{index}.jpg\n\n" for index in range(10)] + ["../1.jpg\n"]
    write_files(tmp_path, {"train.txt": "".join(lines).encode()} | yaml("train: train.txt"))
    listed = list_yolo(tmp_path)
    assert len(in_folder.parts) == 3 and len(listed.parts) == 4
    assert set(listed.images) == set(in_folder.images)
    assert listed.reasons == {"train.txt:21": "outside"}


@pytest.mark.slow
def test_lists_and_names_of_an_object_store_are_read(tmp_path):
    files = {"train.txt": b"/content/pets/images/1.jpg\nimages/2.jpg\n", "obj.names": b"cat\ndog", "obj.data": b"train=train.txt\nnames=data/obj.names\n"}
    files |= {"images/1.jpg": IMAGE, "images/2.jpg": IMAGE, "labels/1.txt": BOX}
    with connected_to(shared_server("s3")) as server:
        bucket = upload_files(server, {f"pets/{name}": data for name, data in files.items()}, folder="")
        for name in ("pets", "pets/obj.data"):
            listed = list_yolo(f"{bucket}/{name}", with_sizes=True)
            assert guess_source(f"{bucket}/{name}").kind.name == "yolo"
            assert {key: listed.labels(key) for key in listed.images} == {"images/1.jpg": ("dog",), "images/2.jpg": ()}
            assert {image.num_bytes for image in listed.images.values()} == {len(IMAGE)}
            assert [*listed.noted.values()] == [1] and listed.label_names == {("cat", "dog")}


@pytest.mark.slow
@pytest.mark.parametrize("labels", [{"labels/a1.txt": BOX, "labels/a2.txt": BOX}, {"labels/1.txt": b"684,8,273,116,0,0,0,0\n"}])
def test_dataset_without_any_valid_label_file_is_an_error(labels, tmp_path, capfd):
    write_files(tmp_path / "in", {f"images/{number}.png": png(number) for number in range(4)} | labels)
    command = ["prepare", f"--input={tmp_path}/in", "--source=yolo", "--splits=train=1", "--max_bad_fraction=0.5", "--no_report"]
    assert main([*command, f"--output={tmp_path}/out"]) == 2
    message = capfd.readouterr().err
    assert "dead letters" in message and "--label=none" in message and next(iter(labels)) in message
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_command_reports_rejected_images_and_missing_label_files(tmp_path, capfd):
    labels = {1: b"1 0.5 0.5 0.5 0.5", 2: b"0 0.9 0.5 0.5 0.5\n", 3: b"0 0.5 0.5 0.5 0.5\n9 0.5 0.5 0.5 0.5"}
    write_files(tmp_path / "pets", {f"images/{number}.png": png(number) for number in range(5)} | yaml("train: images"))
    write_files(tmp_path / "pets", {f"labels/{number}.txt": data for number, data in labels.items()})
    command = ["prepare", f"--input={tmp_path}/pets", "--max_bad_fraction=0.5", "--no_report", "--overwrite", f"--output={tmp_path}/out"]
    for option, rejected in (("reject", ["images/2.png", "images/3.png"]), ("clip", ["images/3.png"])):
        assert main([*command, f"--bad_boxes={option}"]) == 0
        assert any(": 2 images" in line for line in capfd.readouterr().err.splitlines() if "warning" in line)
        letters = [json.loads(line) for line in (tmp_path / "out/dead_letters.jsonl").read_text().splitlines()]
        assert [letter["path"] for letter in letters] == rejected
        assert "labels/3.txt: line 2" in letters[-1]["message"]
