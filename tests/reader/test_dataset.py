"""Tests reading prepared datasets as in training."""

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
from signed import update_checksums
from prepared import CLASSES, prepare_images
from tf_input.read_config import Augmentation

SIZE = (12, 16)
NUM_TRAIN = 93  # the split of the 110 images depends on hashes of keys


@pytest.fixture
def dataset_copy(mixed, tmp_path) -> pathlib.Path:
    """Returns a copy of the dataset, which the test can corrupt."""
    return pathlib.Path(shutil.copytree(mixed.directory, tmp_path / "dataset_copy"))


def images_and_labels(data: tf.data.Dataset) -> tuple[np.ndarray, np.ndarray]:
    images, labels = zip(*data.as_numpy_iterator())
    return np.concatenate(images), np.concatenate(labels)


def records(dataset: tf_input.PreparedDataset, split: str) -> list[tf.train.Example]:
    """Returns the records of a split in shard order, read with TensorFlow."""
    files = [str(dataset.directory / shard.name) for shard in dataset.manifest.splits[split]]
    return [tf.train.Example.FromString(record) for record in tf.data.TFRecordDataset(files).as_numpy_iterator()]


def stored_examples(dataset: tf_input.PreparedDataset, split: str) -> tuple[list[np.ndarray], np.ndarray]:
    """Returns the complete images and the labels of a split in shard order."""
    features = [record.features.feature for record in records(dataset, split)]
    images = [tf.io.decode_image(f["image"].bytes_list.value[0], channels=3).numpy() for f in features]
    return images, np.array([f["label"].int64_list.value[0] for f in features])


def image_hashes(images: np.ndarray, labels: np.ndarray) -> list[tuple[str, int]]:
    """Returns a pair of an image hash and a label for each example."""
    return [(hashlib.md5(image.tobytes()).hexdigest(), int(label)) for image, label in zip(images, labels)]


def test_attributes_describe_the_dataset(mixed):
    assert mixed.splits == ("train", "validation")
    assert mixed.class_names == tuple(sorted(CLASSES)) == mixed.manifest.label_names
    counts = [mixed.num_examples(split) for split in mixed.splits]
    assert counts == [NUM_TRAIN, sum(CLASSES.values()) - NUM_TRAIN]
    assert mixed.statistics == json.loads((mixed.directory / "statistics.json").read_text())
    assert isinstance(mixed, tf_input.PreparedDataset)


def test_image_size_is_none_if_sizes_differ(mixed, uniform):
    assert (mixed.image_size, uniform.image_size) == (None, (24, 32))


def test_rejects_folders_without_a_dataset_and_other_versions(dataset_copy):
    (dataset_copy / "source").mkdir(exist_ok=True)
    for name, parts in (("source", "no manifest.json.*--output"), ("missing/x", "does not exist.*--output")):
        with pytest.raises(FileNotFoundError, match=f"{name} is not a dataset: .*{parts}"):
            tf_input.open(dataset_copy / name)
    manifest = dataset_copy / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"format_version": 4', '"format_version": 7'))
    with pytest.raises(ValueError, match="format version 7 .*version 4"):
        tf_input.open(dataset_copy)


