"""Tests datasets with Keras callbacks, steps per epoch, example weights, training loops and saved models."""

import collections
import concurrent.futures
import functools
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_input
from beam_pipelines.__main__ import main
from made_sources import NUM, ROWS, SIDE, write_jsonl
from tf_input.decoding.layers import augmentation_layer
from tf_input.read_config import Augmentation
from resumed import batches_from

NUM_CLASSES = {"weather": 2, "ground": 3}
NUM_VALID = sum(row["where"] == "val" for row in ROWS)
NUM_TRAIN = NUM - NUM_VALID
BATCH_SIZE, NUM_BATCHES = 4, NUM_TRAIN // 4
ONE_TARGET = {"batch_size": BATCH_SIZE, "image_size": None, "seed": 5, "targets": "ground"}
# The feature `count` is both x and y, and differs for all examples, so that batches can be compared.
COUNTED = {"batch_size": BATCH_SIZE, "seed": 5, "inputs": "count", "targets": "ground"}


@pytest.fixture(scope="module")
def flowers(tmp_path_factory) -> tf_input.PreparedDataset:
    """Returns a dataset of small images in two splits. Each image has two labels."""
    return prepare(tmp_path_factory, "--weight_column=")


@pytest.fixture(scope="module")
def weighted(tmp_path_factory) -> tf_input.PreparedDataset:
    """Returns the dataset `flowers` with a weight for each image."""
    return prepare(tmp_path_factory)


def prepare(tmp_path_factory, *arguments: str) -> tf_input.PreparedDataset:
    root = tmp_path_factory.mktemp("around")
    source = root / "in" / write_jsonl(root / "in")
    options = ["--label=weather", "--label=ground", "--feature=count:integer", *arguments]
    options += ["--split_column=where", "--num_shards=train=2,validation=1"]
    assert main(["prepare", "--input", str(source), "--output", str(root / "out"), *options]) == 0
    return tf_input.open(root / "out")


@functools.cache
def make_batches(flowers: tf_input.PreparedDataset, split: str, **options) -> tf.data.Dataset:
    return flowers.batches(split, **options)


def first_epoch_batches(flowers: tf_input.PreparedDataset, split: str, **options) -> tf.data.Dataset:
    """Returns batches that start at epoch 0. TensorFlow traces the input pipeline only once for all tests."""
    data = make_batches(flowers, split, **options)
    data.iterator_state.go_to(0)
    return data


def read_counts(data: tf.data.Dataset) -> list[list[int]]:
    """Iterates once over the batches and returns the inputs of each batch as a list."""
    return [x.tolist() for x, *_ in data.as_numpy_iterator()]


def dense(num: int, **options) -> keras.layers.Dense:
    return keras.layers.Dense(num, kernel_initializer=keras.initializers.GlorotUniform(seed=1), **options)


def linear_model() -> keras.Model:
    """Returns an untrained model. TensorFlow traces the model only once for all tests."""
    model, values = make_traced_model()
    for variable, value in zip([*model.variables, *model.optimizer.variables], values, strict=True):
        variable.assign(value)
    return model


@functools.cache
def make_traced_model() -> tuple[keras.Model, list[np.ndarray]]:
    model = make_model(keras.layers.Rescaling(1 / 255))
    return model, [variable.numpy() for variable in (*model.variables, *model.optimizer.variables)]


def make_model(*first: keras.layers.Layer) -> keras.Model:
    model = keras.Sequential([keras.Input((SIDE, SIDE, 3), dtype="uint8"), *first, keras.layers.Flatten(), dense(3)])
    model.compile(
        keras.optimizers.SGD(0.01),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[keras.metrics.SparseCategoricalAccuracy("accuracy")],
        jit_compile=False,
    )
    model.optimizer.build(model.trainable_variables)
    return model


