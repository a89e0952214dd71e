"""Tests that the keypoints of COCO files are stored for each object."""

import json
import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow_datasets as tfds

import tf_input
from beam_pipelines.__main__ import main
from made_images import exif, encode, noise, write_files

HEIGHT, WIDTH = 40, 60
PERSON = {"id": 1, "name": "person", "keypoints": ["nose", "left_eye", "right_eye"], "skeleton": [[1, 2], [1, 3]]}
BALL = {"id": 2, "name": "ball"}
ANNOTATIONS = [
    {"image_id": 1, "category_id": 1, "bbox": [2, 2, 30, 30], "keypoints": [10, 12, 2, 14.5, 9, 1, 0, 0, 0], "num_keypoints": 2},
    {"image_id": 1, "category_id": 2, "bbox": [40, 20, 10, 10]},
    {"image_id": 2, "category_id": 1, "bbox": [0, 0, 60, 40], "keypoints": [60, 40, 2, 0, 0, 2, 59, 1, 1], "num_keypoints": 3},
]
EXPECTED = {  # key -> label -> the keypoints in pixels
    "1.jpg": {"person": [[10, 12, 2], [14.5, 9, 1], [0, 0, 0]], "ball": [[0, 0, 0]] * 3},
    "2.jpg": {"person": [[60, 40, 2], [0, 0, 2], [59, 1, 1]]},
    "3.jpg": {},
}


def write_coco(root: pathlib.Path, annotations: list[dict[str, Any]] = ANNOTATIONS, categories=(PERSON, BALL), name="people.json", **options: Any) -> None:
    files = {f"{number}.jpg": encode(noise(number, HEIGHT, WIDTH), "JPEG", quality=95, **options) for number in (1, 2, 3)}
    images = [{"id": number, "file_name": f"{number}.jpg", "height": HEIGHT, "width": WIDTH} for number in (1, 2, 3)]
    annotations = [{"id": index, "iscrowd": 0, **annotation} for index, annotation in enumerate(annotations)]
    coco = {"annotations": annotations, "images": images, "categories": categories}  # categories may come last
    write_files(root, {**files, name: json.dumps(coco).encode()})


def prepare(root: pathlib.Path, *options: str, name: str = "people.json") -> int:
    command = ["prepare", "--input", str(root / name), "--output", str(root / "out"), "--splits=train=1", "--no_report", "--overwrite"]
    return main([*command, *options])


def in_pixels(points: np.ndarray) -> np.ndarray:
    return points * (WIDTH, HEIGHT, 1)


def test_keypoints_belong_to_objects(tmp_path):
    write_coco(tmp_path)
    assert prepare(tmp_path) == 0
    data = tf_input.open(tmp_path / "out")
    feature = data.features["objects/keypoints"]
    assert feature.shape == (None, 3, 3) and feature.point_names == tuple(PERSON["keypoints"]) and feature.skeleton == ((0, 1), (0, 2))
    names = data.features["objects/label"].label_names
    for example in data["train"]:
        objects = example["objects"]
        actual = {names[label]: points for label, points in zip(objects["label"], objects["keypoints"])}
        assert actual.keys() == EXPECTED[example["key"]].keys()
        for name, points in EXPECTED[example["key"]].items():
            np.testing.assert_allclose(in_pixels(actual[name]), points, atol=1e-5)
    statistics = json.loads((tmp_path / "out/statistics.json").read_text())
    assert statistics["splits"]["train"]["counts"] == {"objects/keypoints": {"num_points": 9, "num_labeled": 5}}
    assert not {"keypoints", "num_keypoints"} & set(statistics.get("unused_fields", ()))
    assert main(["verify", str(tmp_path / "out")]) == 0
    read = {item["key"].decode(): item for item in tfds.as_numpy(tfds.builder_from_directory(str(tmp_path / "out")).as_dataset(split="train"))}
    for example in data["train"]:
        np.testing.assert_array_equal(read[example["key"]]["objects"]["keypoints"], example["objects"]["keypoints"])


