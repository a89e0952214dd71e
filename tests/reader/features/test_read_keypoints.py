"""Tests that keypoints in batches mark the same spots as in the original images."""

import logging
import pathlib

import numpy as np
import pytest
import tensorflow_datasets as tfds

import tf_input
from made_points import find_points, prepare_table, write_points
from prepared import make_once
from tf_input.features.keypoints import pairs_of_names

HEIGHT, WIDTH, NUM = 120, 160, 8
COLUMNS = ",".join(f"{point}_{axis}" for point in ("left_eye", "right_eye", "nose") for axis in "xy")


def positions(seed: int) -> np.ndarray:
    """Returns three points, int64 [3, 2], that are far from each other and from the edges."""
    return np.random.default_rng(seed).integers([[10, 10], [110, 10], [60, 70]], [[50, 50], [150, 50], [100, 110]])


def make(folder: pathlib.Path) -> pathlib.Path:
    points = {f"{index}.png": positions(index) for index in range(NUM)}
    write_points(folder, points, HEIGHT, WIDTH)
    rows = "\n".join(",".join(map(str, (name, *some.ravel()))) for name, some in points.items())
    features = (f"--feature=pose={COLUMNS}:keypoints", f"--feature=seen={COLUMNS}:keypoints[3,3]")
    assert prepare_table(folder, f"file_name,{COLUMNS}\n{rows}\n", *features, "--label=none") == 0
    return folder / "out"


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> pathlib.Path:
    return make_once(tmp_path_factory, "keypoints", make)


@pytest.fixture(scope="module")
def data(directory) -> tf_input.PreparedDataset:
    return tf_input.open(directory)


def check_batch(images: np.ndarray, points: np.ndarray, tolerance: float, swaps: bool = True) -> int:
    """Checks that points are at the centers of their squares, and returns the number of flipped images.

    Args:
        images: uint8 [batch, height, width, 3].
        points: float32 [batch, 3, 2], as fractions of the width and height.
        tolerance: The largest difference in pixels.
        swaps: Whether the first two points are exchanged in flipped images.
    """
    num_flipped = 0
    for pixels, some in zip(images, points):
        red, green, blue = find_points(pixels)
        is_flipped = red[0] > green[0]
        num_flipped += is_flipped
        expected = (green, red, blue) if is_flipped and swaps else (red, green, blue)
        np.testing.assert_allclose(some * pixels.shape[1::-1], expected, atol=tolerance)
    return num_flipped


SIZES = {
    "as stored": {},
    "half": {"image_size": (60, 80)},
    "stretched": {"image_size": (120, 120), "fit": "stretch"},
    "padded": {"image_size": (160, 160)},
    "padded columns": {"image_size": (120, 240), "fit": "pad"},
    "unscaled": {"image_size": (200, 200), "fit": "unscaled"},
    "largest": {"image_size": "largest"},
}


@pytest.mark.parametrize("options", SIZES.values(), ids=SIZES)
def test_points_follow_resizing_and_padding(data, options):
    images, points = next(data.batches("train", batch_size=NUM, targets="pose", shuffle=False, **options).as_numpy_iterator())
    assert points.shape == (NUM, 3, 2) and points.dtype == np.float32
    check_batch(images, points, 0.35)


def test_points_are_exact_for_stretched_and_padded_images(data):
    keys = [example["key"] for example in data["train"]]
    stored = np.array([positions(int(key.split(".")[0])) for key in keys])
    for options, scale, offset in (
        ({"image_size": (240, 80), "fit": "stretch"}, (0.5, 2), (0, 0)),
        ({"image_size": (160, 160), "fit": "pad"}, (1, 1), (0, 20)),
        ({"image_size": (60, 100), "fit": "pad"}, (0.5, 0.5), (10, 0)),
        ({"image_size": (120, 80), "fit": "crop"}, (1, 1), (-40, 0)),
    ):
        _, points = next(data.batches("train", batch_size=NUM, targets="pose", shuffle=False, **options).as_numpy_iterator())
        size = np.array(options["image_size"])[::-1]
        np.testing.assert_allclose(points * size, stored * scale + offset, atol=1e-4, err_msg=str(options))


@pytest.mark.slow
@pytest.mark.parametrize("fit", [None, "pad"])
def test_points_follow_random_flips_and_exchange_sides(data, fit):
    augment = tf_input.Augmentation(crop=False)
    batches = data.batches("train", batch_size=NUM, image_size=(120, 200), targets="pose", augment=augment, fit=fit, seed=1)
    num_flipped = [check_batch(images, points, 0.35) for _ in range(4) for images, points in batches.as_numpy_iterator()]
    assert 0 < sum(num_flipped) < 4 * NUM


@pytest.mark.slow
def test_flip_pairs_can_be_given(data):
    for pairs, swaps in ([(0, 1)], True), ([], False), ({"pose": []}, False), ({"seen": []}, True):
        both = isinstance(pairs, dict) and "seen" in pairs
        targets = ["pose", "seen"] if both else "pose"
        batches = data.batches("train", batch_size=NUM, targets=targets, augment=tf_input.Augmentation(crop=False, flip_pairs=pairs), seed=3, image_size=(120, 160))
        images, y = next(batches.as_numpy_iterator())
        assert check_batch(images, y["pose"] if both else y, 0.35, swaps), pairs


