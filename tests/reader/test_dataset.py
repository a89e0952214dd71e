"""The read path as a trainer uses it, on datasets that the real command made."""

import hashlib
import json
import pathlib
import pickle
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf

import forked_python
import tf_input
from signed import sign
from prepared import CLASSES, prepare_images
from tf_input.read_config import Augmentation

SIZE = (12, 16)
NUM_TRAIN = 93  # of the 110 images; a key's hash decides


@pytest.fixture
def copy(mixed, tmp_path) -> pathlib.Path:
    """A dataset to damage."""
    return pathlib.Path(shutil.copytree(mixed.directory, tmp_path / "copy"))


def images_and_labels(data: tf.data.Dataset) -> tuple[np.ndarray, np.ndarray]:
    images, labels = zip(*data.as_numpy_iterator())
    return np.concatenate(images), np.concatenate(labels)


def records(dataset: tf_input.PreparedDataset, split: str) -> list[tf.train.Example]:
    """In the order of the shards, read with no code of ours."""
    files = [str(dataset.directory / shard.name) for shard in dataset.manifest.splits[split]]
    return [tf.train.Example.FromString(record) for record in tf.data.TFRecordDataset(files).as_numpy_iterator()]


def stored(dataset: tf_input.PreparedDataset, split: str) -> tuple[list[np.ndarray], np.ndarray]:
    """Whole images and labels, in the order of the shards."""
    features = [record.features.feature for record in records(dataset, split)]
    images = [tf.io.decode_image(f["image"].bytes_list.value[0], channels=3).numpy() for f in features]
    return images, np.array([f["label"].int64_list.value[0] for f in features])


def names(images: np.ndarray, labels: np.ndarray) -> list[tuple[str, int]]:
    """Something that tells examples apart."""
    return [(hashlib.md5(image.tobytes()).hexdigest(), int(label)) for image, label in zip(images, labels)]


def test_what_it_says_of_itself(mixed):
    assert mixed.splits == ("train", "validation")
    assert mixed.class_names == tuple(sorted(CLASSES)) == mixed.manifest.label_names
    counts = [mixed.num_examples(split) for split in mixed.splits]
    assert counts == [NUM_TRAIN, sum(CLASSES.values()) - NUM_TRAIN]
    assert mixed.statistics == json.loads((mixed.directory / "statistics.json").read_text())
    assert isinstance(mixed, tf_input.PreparedDataset)


def test_the_size_of_all_images(mixed, uniform):
    assert (mixed.image_size, uniform.image_size) == (None, (24, 32))


def test_what_is_no_dataset_is_refused(copy):
    (copy / "source").mkdir(exist_ok=True)
    for name, parts in (("source", "no manifest.json.*--output"), ("missing/x", "does not exist.*--output")):
        with pytest.raises(FileNotFoundError, match=f"{name} is not a dataset: .*{parts}"):
            tf_input.open(copy / name)
    manifest = copy / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"format_version": 4', '"format_version": 7'))
    with pytest.raises(ValueError, match="format version 7 .*version 4"):
        tf_input.open(copy)


@pytest.mark.slow
def test_shapes_dtypes_and_cardinality(mixed):
    cases = [
        # batch_size, drop_remainder, batches, images in the last of them
        (10, False, 10, 3),
        (10, True, 9, 10),
        (93, False, 1, 93),
        (1000, False, 1, 93),
    ]
    for batch_size, drop_remainder, num_batches, num_last in cases:
        data = mixed.batches("train", batch_size=batch_size, image_size=SIZE, drop_remainder=drop_remainder)
        case = (batch_size, drop_remainder)
        assert int(data.cardinality()) == len(data) == num_batches, case
        static = batch_size if drop_remainder else None
        assert data.element_spec == (
            tf.TensorSpec((static, *SIZE, 3), tf.uint8),
            tf.TensorSpec((static,), tf.int64),
        ), case
        sizes = [len(labels) for _, labels in data]
        assert sizes == [batch_size] * (num_batches - 1) + [num_last], case


def test_one_integer_is_a_square(mixed):
    assert mixed.batches("train", batch_size=8, image_size=9).element_spec[0].shape[1:] == (9, 9, 3)


@pytest.mark.slow
def test_evaluation_reads_central_boxes_in_the_order_of_the_shards(mixed):
    for split, image_size in [("validation", SIZE), ("train", (70, 30))]:
        images, labels = images_and_labels(mixed.batches(split, batch_size=8, image_size=image_size, shuffle=False))
        complete, expected_labels = stored(mixed, split)
        np.testing.assert_array_equal(labels, expected_labels)
        for image, original in zip(images, complete, strict=True):
            # The short side is resized, then the centre is cropped: the other way round, but at full precision.
            scale = min(original.shape[0] / image_size[0], original.shape[1] / image_size[1])
            height, width = (round(side * scale) for side in image_size)
            top, left = (original.shape[0] - height) // 2, (original.shape[1] - width) // 2
            expected = tf.image.resize(original[top : top + height, left : left + width], image_size)
            assert np.abs(image - expected.numpy()).mean() < 2