@pytest.mark.slow
def test_keypoints_of_objects_follow_their_boxes_in_batches(tmp_path):
    corners = [[0, 0, 2], [60, 40, 2], [30, 20, 2]]  # of the box, and its center
    annotations = [{"image_id": number, "category_id": 1, "bbox": [0, 0, 60, 40], "keypoints": sum(corners, [])} for number in (1, 2, 3)]
    write_coco(tmp_path, annotations)
    assert prepare(tmp_path) == 0
    data = tf_input.open(tmp_path / "out")
    for options in ({"image_size": 32}, {"image_size": (80, 60), "fit": "stretch"}, {"image_size": 40, "augment": tf_input.Augmentation(crop=False, flip_pairs=[]), "seed": 2}):
        _, y = next(data.batches("train", batch_size=3, shuffle=False, padding={"objects": 2}, **options).as_numpy_iterator())
        assert y["keypoints"].shape == (3, 2, 3, 3) and y["keypoints"].dtype == np.float32
        ymin, xmin, ymax, xmax = y["bbox"][:, 0].T
        first, second, center = y["keypoints"][:, 0, :, :2].transpose(1, 0, 2)
        is_flipped = first[:, 0] > second[:, 0]
        np.testing.assert_allclose(first, np.stack([np.where(is_flipped, xmax, xmin), ymin], axis=1), atol=1e-6)
        np.testing.assert_allclose(second, np.stack([np.where(is_flipped, xmin, xmax), ymax], axis=1), atol=1e-6)
        np.testing.assert_allclose(center, np.stack([(xmin + xmax) / 2, (ymin + ymax) / 2], axis=1), atol=1e-6)
        assert not y["keypoints"][:, 1].any() and not y["valid"][:, 1].any(), "padding"