@pytest.mark.slow
def test_points_outside_a_random_crop_get_visibility_0(data):
    batches = data.batches("train", batch_size=NUM, image_size=(96, 96), targets=["pose", "seen"], augment=tf_input.Augmentation(flip=False), seed=5)
    num_hidden = 0
    for _ in range(6):
        for images, y in batches.as_numpy_iterator():
            for pixels, plain, seen in zip(images, y["pose"], y["seen"]):
                is_inside = ((plain >= 0) & (plain <= 1)).all(axis=1)
                np.testing.assert_array_equal(seen[:, 2], np.where(is_inside, 2, 0))
                np.testing.assert_array_equal(seen[:, :2], np.where(is_inside[:, None], plain, 0))
                num_hidden += (~is_inside).sum()
                for center, point, is_in in zip(find_points(pixels), plain * 96, is_inside):
                    well_inside = is_in and (point > 8).all() and (point < 88).all()
                    if well_inside:
                        np.testing.assert_allclose(point, center, atol=1.5)
    assert num_hidden > 10


def test_examples_and_sequences_have_the_same_values(data):
    example = data["train"][3]
    assert example["pose"].shape == (3, 2) and example["seen"].shape == (3, 3)
    np.testing.assert_array_equal(example["seen"][:, 2], 2)
    sequence = tf_input.Sequence(data, "train", batch_size=NUM, targets="pose", image_size=(60, 90), shuffle=False)
    batches = data.batches("train", batch_size=NUM, targets="pose", image_size=(60, 90), shuffle=False)
    np.testing.assert_array_equal(sequence[0][1], next(batches.as_numpy_iterator())[1])


WRONG = {
    "not pairs": [(1, 2, 3)],
    "the same point twice": [(0, 1), (1, 2)],
    "one point": [(1, 1)],
    "no such point": [(0, 3)],
    "no such feature": {"nose": [(0, 1)]},
    "a negative index": [(-1, 0)],
    "a text": "left",
}


@pytest.mark.parametrize("pairs", WRONG.values(), ids=WRONG)
def test_wrong_flip_pairs_are_rejected(data, pairs):
    with pytest.raises(ValueError, match="flip_pairs"):
        data.batches("train", batch_size=2, targets="pose", augment=tf_input.Augmentation(flip_pairs=pairs), image_size=32)


def test_flip_pairs_need_keypoints_and_names_if_there_are_several(data):
    augment = tf_input.Augmentation(flip_pairs=[(0, 1)])
    with pytest.raises(ValueError, match="flip_pairs"):
        data.batches("train", batch_size=2, image_size=32, targets=[], inputs="image", augment=augment)
    with pytest.raises(ValueError, match="flip_pairs"):
        data.batches("train", batch_size=2, image_size=32, targets=["pose", "seen"], augment=augment)


@pytest.mark.slow
def test_warns_if_a_flip_may_exchange_no_points(tmp_path, caplog):
    write_points(tmp_path, {"0.png": positions(0)}, HEIGHT, WIDTH)
    row = ",".join(map(str, positions(0).ravel()))
    for columns, names, is_warned in (
        ("a,b,c,d,e,f", "no names", True),
        ("left_eye_x,left_eye_y,ear_x,ear_y,nose_x,nose_y", "'left_eye'", True),
        ("tail_x,tail_y,neck_x,neck_y,nose_x,nose_y", "", False),
        (COLUMNS, "", False),
    ):
        assert prepare_table(tmp_path, f"file_name,{columns}\n0.png,{row}\n", f"--feature=pose={columns}:keypoints", "--label=none") == 0
        for options, expected in ({}, is_warned), ({"augment": tf_input.Augmentation(flip_pairs=[])}, False), ({"augment": tf_input.Augmentation(flip=False)}, False):
            caplog.clear()
            with caplog.at_level(logging.WARNING, "tf_input"):
                tf_input.open(tmp_path / "out").batches("train", batch_size=1, targets="pose", image_size=64, **{"augment": True, "seed": 0, **options})
            found = [record.getMessage() for record in caplog.records if "flip_pairs" in record.getMessage()]
            assert bool(found) == expected and all(names in text for text in found), (columns, options)


NAMES = {
    ("left_eye", "right_eye", "nose"): [(0, 1)],
    ("nose", "rightKnee", "leftKnee", "R_ankle", "L_ankle"): [(1, 2), (3, 4)],
    ("lefteye", "righteye"): [(0, 1)],
    ("eye_l", "eye_r", "ear", "tail"): [(0, 1)],
    ("left_eye", "left_ear"): [],
    ("a", "b"): [],
}


@pytest.mark.parametrize("names, pairs", NAMES.items())
def test_pairs_come_from_names(names, pairs):
    assert pairs_of_names(names) == pairs


@pytest.mark.slow
def test_tensorflow_datasets_reads_keypoints(directory, data):
    builder = tfds.builder_from_directory(str(directory))
    assert builder.info.features["seen"].shape == (3, 3) and builder.info.features["seen"].dtype == np.float32
    read = {example["key"].decode(): example for example in tfds.as_numpy(builder.as_dataset(split="train"))}
    for example in data["train"]:
        np.testing.assert_array_equal(read[example["key"]]["seen"], example["seen"])


@pytest.mark.slow
def test_keypoints_are_a_model_target(data):
    import keras

    model = keras.Sequential([keras.Input((32, 32, 3)), keras.layers.Rescaling(1 / 255), keras.layers.Flatten(), keras.layers.Dense(6), keras.layers.Reshape((3, 2))])
    model.compile("adam", "mse")
    model.fit(data.batches("train", batch_size=4, image_size=32, targets="pose", augment=True, seed=0), epochs=1, verbose=0)
    predictions = data.predict(model, "train", batch_size=4, image_size=32, targets="pose")
    assert predictions["output"].shape == (NUM, 3, 2)