@pytest.mark.slow
def test_batches_have_specs_and_cardinality(mixed):
    cases = [
        # batch_size, drop_remainder, number of batches, size of the last batch
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


def test_integer_image_size_is_a_square(mixed):
    assert mixed.batches("train", batch_size=8, image_size=9).element_spec[0].shape[1:] == (9, 9, 3)


@pytest.mark.slow
def test_evaluation_reads_center_crops_in_shard_order(mixed):
    for split, image_size in [("validation", SIZE), ("train", (70, 30))]:
        images, labels = images_and_labels(mixed.batches(split, batch_size=8, image_size=image_size, shuffle=False))
        complete, expected_labels = stored_examples(mixed, split)
        np.testing.assert_array_equal(labels, expected_labels)
        for image, original in zip(images, complete, strict=True):
            # The expected image is cropped before resizing, which gives similar pixels.
            scale = min(original.shape[0] / image_size[0], original.shape[1] / image_size[1])
            height, width = (round(side * scale) for side in image_size)
            top, left = (original.shape[0] - height) // 2, (original.shape[1] - width) // 2
            expected = tf.image.resize(original[top : top + height, left : left + width], image_size)
            assert np.abs(image - expected.numpy()).mean() < 2


def test_images_of_equal_size_are_returned_unchanged(uniform):
    complete, expected_labels = stored_examples(uniform, "train")
    for image_size in (None, (24, 32)):
        images, labels = images_and_labels(uniform.batches("train", batch_size=8, image_size=image_size, shuffle=False))
        np.testing.assert_array_equal(images, complete)
        np.testing.assert_array_equal(labels, expected_labels)


def test_evaluation_returns_the_same_batches_each_time(mixed):
    data = mixed.batches("validation", batch_size=5, image_size=SIZE)
    assert image_hashes(*images_and_labels(data)) == image_hashes(*images_and_labels(data))


@pytest.fixture(scope="module")
def ordered_examples(mixed) -> tuple[np.ndarray, np.ndarray]:
    """All images and labels of the split `train` in shard order."""
    return images_and_labels(mixed.batches("train", batch_size=8, image_size=SIZE, shuffle=False))


@pytest.mark.slow
def test_training_reads_each_example_once_in_a_new_order_per_epoch(mixed, ordered_examples):
    expected = image_hashes(*ordered_examples)
    assert len(set(expected)) == NUM_TRAIN
    data = mixed.batches("train", batch_size=8, image_size=SIZE, seed=0)
    epochs = [image_hashes(*images_and_labels(data)) for _ in range(2)]
    for epoch in epochs:
        assert sorted(epoch) == sorted(expected)
    assert len(set(map(tuple, [*epochs, expected]))) == 3


def epochs_digest(dataset: tf_input.PreparedDataset, **options) -> list[str]:
    """Returns a checksum of the pixels and labels for each of two epochs."""
    data = dataset.batches("train", batch_size=8, image_size=SIZE, **options)
    return [hashlib.md5(b"".join(a.tobytes() for a in images_and_labels(data))).hexdigest() for _ in range(2)]


@pytest.fixture(scope="module")
def augmented_digests(mixed) -> list[str]:
    """Checksums of two epochs with augmentation and seed 1."""
    return epochs_digest(mixed, augment=True, seed=1)


@pytest.mark.slow
def test_epochs_are_determined_by_the_seed(mixed, augmented_digests):
    assert epochs_digest(mixed, augment=True, seed=1) == augmented_digests
    plain = [epochs_digest(mixed, seed=seed) for seed in (1, 1, None, None)]
    assert plain[0] == plain[1]
    digests = [augmented_digests, epochs_digest(mixed, augment=True, seed=2), *plain[1:]]
    assert len({epoch for pair in digests for epoch in pair}) == 10


@pytest.mark.slow
def test_seed_determines_epochs_in_other_processes(mixed, augmented_digests):
    code = (
        f"import sys; sys.path[:0] = [{str(pathlib.Path(__file__).parent)!r}]\n"
        "import test_dataset, tf_input\n"
        f"print(*test_dataset.epochs_digest(tf_input.open({str(mixed.directory)!r}), augment=True, seed=1))"
    )
    assert forked_python.run("-c", code).stdout.split() == augmented_digests


def test_augmentation_varies_pixels_and_keeps_labels(mixed, ordered_examples):
    options = {"batch_size": 8, "image_size": SIZE, "shuffle": False, "seed": 0}
    data = mixed.batches("train", augment=True, **options)
    plain, labels = ordered_examples
    epochs = [images_and_labels(data) for _ in range(2)]
    for images, augmented_labels in epochs:
        np.testing.assert_array_equal(augmented_labels, labels)
        assert images.dtype == np.uint8 and (images != plain).any(axis=(1, 2, 3)).mean() > 0.95
    assert (epochs[0][0] != epochs[1][0]).any(axis=(1, 2, 3)).mean() > 0.95


def test_augmentation_can_be_limited_to_flips(uniform):
    options = {"batch_size": 8, "image_size": None, "shuffle": False, "seed": 0}
    plain, _ = images_and_labels(uniform.batches("train", **options))
    varied, _ = images_and_labels(uniform.batches("train", augment=Augmentation(1.0), **options))
    for image, flipped in zip(plain, varied, strict=True):
        assert min(np.abs(side - flipped.astype(int)).mean() for side in (image, image[:, ::-1])) < 8


@pytest.mark.slow
def test_unchecked_datasets_are_read_like_checked_ones(ordered_examples, augmented_digests, tmp_path):
    unchecked = tf_input.open(prepare_images(tmp_path, "--check", "none", "--num_shards", "train=4,validation=1"))
    read = images_and_labels(unchecked.batches("train", batch_size=8, image_size=SIZE, shuffle=False))
    assert (
        image_hashes(*read) == image_hashes(*ordered_examples)
        and epochs_digest(unchecked, augment=True, seed=1) == augmented_digests
    )
    with pytest.raises(ValueError, match="image_size=None: .*--check=none"):
        unchecked.batches("train", batch_size=8)


def test_images_of_different_sizes_need_image_size(mixed):
    height, width = (mixed.statistics["images"][side] for side in ("height", "width"))
    actual = f"heights from {height['min']} to {height['max']} and widths from {width['min']} to {width['max']}"
    with pytest.raises(ValueError, match=f"image_size=None: images have {actual}"):
        mixed.batches("train", batch_size=8)


def test_rejects_unknown_split(mixed):
    calls = [
        lambda: mixed.batches("test", batch_size=8, image_size=8),
        lambda: mixed.num_examples("test"),
        lambda: mixed.class_weight("test"),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="split='test'"):
            call()


def test_rejects_invalid_options(mixed):
    with pytest.raises(ValueError, match="batch_size=0"):
        mixed.batches("train", batch_size=0, image_size=8)
    with pytest.raises(ValueError, match="drop_remainder.* 99.* 93 examples"):
        mixed.batches("train", batch_size=99, image_size=8, drop_remainder=True)
    with pytest.raises(TypeError, match="batchsize"):
        mixed.batches("train", batchsize=8)


def test_error_names_missing_or_truncated_shard(dataset_copy):
    dataset = tf_input.open(dataset_copy)
    shard = dataset.manifest.splits["train"][2]
    path = dataset_copy / shard.name
    path.write_bytes(path.read_bytes()[:-1])
    message = f"{shard.name} has {shard.num_bytes - 1} bytes; manifest.json says {shard.num_bytes}"
    with pytest.raises(ValueError, match=message):
        dataset.batches("train", batch_size=8, image_size=8)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=f"{shard.name} is missing.*manifest.json"):
        dataset.batches("train", batch_size=8, image_size=8)
    assert len(dataset.batches("validation", batch_size=8, image_size=8)) == 3  # the other split is complete