class Recorder(keras.Model):
    """A model that records the inputs of each training step and has no trainable weights."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = []
        self.compile(run_eagerly=True)

    def call(self, counts: tf.Tensor) -> tf.Tensor:
        return counts

    def train_step(self, data: tuple[tf.Tensor, tf.Tensor]) -> dict[str, tf.Tensor]:
        self.steps.append(data[0].numpy().tolist())
        return {"loss": tf.constant(0.0)}


def logged(folder: pathlib.Path, tag: str) -> dict[int, float]:
    """Returns the values of a tag in TensorBoard logs, ordered by epoch."""
    actual = {}
    for path in folder.glob("events.*"):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            actual |= {event.step: float(tf.make_ndarray(v.tensor)) for v in event.summary.value if v.tag == tag}
    return actual


@pytest.mark.slow
def test_tensorboard_shows_each_epoch(flowers, tmp_path):
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    train, valid = (first_epoch_batches(flowers, split, **ONE_TARGET) for split in ("train", "validation"))
    board = keras.callbacks.TensorBoard(tmp_path, write_graph=False)
    history = linear_model().fit(train, validation_data=valid, epochs=2, callbacks=[board], verbose=0).history
    for split, name in (("train", "loss"), ("validation", "val_loss")):
        assert logged(tmp_path / split, "epoch_loss") == pytest.approx(dict(enumerate(history[name])), rel=1e-5)


def test_callbacks_can_be_combined_in_one_fit(flowers, tmp_path):
    patience, best = 2, tmp_path / "best.keras"
    train, valid = (first_epoch_batches(flowers, split, **ONE_TARGET) for split in ("train", "validation"))
    model = linear_model()
    callbacks = [
        keras.callbacks.LearningRateScheduler(lambda epoch: 0.01 if epoch < 3 else 0.0),
        keras.callbacks.EarlyStopping("val_loss", patience=patience, restore_best_weights=True),
        keras.callbacks.ModelCheckpoint(best, "val_loss", save_best_only=True),
        tf_input.BackupAndRestore(tmp_path / "backup", train),
    ]
    history = model.fit(train, validation_data=valid, epochs=20, callbacks=callbacks, verbose=0)
    losses = history.history["val_loss"]
    assert len(losses) == int(np.argmin(losses)) + patience + 1 <= 3 + patience
    assert model.evaluate(valid, verbose=0)[0] == pytest.approx(min(losses), rel=1e-5)
    assert keras.saving.load_model(best).evaluate(valid, verbose=0)[0] == pytest.approx(min(losses), rel=1e-5)
    assert not list((tmp_path / "backup").glob("*.npz"))  # Training is complete, so no checkpoint is left.
    assert train.iterator_state.next == (len(losses), 0)


def test_steps_per_epoch_continue_through_the_data(flowers):
    complete = first_epoch_batches(flowers, "train", **COUNTED)
    expected = [batch for _ in range(3) for batch in read_counts(complete)]
    assert len(expected) == 3 * NUM_BATCHES and len({tuple(batch) for batch in expected}) > NUM_BATCHES
    cases = [
        # Columns: whether the dataset repeats, steps per epoch, epochs.
        (False, NUM_BATCHES // 2, 4),
        (True, NUM_BATCHES - 1, 3),
        (True, NUM_BATCHES + 2, 2),
    ]
    for repeats, steps, epochs in cases:
        train = first_epoch_batches(flowers, "train", **COUNTED)
        model = Recorder()
        model.fit(train.repeat() if repeats else train, steps_per_epoch=steps, epochs=epochs, verbose=0)
        assert model.steps == expected[: steps * epochs], (repeats, steps, epochs)


def test_epoch_ends_with_the_data_if_steps_do_not_divide_it(flowers):
    model, ended = Recorder(), []
    count = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: ended.append(len(model.steps)))
    train = first_epoch_batches(flowers, "train", **COUNTED)
    with pytest.warns(UserWarning, match="ran out of data"):
        model.fit(train, steps_per_epoch=NUM_BATCHES - 1, epochs=3, callbacks=[count], verbose=0)
    assert ended == [NUM_BATCHES - 1, NUM_BATCHES, 2 * NUM_BATCHES - 1]
    train.iterator_state.go_to(0)
    assert model.steps == (read_counts(train) + read_counts(train))[: ended[-1]]


def test_evaluation_and_prediction_respect_steps(flowers):
    valid = flowers.batches("validation", **{**ONE_TARGET, "batch_size": 3})
    assert len(valid) == 2 and NUM_VALID == 4
    model = linear_model()
    complete, first = model.predict(valid, verbose=0), model.predict(valid, steps=1, verbose=0)
    np.testing.assert_allclose(first, complete[:3], rtol=1e-5, atol=1e-4)
    twice = model.predict(valid.repeat(), steps=4, verbose=0)
    np.testing.assert_allclose(twice, np.concatenate([complete, complete]), rtol=1e-5, atol=1e-4)
    labels = np.array([example["ground"] for example in flowers["validation"]])
    losses = -np.log((np.exp(complete) / np.exp(complete).sum(axis=1, keepdims=True))[np.arange(NUM_VALID), labels])
    assert model.evaluate(valid, verbose=0)[0] == pytest.approx(losses.mean(), rel=1e-4)
    assert model.evaluate(valid, steps=1, verbose=0)[0] == pytest.approx(losses[:3].mean(), rel=1e-4)
    assert model.evaluate(valid.repeat(2), verbose=0)[0] == pytest.approx(losses.mean(), rel=1e-4)


@pytest.mark.parametrize("options", [{"drop_remainder": True}, {"cache_in_memory": 1 << 20}])
def test_splits_with_equal_structure_share_one_graph(flowers, options):
    """Both splits use the same graph, even if only one split is cached in memory."""
    train = flowers.batches("train", **{**ONE_TARGET, "batch_size": 3}, **{**options, "cache_in_memory": 0})
    valid = flowers.batches("validation", **{**ONE_TARGET, "batch_size": 3}, **options)
    assert train.element_spec == valid.element_spec

    @tf.function
    def count_labels(batches):
        counts = tf.zeros([3], tf.int32)
        for _, labels in batches:
            counts += tf.math.bincount(tf.cast(labels, tf.int32), minlength=3, maxlength=3)
        return counts

    for data, split, num in ((train, "train", NUM_TRAIN), (valid, "validation", NUM_VALID), (train, "train", NUM_TRAIN)):
        expected = np.bincount([example["ground"] for example in flowers[split]], minlength=3)
        actual = count_labels(iter(data)).numpy()
        if options.get("drop_remainder"):
            assert (actual <= expected).all() and actual.sum() == num // 3 * 3
        else:
            np.testing.assert_array_equal(actual, expected)
    assert count_labels.experimental_get_tracing_count() == 1

    rotations = tf.data.Dataset.from_tensor_slices(np.array([0, 1, 0], np.int64))
    mixed = tf.data.Dataset.choose_from_datasets([train, valid], rotations)
    assert mixed.element_spec == train.element_spec and len(list(mixed)) == 3


@pytest.mark.parametrize("class_weight", [None, "balanced"])
def test_weights_apply_to_each_of_several_outputs(weighted, class_weight):
    """For each output, Keras multiplies the loss of each example by its weight and averages the products."""
    image = keras.Input((SIDE, SIDE, 3), dtype="uint8")
    hidden = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(image))
    model = keras.Model(image, {name: dense(n, activation="softmax", name=name)(hidden) for name, n in NUM_CLASSES.items()})
    model.compile(
        keras.optimizers.SGD(0.0),
        dict.fromkeys(NUM_CLASSES, "sparse_categorical_crossentropy"),
        weighted_metrics={name: ["accuracy"] for name in NUM_CLASSES},
        run_eagerly=True,
    )
    read = {"batch_size": NUM, "image_size": None, "seed": 0, "class_weight": class_weight}
    data = {split: weighted.batches(split, **read) for split in ("train", "validation")}
    history = model.fit(data["train"], validation_data=data["validation"], verbose=0).history
    for split, prefix in (("train", ""), ("validation", "val_")):
        examples, loss = list(weighted[split]), 0.0
        predicted = model(np.stack([example["image"] for example in examples]))
        for name, num_classes in NUM_CLASSES.items():
            labels = np.array([example[name] for example in examples])
            weights = np.array([example["weight"] for example in examples])
            if class_weight:
                weights = weights * (len(labels) / num_classes / np.bincount(labels, minlength=num_classes))[labels]
            loss += (-np.log(predicted[name].numpy()[np.arange(len(labels)), labels]) * weights).mean()
            accuracy = ((predicted[name].numpy().argmax(axis=1) == labels) * weights).sum() / weights.sum()
            assert history[f"{prefix}{name}_accuracy"] == [pytest.approx(accuracy, rel=1e-4)]
        assert history[f"{prefix}loss"] == [pytest.approx(loss, rel=1e-4)]


def test_each_loop_over_numpy_batches_is_an_epoch(weighted):
    options = {"batch_size": 5, "image_size": None, "seed": 3}
    train, same = weighted.as_numpy("train", **options), weighted.batches("train", **options)
    assert len(train) == len(same) == 4
    seen = []
    for _ in range(2):
        epoch = []
        for (images, labels, weights), expected in zip(train, same.as_numpy_iterator(), strict=True):
            assert images.dtype == np.uint8 and isinstance(images, np.ndarray) and set(labels) == set(NUM_CLASSES)
            tf.nest.map_structure(np.testing.assert_array_equal, (images, labels, weights), expected)
            epoch.append(images)
        assert [len(images) for images in epoch] == [5, 5, 5, 1]
        seen.append(np.concatenate(epoch).tobytes())
    assert seen[0] != seen[1]
    for images, labels, weights in train:
        break  # An incomplete iteration does not count as an epoch.
    unused = iter(train)
    (x, *_), *_ = train
    np.testing.assert_array_equal(x, next(batches_from(weighted.batches("train", **options), 2).as_numpy_iterator())[0])
    assert next(unused)[0].shape == x.shape


def test_threads_can_share_an_epoch_of_numpy_batches(flowers):
    train, same = flowers.as_numpy("train", **COUNTED), first_epoch_batches(flowers, "train", **COUNTED)
    for expected in [sorted(read_counts(same)) for _ in range(2)]:
        iterator = iter(train)
        first = next(iterator)  # Another iterator does not change this iterator.
        next(iter(train))
        with concurrent.futures.ThreadPoolExecutor(8) as threads:
            rest = [batch for part in threads.map(lambda _: list(iterator), range(8)) for batch in part]
        assert sorted(x.tolist() for x, *_ in [first, *rest]) == expected
        with pytest.raises(StopIteration):
            next(iterator)


def test_keras_fits_generator_over_numpy_batches(flowers):
    """Keras accepts no Python iterables except infinite generators."""
    train = flowers.as_numpy("train", **ONE_TARGET)

    def forever():
        while True:
            yield from train

    history = linear_model().fit(forever(), steps_per_epoch=len(train), epochs=2, verbose=0).history
    expected = linear_model().fit(first_epoch_batches(flowers, "train", **ONE_TARGET), epochs=2, verbose=0).history
    assert history["loss"] == pytest.approx(expected["loss"], rel=1e-4) and len(set(history["loss"])) == 2


def test_train_on_batch_accepts_numpy_batches(flowers):
    model = linear_model()
    train = flowers.as_numpy("train", **ONE_TARGET)
    losses = [[model.train_on_batch(images, labels)[0] for images, labels in train] for _ in range(2)]
    weights, other = model.get_weights(), linear_model()
    history = other.fit(first_epoch_batches(flowers, "train", **ONE_TARGET), epochs=2, verbose=0).history
    for weight, expected in zip(weights, other.get_weights(), strict=True):
        np.testing.assert_allclose(weight, expected, rtol=1e-4, atol=1e-6)
    assert [len(epoch) for epoch in losses] == [NUM_BATCHES] * 2 and len(history["loss"]) == 2


def test_python_loops_over_batches(flowers):
    expected = collections.Counter(example["ground"] for example in flowers["train"])
    train, actual = first_epoch_batches(flowers, "train", **ONE_TARGET), collections.Counter()
    for images, labels in train:
        assert isinstance(images, tf.Tensor) and images.dtype == tf.uint8 and images.shape == (BATCH_SIZE, SIDE, SIDE, 3)
        actual.update(labels.numpy().tolist())
    assert actual == expected
    steps = [step for step, (images, labels) in enumerate(train)]
    assert steps == list(range(len(train)))
    images, labels = zip(*train)
    assert len(images) == len(labels) == NUM_BATCHES
    unbatched = train.unbatch().take(3)
    assert unbatched.element_spec == (tf.TensorSpec((SIDE, SIDE, 3), tf.uint8), tf.TensorSpec((), tf.int64))
    assert len(list(unbatched)) == 3


def test_model_with_both_layers_can_be_saved_and_trained_further(flowers, tmp_path):
    augmentation = Augmentation(brightness=0.2, saturation=0.2)
    model = make_model(augmentation_layer(augmentation, seed=2), flowers.normalization_layer())
    train, valid = (first_epoch_batches(flowers, split, **ONE_TARGET) for split in ("train", "validation"))
    model.fit(train, validation_data=valid, epochs=2, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.evaluate(valid, verbose=0) == pytest.approx(model.evaluate(valid, verbose=0), rel=1e-5)
    # From here on, both models read the same batches with the same random draws, whose number Keras does not save.
    loaded.layers[0].seed_generator.state.assign(model.layers[0].seed_generator.state)
    again = flowers.batches("train", **ONE_TARGET)
    again.iterator_state.go_to(2)
    losses = [trained.fit(data, verbose=0).history["loss"] for trained, data in ((model, train), (loaded, again))]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
