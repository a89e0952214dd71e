"""Tests that evaluation pads images that have objects or masks, and warns about coordinates that crops do not adjust."""

import json
import pathlib

import numpy as np
import pytest
import tensorflow as tf

import tf_input
from beam_pipelines.__main__ import main
from made_images import encode, write_files
from prepared import picture

SIZE = (30, 40)  # The aspect ratio of a camera.
NUM_IMAGES = 8
# (x, y, width, height) of a box at the left edge, outside a square crop, and of a box in the middle.
EDGE, MIDDLE = [0, 10, 6, 20], [15, 5, 25, 25]


LABELS = ("--label=objects", "--label=mask:mask", "--label=place", "--label=heat:array[3,4,2]")


@pytest.fixture(scope="module")
def street(tmp_path_factory) -> tf_input.PreparedDataset:
    return prepare_street(tmp_path_factory.mktemp("street"), *LABELS)


def prepare_street(folder: pathlib.Path, *labels: str) -> tf_input.PreparedDataset:
    """Prepares a dataset of images with two objects each. Half of the objects are at the edge of their image."""
    lines = []
    for index in range(NUM_IMAGES):
        mask = np.ones(SIZE, np.uint8)
        files = {f"{index}.png": encode(picture(index, SIZE), "PNG"), f"m{index}.png": encode(mask, "PNG")}
        write_files(folder / "in", files)
        np.save(folder / f"in/{index}.npy", np.ones((3, 4, 2), np.float32))
        row = {"file_name": f"{index}.png", "mask": f"m{index}.png", "place": ["town", "land"][index % 2]}
        row["heat"] = f"{index}.npy"
        lines.append(json.dumps(row | {"objects": {"bbox": [EDGE, MIDDLE], "categories": ["car", "dog"]}}) + "\n")
    (folder / "in/rows.jsonl").write_text("".join(lines))
    command = ["prepare", "--input", str(folder / "in/rows.jsonl"), "--output", str(folder / "out"), "--splits=train=0.5,test=0.5"]
    assert main([*command, "--num_shards=2", "--name=street", *labels]) == 0
    return tf_input.open(folder / "out")


def read_batch(data, **options) -> tf.Tensor:
    """Returns the whole split as one batch."""
    return next(iter(data.batches("test", batch_size=100, image_size=20, **options)))


def read_from_sequence(data, **options) -> tuple:
    """Returns the whole split as one batch of a `Sequence`."""
    return tf_input.Sequence(data, "test", batch_size=100, image_size=20, **options)[0]


@pytest.mark.slow(1.2)
def test_evaluation_pads_images_and_keeps_every_object(street, caplog):
    count = street.num_examples("test")
    x, y = read_batch(street, targets="objects")
    assert y["valid"].shape == (count, 2) and np.asarray(y["valid"]).all()
    assert not np.asarray(x)[:, 0].any() and np.asarray(x)[:, 10].any(axis=(1, 2)).all(), "padding above and below"
    _, y = read_from_sequence(street, targets="objects")
    assert y["valid"].all() and y["valid"].shape == (count, 2)
    assert np.asarray(read_from_sequence(street, targets="mask")[1]).mean() == pytest.approx(0.75)
    assert np.asarray(read_from_sequence(street, inputs=("image", "mask"), targets="place")[0]["mask"]).mean() == pytest.approx(0.75)
    assert not caplog.records


@pytest.mark.slow
def test_images_without_objects_or_masks_are_cropped(street, caplog):
    plain, cropped = read_batch(street, targets="place", shuffle=False), read_from_sequence(street, targets="place", shuffle=False, fit="crop")
    for value, other in zip(tf.nest.flatten(plain), tf.nest.flatten(cropped), strict=True):
        np.testing.assert_array_equal(value, other)
    augmented = {"targets": "objects", "augment": True, "seed": 0, "shuffle": False}
    varied, cropped = read_batch(street, **augmented), read_from_sequence(street, **augmented, fit="crop")
    for value, other in zip(tf.nest.flatten(varied), tf.nest.flatten(cropped), strict=True):
        np.testing.assert_array_equal(value, other)
    assert not caplog.records, "a random crop may lose objects without a warning"
    flipped = read_from_sequence(street, targets="objects", augment=tf_input.Augmentation(crop=False), seed=0, shuffle=False)
    assert np.asarray(flipped[1]["valid"]).all()