def test_error_names_corrupt_statistics(dataset_copy):
    (dataset_copy / "statistics.json").write_text("{")
    with pytest.raises(ValueError, match="copy/statistics.json has 1 bytes"):
        tf_input.open(dataset_copy).statistics


def test_class_weights_balance_classes(mixed, dataset_copy):
    _, labels = stored_examples(mixed, "train")
    counts = np.bincount(labels)
    weights = mixed.class_weight()
    assert list(weights) == [0, 1, 2] and all(isinstance(weight, float) for weight in weights.values())
    np.testing.assert_allclose([weights[label] * count for label, count in enumerate(counts)], NUM_TRAIN / 3)
    assert mixed.class_weight("validation") != weights

    statistics = json.loads((dataset_copy / "statistics.json").read_text())
    statistics["splits"]["train"]["label_counts"] = {"ant": 30, "bee": 0, "cow": 10}
    (dataset_copy / "statistics.json").write_text(json.dumps(statistics))
    with pytest.raises(ValueError, match="statistics.json has "):
        tf_input.open(dataset_copy).class_weight()
    update_checksums(dataset_copy)
    assert tf_input.open(dataset_copy).class_weight() == {0: 40 / 60, 1: 0.0, 2: 2.0}


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
def test_keras_trains_evaluates_and_predicts(mixed):
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
    _, labels = stored_examples(mixed, "validation")  # predictions are in shard order
    assert (predicted.argmax(axis=1) == labels).mean() == pytest.approx(accuracy)


def test_batches_can_be_pickled(mixed):
    """Unpickled batches start at the iterator state of the pickled batches. Repeated datasets cannot be pickled."""
    options = {"batch_size": 16, "image_size": 8, "seed": 3}
    train = mixed.batches("train", **options)
    train.iterator_state.go_to(2, 1)
    unpickled = pickle.loads(pickle.dumps(train))
    assert unpickled.iterator_state.next == (2, 1)
    for (x, y), (other_x, other_y) in zip(train, unpickled):
        np.testing.assert_array_equal(x, other_x)
        np.testing.assert_array_equal(y, other_y)
    mixture = tf_input.mix({"a": (mixed, "train", 1)}, **options)
    (x, _), (other, _) = (next(iter(batches)) for batches in (mixture, pickle.loads(pickle.dumps(mixture))))
    np.testing.assert_array_equal(x, other)
    arrays = mixed.as_numpy("train", **options)
    for _ in zip(range(3), batches := iter(arrays)):
        pass
    copy = pickle.loads(pickle.dumps(arrays))  # in the middle of an epoch
    assert copy.iterator_state.state_dict() == arrays.iterator_state.state_dict() and len(copy) == len(train)
    assert [labels.tolist() for _, labels in copy] == [labels.tolist() for _, labels in batches]
    with pytest.raises(TypeError, match="can't be pickled"):
        pickle.dumps(train.repeat())


def test_pickle_contains_the_drawn_seed(mixed):
    options = {"batch_size": 16, "image_size": 8, "shuffle": "exact", "augment": True}
    for batches in (
        mixed.as_numpy("train", **options),
        tf_input.mix({"a": (mixed, "train", 1)}, **options),
        tf_input.Sequence(mixed, "train", **options),
        tf_input.Sequence(mixed, "train", tf_input.ReadConfig(**options)),
    ):
        copy = pickle.loads(pickle.dumps(batches))
        assert np.array_equal(next(iter(batches))[0], next(iter(copy))[0])