def test_images_of_one_size_come_as_they_are_stored(uniform):
    complete, expected_labels = stored(uniform, "train")
    for image_size in (None, (24, 32)):
        images, labels = images_and_labels(uniform.batches("train", batch_size=8, image_size=image_size, shuffle=False))
        np.testing.assert_array_equal(images, complete)
        np.testing.assert_array_equal(labels, expected_labels)


def test_evaluation_repeats_itself(mixed):
    data = mixed.batches("validation", batch_size=5, image_size=SIZE)
    assert names(*images_and_labels(data)) == names(*images_and_labels(data))


@pytest.fixture(scope="module")
def in_order(mixed) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels of `train`, as they lie."""
    return images_and_labels(mixed.batches("train", batch_size=8, image_size=SIZE, shuffle=False))


@pytest.mark.slow
def test_training_has_each_example_once_an_epoch_and_another_order_each(mixed, in_order):
    expected = names(*in_order)
    assert len(set(expected)) == NUM_TRAIN
    data = mixed.batches("train", batch_size=8, image_size=SIZE, seed=0)
    epochs = [names(*images_and_labels(data)) for _ in range(2)]
    for epoch in epochs:
        assert sorted(epoch) == sorted(expected)
    assert len(set(map(tuple, [*epochs, expected]))) == 3


def epochs_digest(dataset: tf_input.PreparedDataset, **options) -> list[str]:
    """Two epochs, pixel by pixel."""
    data = dataset.batches("train", batch_size=8, image_size=SIZE, **options)
    return [hashlib.md5(b"".join(a.tobytes() for a in images_and_labels(data))).hexdigest() for _ in range(2)]


@pytest.fixture(scope="module")
def augmented(mixed) -> list[str]:
    """The digest of two augmented epochs of seed 1."""
    return epochs_digest(mixed, augment=True, seed=1)


@pytest.mark.slow
def test_one_seed_gives_the_same_epochs_and_another_one_others(mixed, augmented):
    assert epochs_digest(mixed, augment=True, seed=1) == augmented
    plain = [epochs_digest(mixed, seed=seed) for seed in (1, 1, None, None)]
    assert plain[0] == plain[1]
    digests = [augmented, epochs_digest(mixed, augment=True, seed=2), *plain[1:]]
    assert len({epoch for pair in digests for epoch in pair}) == 10


@pytest.mark.slow
def test_one_seed_gives_the_same_epochs_in_another_process(mixed, augmented):
    code = (
        f"import sys; sys.path[:0] = [{str(pathlib.Path(__file__).parent)!r}]\n"
        "import test_dataset, tf_input\n"
        f"print(*test_dataset.epochs_digest(tf_input.open({str(mixed.directory)!r}), augment=True, seed=1))"
    )
    assert forked_python.run("-c", code).stdout.split() == augmented


def test_augmentation_varies_pixels_and_keeps_labels(mixed, in_order):
    options = {"batch_size": 8, "image_size": SIZE, "shuffle": False, "seed": 0}
    data = mixed.batches("train", augment=True, **options)
    plain, labels = in_order
    epochs = [images_and_labels(data) for _ in range(2)]
    for images, augmented_labels in epochs:
        np.testing.assert_array_equal(augmented_labels, labels)
        assert images.dtype == np.uint8 and (images != plain).any(axis=(1, 2, 3)).mean() > 0.95
    assert (epochs[0][0] != epochs[1][0]).any(axis=(1, 2, 3)).mean() > 0.95


def test_augmentation_may_only_flip(uniform):
    options = {"batch_size": 8, "image_size": None, "shuffle": False, "seed": 0}
    plain, _ = images_and_labels(uniform.batches("train", **options))
    varied, _ = images_and_labels(uniform.batches("train", augment=Augmentation(1.0), **options))
    for image, flipped in zip(plain, varied, strict=True):
        assert min(np.abs(side - flipped.astype(int)).mean() for side in (image, image[:, ::-1])) < 8


@pytest.mark.slow
def test_images_without_stated_sizes_are_read_alike(in_order, augmented, tmp_path):
    unchecked = tf_input.open(prepare_images(tmp_path, "--check", "none", "--num_shards", "train=4,validation=1"))
    read = images_and_labels(unchecked.batches("train", batch_size=8, image_size=SIZE, shuffle=False))
    assert names(*read) == names(*in_order) and epochs_digest(unchecked, augment=True, seed=1) == augmented
    with pytest.raises(ValueError, match="image_size=None: .*--check=none"):
        unchecked.batches("train", batch_size=8)


def test_images_of_many_sizes_need_one(mixed):
    height, width = (mixed.statistics["images"][side] for side in ("height", "width"))
    actual = f"heights from {height['min']} to {height['max']} and widths from {width['min']} to {width['max']}"
    with pytest.raises(ValueError, match=f"image_size=None: images have {actual}"):
        mixed.batches("train", batch_size=8)


def test_an_unknown_split_is_refused_with_those_that_there_are(mixed):
    calls = [
        lambda: mixed.batches("test", batch_size=8, image_size=8),
        lambda: mixed.num_examples("test"),
        lambda: mixed.class_weight("test"),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="split='test'"):
            call()


def test_a_wrong_option_is_refused(mixed):
    with pytest.raises(ValueError, match="batch_size=0"):
        mixed.batches("train", batch_size=0, image_size=8)
    with pytest.raises(ValueError, match="drop_remainder leaves no batch of 99: train has 93 examples"):
        mixed.batches("train", batch_size=99, image_size=8, drop_remainder=True)
    with pytest.raises(TypeError, match="batchsize"):
        mixed.batches("train", batchsize=8)


def test_a_missing_or_truncated_shard_is_refused_by_name(copy):
    dataset = tf_input.open(copy)
    shard = dataset.manifest.splits["train"][2]
    path = copy / shard.name
    path.write_bytes(path.read_bytes()[:-1])
    message = f"{shard.name} has {shard.num_bytes - 1} bytes; manifest.json says {shard.num_bytes}"
    with pytest.raises(ValueError, match=message):
        dataset.batches("train", batch_size=8, image_size=8)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=f"{shard.name} is missing; manifest.json lists it"):
        dataset.batches("train", batch_size=8, image_size=8)
    assert len(dataset.batches("validation", batch_size=8, image_size=8)) == 3  # that one is whole


def test_damaged_statistics_are_refused_by_name(copy):
    (copy / "statistics.json").write_text("{")
    with pytest.raises(ValueError, match="copy/statistics.json has 1 bytes"):
        tf_input.open(copy).statistics


def test_class_weights_make_classes_count_the_same(mixed, copy):
    _, labels = stored(mixed, "train")
    counts = np.bincount(labels)
    weights = mixed.class_weight()
    assert list(weights) == [0, 1, 2] and all(isinstance(weight, float) for weight in weights.values())
    np.testing.assert_allclose([weights[label] * count for label, count in enumerate(counts)], NUM_TRAIN / 3)
    assert mixed.class_weight("validation") != weights

    statistics = json.loads((copy / "statistics.json").read_text())
    statistics["splits"]["train"]["label_counts"] = {"ant": 30, "bee": 0, "cow": 10}
    (copy / "statistics.json").write_text(json.dumps(statistics))
    with pytest.raises(ValueError, match="statistics.json has "):
        tf_input.open(copy).class_weight()
    sign(copy)
    assert tf_input.open(copy).class_weight() == {0: 40 / 60, 1: 0.0, 2: 2.0}


def small_model() -> keras.Model:
    layers = [
        keras.Input((*SIZE, 3), dtype="uint8"),
        keras.layers.Rescaling(1 / 255),
        keras.layers.Conv2D(4, 3, activation="relu"),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(len(CLASSES), activation="softmax"),
    ]
    model = keras.Sequential(layers)
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


@pytest.mark.slow
def test_keras_fits_evaluates_and_predicts(mixed):
    train = mixed.batches("train", batch_size=16, image_size=SIZE, augment=True, seed=0)
    valid = mixed.batches("validation", batch_size=5, image_size=SIZE)
    model = small_model()
    steps = []
    count = keras.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: steps.append(step))
    weights = mixed.class_weight()
    history = model.fit(train, validation_data=valid, epochs=2, class_weight=weights, callbacks=[count], verbose=0)
    assert steps == [*range(6), *range(6)]
    assert len(history.history["val_accuracy"]) == 2 and np.isfinite(history.history["loss"]).all()
    loss, accuracy = model.evaluate(valid, verbose=0)
    predicted = model.predict(valid, verbose=0)
    assert predicted.shape == (mixed.num_examples("validation"), len(CLASSES))
    _, labels = stored(mixed, "validation")  # predictions come in the order of the shards
    assert (predicted.argmax(axis=1) == labels).mean() == pytest.approx(accuracy)


def test_batches_are_pickled_as_what_they_are_made_of(mixed):
    """Another process has the same ones, from the same position on; what can't be made again says it."""
    options = {"batch_size": 16, "image_size": 8, "seed": 3}
    train = mixed.batches("train", **options)
    train.iterator_state.go_to(2, 1)
    copy = pickle.loads(pickle.dumps(train))
    assert copy.iterator_state.next == (2, 1)
    for (x, y), (other_x, other_y) in zip(train, copy):
        np.testing.assert_array_equal(x, other_x)
        np.testing.assert_array_equal(y, other_y)
    mixture = tf_input.mix({"a": (mixed, "train", 1)}, **options)
    (x, _), (other, _) = (next(iter(item)) for item in (mixture, pickle.loads(pickle.dumps(mixture))))
    np.testing.assert_array_equal(x, other)
    assert len(pickle.loads(pickle.dumps(mixed.as_numpy("train", **options)))) == len(train)
    with pytest.raises(TypeError, match="can't be pickled"):
        pickle.dumps(train.repeat())