@pytest.mark.slow
def test_other_tfrecord_files_are_padded_too(street):
    copy = pathlib.Path(street.directory).parent / "others.tfrecord"
    copy.write_bytes((pathlib.Path(street.directory) / street.manifest.splits["test"][0].name).read_bytes())
    columns = {"image": "image", "objects/bbox": "objects/bbox", "objects/label": "objects/label"}
    others = tf_input.open_tfrecords(copy, columns, label_names=("car", "dog"))
    count = street.num_examples("test")
    for options, num_seen in (({}, 2 * count), ({"fit": "crop"}, count)):
        _, y = next(iter(others.batches(batch_size=100, image_size=20, targets="objects", shuffle=False, **options)))
        assert int(np.asarray(y["valid"]).sum()) == num_seen, options


@pytest.mark.slow
def test_identity_is_equal_with_default_and_explicit_fit(street):
    options = {"batch_size": 2, "image_size": 20, "seed": 0, "targets": "objects"}
    fingerprints = [street.batches("train", **options, **more).iterator_state.fingerprint for more in ({}, {"fit": "pad"}, {"fit": "crop"})]
    assert fingerprints[0] == fingerprints[1] != fingerprints[2]


@pytest.mark.slow(3.5)
def test_analyze_crops_objects_with_their_images(tmp_path):
    pytest.importorskip("tensorflow_transform", reason="the extra `transform` is not installed")
    data = prepare_street(tmp_path, "--label=objects")  # Each additional feature adds a graph for Beam.
    assert main(["analyze", str(data.directory), "--image_size=20", "--fit=crop"]) == 0
    _, y = next(iter(data.batches("test", batch_size=100, transform=True, targets="objects")))
    assert int(np.asarray(y["valid"]).sum()) == data.num_examples("test")


# Name -> (value of a row, (warning expected when cropped or flipped, warning expected when only resized)).
COORDINATES = {
    "landmarks": ([3.0, 4.0, 39.0, 20.0], (True, True)),
    "keypoints": ([0.1, 0.2, 0.9, 0.5], (True, False)),
    "leftEye_x": (12.5, (True, True)),
    "corner_points": ([1, 2, 30, 20], (True, True)),
    "polygon": ([1.0, 2.0, 3.0, 4.0, 30.0, 20.0], (True, True)),
    "numbers": ([1.0, 10.0, 35.0, 22.0, 9.0, 40.0], (True, True)),  # Detected by the range of the values.
    "probabilities": ([0.1, 0.2, 0.3, 0.4], (False, False)),
    "spectrum": ([100.0, 2000.0, 70.0, 3.0], (False, False)),
    "age": (33.0, (False, False)),
    "max": (40.0, (False, False)),
}


def test_warns_about_coordinates_that_do_not_follow_the_image(tmp_path, caplog):
    rows = []
    for index in range(6):
        write_files(tmp_path / "in", {f"{index}.png": encode(picture(index, SIZE), "PNG")})
        values = {name: value for name, (value, _) in COORDINATES.items() if name != "polygon"}
        rows.append(json.dumps({"file_name": f"{index}.png", **values, "polygon": COORDINATES["polygon"][0][: 2 * (1 + index % 3)]}))
    (tmp_path / "in/rows.jsonl").write_text("\n".join(rows))
    command = ["prepare", "--input", str(tmp_path / "in/rows.jsonl"), "--output", str(tmp_path / "out"), "--splits=train=1", "--label=none"]
    numbers = {"age": "float", "leftEye_x": "float", "max": "float", "landmarks": "float[4]", "keypoints": "float[4]"}
    numbers |= {"corner_points": "integer[4]", "numbers": "float[6]", "probabilities": "float[4]", "spectrum": "float[4]"}
    features = [f"--feature={name}:{kind}" for name, kind in numbers.items()]
    assert main([*command, *features, "--feature=polygon:float[]"]) == 0
    data = tf_input.open(tmp_path / "out")
    names = tuple(COORDINATES)
    flip = tf_input.Augmentation(crop=False)
    cases = {
        "cropped": ({"augment": True, "image_size": SIZE}, 0),
        "flipped": ({"augment": flip, "image_size": SIZE}, 0),
        "cropped, resized": ({"image_size": 20}, 0),
        "padded, resized": ({"image_size": 20, "fit": "pad"}, 0),
        "resized": ({"image_size": 20, "fit": "stretch"}, 1),
        "": ({"image_size": SIZE}, None),
    }
    for case, (options, index) in cases.items():
        caplog.clear()
        tf_input.Sequence(data, "train", batch_size=2, inputs=("image", *names), targets=(), cache_in_memory=0, **options)
        actual = {name for name in names if f"'{name}'" in caplog.text}
        assert actual == {name for name in names if index is not None and COORDINATES[name][1][index]}, (case, caplog.text)
        assert (case in caplog.text) and (index is None or "fit='stretch'" in caplog.text), case