@pytest.mark.slow
def test_keypoints_of_cropped_objects_are_hidden_or_dropped(tmp_path):
    annotations = [
        {"image_id": 1, "category_id": 1, "bbox": [10, 10, 40, 20], "keypoints": [11, 20, 2, 30, 20, 2, 49, 20, 1]},
        {"image_id": 1, "category_id": 1, "bbox": [0, 0, 8, 8], "keypoints": [1, 1, 2, 2, 2, 2, 3, 3, 2]},
    ]
    write_coco(tmp_path, annotations)
    assert prepare(tmp_path) == 0
    batches = tf_input.open(tmp_path / "out").batches("train", batch_size=3, shuffle="key", image_size=(40, 20), fit="crop")
    _, y = next(batches.as_numpy_iterator())
    assert y["valid"].sum() == 1, "the center of the other object is outside the crop"
    np.testing.assert_allclose(y["keypoints"][0, 0], [[0, 0, 0], [0.5, 0.5, 2], [0, 0, 0]], atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("stated", ["file", "upright"])
def test_keypoints_of_rotated_images(tmp_path, stated):
    write_coco(tmp_path, exif=exif(6))
    coco = json.loads((tmp_path / "people.json").read_text())
    if stated == "upright":
        for image in coco["images"]:
            image["height"], image["width"] = WIDTH, HEIGHT
        coco["annotations"] = [{**ANNOTATIONS[0], "id": 1, "bbox": [5, 5, 20, 20]}]
        (tmp_path / "people.json").write_text(json.dumps(coco))
    assert prepare(tmp_path) == 0
    points = tf_input.open(tmp_path / "out")["train"].find("1.jpg")[1]["objects"]["keypoints"][0, 0, :2]
    rotated = (1 - 12 / HEIGHT, 10 / WIDTH) if stated == "file" else (10 / HEIGHT, 12 / WIDTH)  # clockwise by 90 degrees
    np.testing.assert_allclose(points, rotated, atol=1e-6)


BAD = {
    "too few points": [1, 1, 1],
    "not a multiple of three": [1, 1, 1, 2],
    "not numbers": ["a"] * 9,
    "not a list": "text",
    "a visibility of 7": [1, 1, 7, 1, 1, 1, 1, 1, 1],
    "outside the image": [1000, 1, 2, 1, 1, 1, 1, 1, 1],
    "huge": [1e300, 1, 2, 1, 1, 1, 1, 1, 1],
}


@pytest.mark.parametrize("keypoints", BAD.values(), ids=BAD)
def test_bad_keypoints_reject_their_image(tmp_path, keypoints):
    write_coco(tmp_path, [{**ANNOTATIONS[0], "keypoints": keypoints}, *ANNOTATIONS[1:]])
    assert prepare(tmp_path, "--max_bad_fraction=0.5") == 0
    (letter,) = map(json.loads, (tmp_path / "out/dead_letters.jsonl").read_text().splitlines())
    assert letter["path"] == "1.jpg" and letter["reason"] in ("bad_keypoints", "bad_annotation")


@pytest.mark.parametrize(
    "categories",
    [
        (PERSON, {**BALL, "keypoints": ["top"]}),
        ({**PERSON, "keypoints": "nose"},),
        ({**PERSON, "keypoints": [1, 2, 3]},),
        ({**PERSON, "skeleton": [[0, 1]]},),
        ({**PERSON, "skeleton": [[1, 4]]},),
        ({**PERSON, "skeleton": [1]},),
    ],
    ids=["different keypoints", "a text", "numbers", "zero", "too large", "no pairs"],
)
def test_bad_categories_end_the_run(tmp_path, categories, capfd):
    write_coco(tmp_path, ANNOTATIONS[:1], categories)
    assert prepare(tmp_path) == 2
    assert "people.json" in capfd.readouterr().err


@pytest.mark.slow
def test_files_without_categories_with_keypoints(tmp_path):
    write_coco(tmp_path, categories=({"id": 1, "name": "person"}, BALL))
    assert prepare(tmp_path) == 0
    feature = tf_input.open(tmp_path / "out").features["objects/keypoints"]
    assert feature.shape == (None, 3, 3) and not feature.point_names
    write_coco(tmp_path, [{name: value for name, value in item.items() if "keypoints" not in name} for item in ANNOTATIONS], (BALL, {"id": 1, "name": "person"}))
    assert prepare(tmp_path) == 0
    assert "objects/keypoints" not in tf_input.open(tmp_path / "out").features


@pytest.mark.slow
def test_folder_of_keypoint_files_and_of_both_kinds(tmp_path):
    for split in ("train2017", "val2017"):
        write_coco(tmp_path / "in" / split)
        (tmp_path / "in/annotations").mkdir(exist_ok=True)
        (tmp_path / "in" / split / "people.json").rename(tmp_path / f"in/annotations/person_keypoints_{split}.json")
    command = ["prepare", "--input", str(tmp_path / "in"), "--output", str(tmp_path / "out"), "--no_report", "--source=coco"]
    assert main(command) == 0
    data = tf_input.open(tmp_path / "out")
    assert {*data} == {"train", "validation"} and "objects/keypoints" in data.features
    for split in ("train2017", "val2017"):
        text = (tmp_path / f"in/annotations/person_keypoints_{split}.json").read_text()
        (tmp_path / f"in/annotations/instances_{split}.json").write_text(text.replace('"keypoints"', '"other"'))
    assert main([*command, "--overwrite"]) == 0
    assert "objects/keypoints" not in tf_input.open(tmp_path / "out").features, "instances have priority"


@pytest.mark.slow
def test_parts_with_different_keypoints_end_the_run(tmp_path, capfd):
    for split, names in (("train", ["a", "b", "c"]), ("valid", ["a", "b", "d"])):
        write_coco(tmp_path / "in" / split, categories=({**PERSON, "keypoints": names}, BALL), name="_annotations.coco.json")
    assert main(["prepare", "--input", str(tmp_path / "in"), "--output", str(tmp_path / "out"), "--no_report"]) == 2
    assert "objects/keypoints" in capfd.readouterr().err


@pytest.mark.slow
def test_corrupt_shard_with_keypoints_can_be_repaired(tmp_path):
    write_coco(tmp_path)
    assert prepare(tmp_path) == 0
    (shard,) = (tmp_path / "out").glob("*.tfrecord-*")
    written = shard.read_bytes()
    shard.write_bytes(written[:-20])
    assert main(["repair", str(tmp_path / "out")]) == 0
    assert shard.read_bytes() == written
