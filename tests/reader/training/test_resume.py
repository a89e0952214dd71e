"""Tests that interrupted training resumes with the same batches and weights as uninterrupted training."""

import functools
import hashlib
import os
import pathlib
import shutil
import signal
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import resumable_training
import tf_input
from forked_python import ForkedPython
from prepared import mixed_images, prepare_images
from resumable_training import BATCH_SIZE, EPOCHS, SAVE_FREQ, SIZE, LoggedModel, make_model, train
from tf_input.epochs.iterator_state import IteratorState
from tf_input.pipeline import input_pipeline

pytestmark = pytest.mark.usefixtures("reset_tensorflow_seed")

NUM_BATCHES = 12
ORDER = "window"
OPTIONS = {"batch_size": BATCH_SIZE, "image_size": SIZE, "seed": 0}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> tf_input.PreparedDataset:
    return tf_input.open(mixed_images(tmp_path_factory))


@pytest.fixture(scope="module")
def trained(dataset, tmp_path_factory) -> pathlib.Path:
    """Trains for one epoch and returns the folder that contains the checkpoint."""
    folder = tmp_path_factory.mktemp("trained")
    fit(dataset, folder, epochs=1, delete_checkpoint=False)
    return folder


@pytest.fixture
def resumable(trained, tmp_path) -> pathlib.Path:
    """Returns a copy of the folder `trained` for tests that resume the training run."""
    return shutil.copytree(trained, tmp_path / "begun")


class Interrupt(keras.callbacks.Callback):
    """Raises KeyboardInterrupt at a given epoch and batch."""

    def __init__(self, epoch: int, batch: int) -> None:
        super().__init__()
        self.at, self.epoch = (epoch, batch), 0

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        if (self.epoch, batch) == self.at:
            raise KeyboardInterrupt


class StopAfterEpoch(keras.callbacks.Callback):
    """Stops training after the first epoch."""

    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = True


def read_lines(path: pathlib.Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def kill_during_an_epoch(dataset: tf_input.PreparedDataset, folder: pathlib.Path) -> None:
    """Trains in a new process and kills the process in the middle of the second epoch."""
    num_steps = NUM_BATCHES + SAVE_FREQ + 2
    with ForkedPython(resumable_training.__file__, dataset.directory, folder, ORDER, num_steps) as running:
        try:
            assert running.stdout.readline() == "held\n"
            assert len(read_lines(folder / "log")) == num_steps
        finally:
            running.kill()
    assert running.returncode == -signal.SIGKILL


@pytest.mark.slow(6)
def test_killed_training_resumes_with_the_same_batches_and_weights(dataset, tmp_path):
    directory = str(dataset.directory)
    kill_during_an_epoch(dataset, tmp_path / "killed")
    weights, history = train(directory, tmp_path / "complete", ORDER)
    expected, killed = read_lines(tmp_path / "complete" / "log"), read_lines(tmp_path / "killed" / "log")
    assert len(set(expected)) == len(expected) == EPOCHS * NUM_BATCHES
    assert killed == expected[: len(killed)] and len(killed) < 2 * NUM_BATCHES
    (checkpoint,) = (tmp_path / "killed" / "backups").glob("*.npz")
    _, epoch, step = checkpoint.stem.split("-")
    assert epoch == "00000001" and 0 < int(step) <= len(killed) - NUM_BATCHES

    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        resumed_weights, resumed_history = train(directory, tmp_path / "killed", ORDER)
    assert not [warning for warning in raised if "ran out of data" in str(warning.message)]
    resumed = read_lines(tmp_path / "killed" / "log")[len(killed) :]
    assert resumed == expected[NUM_BATCHES + int(step) :]
    for weight, expected_weight in zip(resumed_weights, weights):
        np.testing.assert_array_equal(weight, expected_weight)
    assert resumed_history["loss"][1:] == history["loss"][2:]  # The first loss covers only the remaining batches.
    assert not list((tmp_path / "killed" / "backups").iterdir())  # A completed training run deletes its checkpoints.


@functools.cache
def make_batches(dataset: tf_input.PreparedDataset, split: str, **options) -> tf.data.Dataset:
    return dataset.batches(split, **{**OPTIONS, **options})


def first_epoch_batches(dataset: tf_input.PreparedDataset, split: str = "train", **options) -> tf.data.Dataset:
    """Returns batches that start at epoch 0. TensorFlow traces the input pipeline only once for all tests."""
    data = make_batches(dataset, split, **options)
    data.iterator_state.go_to(0)
    return data


@functools.cache
def make_traced_model(steps_per_execution: int) -> tuple[LoggedModel, list[np.ndarray]]:
    """Returns a model and its initial variables. TensorFlow traces the steps of the model only once for all tests."""
    model = make_model(pathlib.Path(os.devnull))
    model.optimizer.build(model.trainable_variables)
    model.steps_per_execution = steps_per_execution
    return model, [variable.numpy() for variable in all_variables(model)]


def all_variables(model: LoggedModel) -> list[keras.Variable]:
    return [*model.variables, *model.optimizer.variables]


def untrained_model(log: pathlib.Path, steps_per_execution: int = 1) -> LoggedModel:
    """Resets the cached model to its initial variables and returns the model."""
    model, values = make_traced_model(steps_per_execution)
    for variable, value in zip(all_variables(model), values, strict=True):
        variable.assign(value)
    keras.utils.set_random_seed(0)
    log.parent.mkdir(exist_ok=True)
    model.log = log
    return model


def fit(dataset, folder, train=None, epochs=EPOCHS, steps_per_execution=1, callbacks=(), **options):
    train = first_epoch_batches(dataset) if train is None else train
    model = untrained_model(folder / "log", steps_per_execution)
    checkpoint = tf_input.BackupAndRestore(folder / "backups", train, **options)
    try:
        model.fit(train, epochs=epochs, callbacks=[checkpoint, *callbacks], shuffle=False, verbose=0)
    except KeyboardInterrupt:
        pass
    return model


def list_checkpoints(folder: pathlib.Path) -> list[tuple[int, int]]:
    return sorted(tuple(map(int, path.stem.split("-")[1:])) for path in (folder / "backups").iterdir())


def test_checkpoints_follow_save_freq_keep_and_delete(dataset, tmp_path):
    cases = [
        # Columns: options, epoch and batch of the interrupt, expected checkpoints.
        ({}, (0, 9), None),
        ({"save_freq": 5, "keep": 3}, (1, 6), [(0, 10), (1, 0), (1, 5)]),
        ({"save_freq": 12, "delete_checkpoint": False}, (9, 9), [(2, 0)]),
    ]
    for number, (options, at, expected) in enumerate(cases):
        folder = tmp_path / str(number)
        fit(dataset, folder, epochs=2, callbacks=[Interrupt(*at)], **options)
        assert (list_checkpoints(folder) if (folder / "backups").exists() else None) == expected, options


def test_fingerprint_is_equal_for_options_that_change_no_batch(dataset):
    """Training can resume if options are replaced by equivalent options, such as explicit default values."""
    same = {
        "channels": {"channels": 3},
        "size": {"image_size": {"image": SIZE}},
        "size as a list": {"image_size": [*SIZE]},
        "all examples": {"select": None},
        "targets": {"targets": ("label",)},
        "inputs": {"inputs": "image"},
        "fit": {"fit": "crop"},
        "hosts": {"hosts": (2, 1)},
        "memory": {"cache_in_memory": 0},
    }
    other = {"channels": {"channels": 1}, "size": {"image_size": 8}, "fraction of the examples": {"select": "width > 0"}, "targets": {"targets": ()}, "fit": {"fit": "pad"}}
    options = {**OPTIONS, "image_size": SIZE, "augment": False}
    here = dataset.batches("train", **options).iterator_state.fingerprint

    def is_same(more: dict) -> bool:
        """Returns whether the changed options give the same fingerprint as the original options."""
        return tf_input.Sequence(dataset, "train", **{**options, **more}).iterator_state.fingerprint == here

    actual = {case: is_same(more) for case, more in same.items()}
    assert all(actual.values()), actual
    actual = {case: is_same(more) for case, more in other.items()}
    assert not any(actual.values()), actual


def test_fingerprint_is_equal_for_numpy_and_python_numbers(dataset):
    """If fingerprints truncated numbers below 1 to integers, unequal options would have equal fingerprints."""
    cases = {
        "augment": lambda number: tf_input.Augmentation(hue=number),
        "class_weight": lambda number: {0: number},
        "class_weight of labels of NumPy": lambda number: {np.int64(0): number},
        "class_weight of a target": lambda number: {"label": {np.int64(0): number}},
    }
    for case, option in cases.items():

        def fingerprint(number: float) -> dict:
            options = {**OPTIONS, "image_size": SIZE, case.partition(" ")[0]: option(number)}
            return tf_input.Sequence(dataset, "train", **options).iterator_state.fingerprint

        assert fingerprint(np.float32(0.25)) == fingerprint(0.25), case
        assert fingerprint(np.float32(0.25)) != fingerprint(np.float32(0.5)), case


@pytest.mark.slow(2)
def test_resume_with_steps_per_execution(dataset, tmp_path):
    """The test also covers resuming with an exact shuffle."""

    def fit_exact(folder: str, *callbacks: keras.callbacks.Callback) -> None:
        data = first_epoch_batches(dataset, shuffle="exact", augment=True)
        fit(dataset, tmp_path / folder, data, 2, 3, callbacks, save_freq=4)

    fit_exact("complete")
    fit_exact("parts", Interrupt(1, 9))
    assert list_checkpoints(tmp_path / "parts") == [(1, 6)]
    before = len(read_lines(tmp_path / "parts" / "log"))
    fit_exact("parts")
    assert read_lines(tmp_path / "parts" / "log")[before:] == read_lines(tmp_path / "complete" / "log")[NUM_BATCHES + 6 :]


@pytest.mark.slow
@pytest.mark.parametrize("steps_per_execution", [1, 4])
def test_resumed_training_makes_one_step_per_batch_and_prints_its_start(dataset, tmp_path, steps_per_execution, recwarn, capsys):
    """After training resumes, validation, early stopping and a second `fit` work as in uninterrupted training."""
    valid = first_epoch_batches(dataset, "validation")
    fit(dataset, tmp_path, None, 3, steps_per_execution, [Interrupt(1, 8)], save_freq=4)
    (saved_at,) = list_checkpoints(tmp_path)
    assert saved_at[0] == 1 and saved_at[1] > 0
    shutil.copytree(tmp_path / "backups", tmp_path / "stopped/backups")
    train, seen = first_epoch_batches(dataset), []
    model = untrained_model(tmp_path / "log", steps_per_execution)
    checkpoint = tf_input.BackupAndRestore(tmp_path / "backups", train, save_freq=4)
    count = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append((epoch, int(model.optimizer.iterations.numpy()))))
    model.fit(train, validation_data=valid, epochs=3, callbacks=[checkpoint, count], shuffle=False, verbose=0)
    assert seen == [(1, 2 * NUM_BATCHES), (2, 3 * NUM_BATCHES)]
    assert not [warning for warning in recwarn if "ran out of data" in str(warning.message)]
    assert f"resumed at epoch 2, batch {saved_at[1] + 1}, from {tmp_path / 'backups'}" in capsys.readouterr().out
    assert model.fit(train, epochs=1, shuffle=False, verbose=0).epoch == [0]
    model = fit(dataset, tmp_path / "stopped", None, 3, steps_per_execution, [StopAfterEpoch()])
    assert model.optimizer.iterations.numpy() == 2 * NUM_BATCHES


def test_epoch_stopped_in_the_middle_is_saved(dataset, tmp_path):
    """An error is raised if Keras ends an epoch early because of `steps_per_epoch`."""

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = batch == 6

    fit(dataset, tmp_path, callbacks=[Stop()], delete_checkpoint=False)
    assert list_checkpoints(tmp_path) == [(0, 7)]
    train, model = first_epoch_batches(dataset), untrained_model(tmp_path / "log")
    checkpoint = tf_input.BackupAndRestore(tmp_path / "backups", train)
    with pytest.raises(ValueError, match="poch 2 .* 7 of 12"):
        model.fit(train, epochs=3, steps_per_epoch=NUM_BATCHES, callbacks=[checkpoint], verbose=0)


@pytest.mark.slow(3)
def test_sequence_resumes_at_the_start_of_an_epoch(dataset, tmp_path):
    for folder, at in (("complete", (9, 9)), ("parts", (1, 1))):
        fit(dataset, tmp_path / folder, tf_input.Sequence(dataset, "train", **OPTIONS), 2, callbacks=[Interrupt(*at)])
    sequence = tf_input.Sequence(dataset, "train", **OPTIONS)
    before = len(read_lines(tmp_path / "parts" / "log"))
    fit(dataset, tmp_path / "parts", sequence, 2)
    assert read_lines(tmp_path / "parts" / "log")[before:] == read_lines(tmp_path / "complete" / "log")[NUM_BATCHES:]
    with pytest.raises(ValueError, match="save_freq=5"):
        tf_input.BackupAndRestore(tmp_path, sequence, save_freq=5)


def test_iterator_state_is_correct_after_resumed_training(dataset, tmp_path):
    """The training run is resumed in the middle of its last epoch and after its end."""
    fit(dataset, tmp_path, None, 2, callbacks=[Interrupt(1, 8)], save_freq=4)
    for _ in range(2):
        train = first_epoch_batches(dataset)
        fit(dataset, tmp_path, train, 2, save_freq=4, delete_checkpoint=False)
        assert train.iterator_state.next == (2, 0) and list_checkpoints(tmp_path) == [(2, 0)]


def test_completed_training_is_reported_with_advice(dataset, tmp_path, capsys):
    for delete_checkpoint in (False, True):
        fit(dataset, tmp_path, epochs=1, delete_checkpoint=False)
        assert "epochs=1" not in capsys.readouterr().out
        model = fit(dataset, tmp_path, epochs=1, delete_checkpoint=delete_checkpoint)
        (message,) = [line for line in capsys.readouterr().out.splitlines() if "epochs=1" in line]
        assert "checkpoint-00000001-00000000.npz" in message and not model.history.epoch
        assert ("a larger epochs" in message) != delete_checkpoint
        if not delete_checkpoint:
            assert fit(dataset, tmp_path, epochs=2, delete_checkpoint=False).history.epoch == [1]
            shutil.rmtree(tmp_path / "backups")
        assert fit(dataset, tmp_path, epochs=1).history.epoch == [0]


@pytest.mark.slow(2)
def test_rejects_checkpoint_or_data_that_cannot_be_resumed(dataset, tmp_path):
    fit(dataset, tmp_path, None, 2, callbacks=[Interrupt(1, 8)], save_freq=4)
    with pytest.raises(ValueError, match=r"-00000001-00000008.npz .*middle"):
        fit(dataset, tmp_path, tf_input.Sequence(dataset, "train", **OPTIONS), 2)
    train, model = first_epoch_batches(dataset), untrained_model(tmp_path / "log")
    checkpoint = tf_input.BackupAndRestore(tmp_path / "others", train)
    with pytest.raises(ValueError, match="steps_per_epoch=12"):
        model.fit(train.filter(lambda x, y: True), callbacks=[checkpoint], verbose=0)
    with pytest.raises(ValueError, match="poch 1 .*`train`"):
        model.fit(dataset.batches("train", **OPTIONS), callbacks=[checkpoint], verbose=0)
    for same in (train.map(lambda x, y: (x, y)), train.repeat(), train.repeat().filter(lambda x, y: True)):
        train.iterator_state.go_to(0)
        model.fit(same, epochs=2, steps_per_epoch=12, callbacks=[checkpoint], verbose=0)
        assert train.iterator_state.next == (2, 0)


def test_training_with_nan_loss_keeps_the_earlier_checkpoint(dataset, tmp_path):
    class Lose(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == 6:
                self.model.layers[-1].kernel.assign(np.full(self.model.layers[-1].kernel.shape, np.nan))

    fit(dataset, tmp_path, callbacks=[Lose(), keras.callbacks.TerminateOnNaN()], save_freq=5)
    assert list_checkpoints(tmp_path) == [(0, 5)]


def test_training_begins_with_the_initial_epoch_of_fit(dataset, tmp_path):
    train, model = dataset.batches("train", **OPTIONS), untrained_model(tmp_path / "log")
    checkpoint = tf_input.BackupAndRestore(tmp_path / "backups", train, delete_checkpoint=False)
    assert model.fit(train, epochs=2, initial_epoch=1, callbacks=[checkpoint], verbose=0).epoch == [1] and list_checkpoints(tmp_path) == [(2, 0)]


def test_rejects_data_that_cannot_be_read_again(dataset, tmp_path):
    data = first_epoch_batches(dataset)
    unseeded = {**OPTIONS, "seed": None}
    cases = [
        (data.repeat(), {}, "train="),
        (np.zeros(3), {}, "train="),
        (dataset.batches("train", **unseeded), {}, "seed=None"),
        (tf_input.Sequence(dataset, "train", **unseeded), {}, "seed=None"),
        (data, {"save_freq": 0}, "save_freq=0"),
        (data, {"save_freq": "batch"}, "save_freq='batch'"),
        (data, {"keep": 0}, "keep=0"),
        (data, {"directory": "gs://a/b"}, "directory='gs://a/b'"),
    ]
    for given, options, message in cases:
        with pytest.raises(ValueError, match=message):
            tf_input.BackupAndRestore(**{"directory": tmp_path / "backups", "train": given, **options})
    model = untrained_model(tmp_path / "log")
    with pytest.raises(ValueError, match="5 batches.* 12[.].*steps_per_epoch.*take"):
        model.fit(data, steps_per_epoch=5, callbacks=[tf_input.BackupAndRestore(tmp_path, data)], verbose=0)


@pytest.mark.slow
def test_rejects_checkpoint_of_another_training(dataset, resumable):
    cases = [
        ({"seed": 1}, r"seed=1 \(.*0\)"),
        ({"batch_size": 4}, r"batch_size=4 \(.*8\)"),
        ({"shuffle": "exact"}, r"shuffle='exact' \(.*'window'\), read_buffer=None \(.*\d+\)"),
        ({"augment": True}, r"augment=\{'min_area': 0.08.* \(.*None\)"),
        ({"map_batch": make_pairs}, r"map_batch='make_pairs' \(.*None\)"),
    ]
    for options, message in cases:
        with pytest.raises(ValueError, match=f"another training.* {message}"):
            fit(dataset, resumable, dataset.batches("train", **{**OPTIONS, **options}))
    other = tf_input.open(prepare_images(resumable / "other", num_images={"ant": 12, "bee": 12}))
    changed = r"the dataset has changed since this .*: the number of examples in train was 93 and is \d+"
    with pytest.raises(ValueError, match=changed):
        fit(other, resumable)
    model = keras.Sequential([keras.Input((*SIZE, 3)), keras.layers.Flatten(), keras.layers.Dense(3)])
    model.compile("sgd", "mse")
    data = first_epoch_batches(dataset)
    with pytest.raises(ValueError, match="another model: .* variables"):
        model.fit(data, callbacks=[tf_input.BackupAndRestore(resumable / "backups", data)], verbose=0)


def make_two_layer_model(first: str | None, second: str | None, *between: str) -> keras.Model:
    """Returns a model with two equal layers. Unused layers are created first, to change the automatic layer names."""
    for _ in between:
        keras.Sequential([keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dropout(0.1)])
    image = keras.Input((*SIZE, 3))
    x = keras.layers.GlobalAveragePooling2D()(image)
    for name in (first, second):
        x = keras.layers.Dropout(0.1)(keras.layers.Dense(3, name=name)(x))
    model = keras.Model(image, x)
    model.compile("adam", "mse", jit_compile=False)
    return model


def test_variables_are_restored_by_name(dataset, tmp_path):
    """Variables are restored in any order. Automatic layer names match even if the numbers in the names differ."""
    data = first_epoch_batches(dataset)

    def kernels(model):
        return {layer.name: layer.kernel.numpy() for layer in model.layers if isinstance(layer, keras.layers.Dense)}

    cases = {
        "same names": (("a", "b"), ("a", "b"), None),
        "other order": (("a", "b"), ("b", "a"), None),
        "other names": (("a", "b"), ("a", "c"), "'c/.*'b/"),
        "automatic names": ((None, None), (None, None, "other", "other"), None),
        "one automatic name": (("a", None), ("a", "b"), "another model"),
    }
    for name, (before, after, message) in cases.items():
        saved = make_two_layer_model(*before)
        tf_input.Checkpoint(tmp_path / name, saved, data).save()
        model = make_two_layer_model(*after)
        if message:
            with pytest.raises(ValueError, match=message):
                tf_input.Checkpoint(tmp_path / name, model, data)
            continue
        tf_input.Checkpoint(tmp_path / name, model, data)
        pairs = zip(kernels(saved).items(), kernels(model).items())
        expected, actual = kernels(saved), kernels(model)
        if "automatic" in name:
            assert all((kernel == other).all() for (_, kernel), (_, other) in pairs), name
        else:
            assert all((expected[layer] == actual[layer]).all() for layer in expected), name
    (path,) = (tmp_path / "same names").glob("*.npz")
    with np.load(path) as file:
        old = {key: file[key] for key in file.files}
    old["state"] = old["state"].item().replace('"variables"', '"others"')
    np.savez(path, **old)
    with pytest.raises(ValueError, match="earlier version"):
        tf_input.Checkpoint(tmp_path / "same names", make_two_layer_model("a", "b"), data)


def test_rejects_model_or_optimizer_that_is_not_from_keras(dataset, tmp_path):
    class TrainState:
        """A fake of Flax's class `TrainState`, which is not a Keras model."""

    TrainState.__module__ = "flax.training.train_state"
    model = make_two_layer_model("a", "b")
    for name, (model_value, optimizer) in {"model": (TrainState(), None), "optimizer": (model, TrainState())}.items():
        with pytest.raises(ValueError, match=f"{name}=flax.training.train_state.TrainState .*iterator_state.state_dict"):
            tf_input.Checkpoint(tmp_path, model_value, first_epoch_batches(dataset), optimizer=optimizer)


@pytest.mark.slow
def test_rejects_keras_2_model(dataset, tmp_path):
    tf_keras = pytest.importorskip("tf_keras")
    model = tf_keras.Sequential([tf_keras.Input((*SIZE, 3)), tf_keras.layers.Flatten(), tf_keras.layers.Dense(3)])
    model.compile("sgd", "mse")
    data = first_epoch_batches(dataset)
    calls = {
        "Checkpoint": lambda: tf_input.Checkpoint(tmp_path, model, data),
        "BackupAndRestore": lambda: model.fit(data, callbacks=[tf_input.BackupAndRestore(tmp_path, data)], verbose=0),
        "export_serving": lambda: tf_input.export_serving(model, data, tmp_path / "1"),
    }
    for name, call in calls.items():
        with pytest.raises(ValueError, match="model=.*tf_keras.*Keras 3"):
            call()
            pytest.fail(name)


def make_pairs(images, labels):
    return images, labels


def test_rejects_executions_that_span_two_epochs(dataset, tmp_path):
    with pytest.raises(ValueError, match="steps_per_execution=5"):
        fit(dataset, tmp_path, None, 2, 5, save_freq=5)
    fit(dataset, tmp_path, None, 2, 4, [Interrupt(0, 8)], save_freq=4)
    assert list_checkpoints(tmp_path) == [(0, 8)]
    with pytest.raises(ValueError, match="steps_per_execution=3"):
        fit(dataset, tmp_path, None, 2, 3)
    model = fit(dataset, tmp_path / "complete epochs", None, 2, 5)
    assert model.optimizer.iterations.numpy() == 2 * NUM_BATCHES


class Loop:
    """Trains in a loop with `tf_input.Checkpoint` instead of `fit`, and appends a digest of each batch to `read`."""

    def __init__(self, folder: pathlib.Path, train, make_data=lambda train: None, **options) -> None:
        keras.utils.set_random_seed(0)
        layers = [keras.layers.Rescaling(1 / 255), keras.layers.Flatten(), keras.layers.Dropout(0.5), keras.layers.Dense(3)]
        self.model, self.optimizer = keras.Sequential([keras.Input((*SIZE, 3), dtype="uint8"), *layers]), keras.optimizers.Adam()
        self.checkpoint = tf_input.Checkpoint(folder, self.model, train, optimizer=self.optimizer, **{"save_freq": 4, **options})
        self.train, self.make_data, self.read = train, make_data, []

    def run(self, epochs: int = 3, stop_at: tuple[int, int] | None = None) -> None:
        for epoch in self.checkpoint.epochs(epochs):
            for images, labels in self.checkpoint.batches(self.make_data(self.train)):
                if (epoch, self.checkpoint.step) == stop_at:
                    return
                self.step(images, labels)
            self.checkpoint.state.setdefault("steps", []).append(int(self.optimizer.iterations.numpy()))

    def step(self, images, labels) -> None:
        self.read.append(hashlib.md5(np.asarray(images).tobytes()).hexdigest())
        self._update(images, labels)

    def _update(self, images, labels) -> None:
        with tf.GradientTape() as tape:
            loss = keras.losses.sparse_categorical_crossentropy(labels, self.model(images, training=True), from_logits=True)
        self.optimizer.apply(tape.gradient(loss, self.model.trainable_variables), self.model.trainable_variables)


@pytest.mark.slow(3)
def test_training_loop_resumes_with_the_same_batches_and_weights(dataset, tmp_path, capsys):
    """Training has the same results with batches, arrays, distributed batches, sequences and mapped batches."""
    options, num_batches = {"augment": True, "batch_size": 2 * BATCH_SIZE}, NUM_BATCHES // 2

    def make_batches() -> tf.data.Dataset:
        return first_epoch_batches(dataset, **options)

    cases = {
        "batches": (make_batches, lambda train: None),
        "arrays": (make_batches, lambda train: train.as_numpy_iterator()),
        "distributed": (make_batches, lambda train: tf.distribute.OneDeviceStrategy("CPU:0").experimental_distribute_dataset(train)),
        "Sequence": (lambda: tf_input.Sequence(dataset, "train", **{**OPTIONS, **options}), lambda train: None),
        "mapped": (make_batches, lambda train: train.map(lambda x, y: (255 - x, y))),
    }
    for name, (make_train, make_data) in cases.items():
        folder = tmp_path / name
        if name in ("batches", "mapped"):
            complete = Loop(folder / "complete", make_train(), make_data)
            assert complete.checkpoint.restored_from is None
            complete.run(2)
        stopped = Loop(folder / "parts", make_train(), make_data)
        stopped.run(2, stop_at=(1, 5))
        assert [path.name for path in (folder / "parts").iterdir()] == ["checkpoint-00000001-00000004.npz"], name
        capsys.readouterr()
        resumed = Loop(folder / "parts", make_train(), make_data)
        assert f"resumed at epoch 2, batch 5, from {folder}" in capsys.readouterr().out
        assert (resumed.checkpoint.epoch, resumed.checkpoint.step, resumed.checkpoint.state) == (1, 4, {"steps": [num_batches]})
        resumed.run(2)
        assert len(set(complete.read)) == len(complete.read) == 2 * num_batches
        assert stopped.read + resumed.read[1:] == complete.read and resumed.read[0] == stopped.read[-1], name
        for weight, expected in zip(resumed.model.get_weights(), complete.model.get_weights()):
            np.testing.assert_array_equal(weight, expected)
        assert resumed.checkpoint.state == {"steps": [num_batches, 2 * num_batches]}
        if name in ("batches", "Sequence"):
            done = Loop(folder / "parts", make_train(), make_data)  # Training is complete, so no batch is left.
            done.run(2)
            assert "num_epochs=2" in capsys.readouterr().out
            assert not done.read and done.checkpoint.state == resumed.checkpoint.state


@pytest.mark.slow
def test_training_can_be_resumed_with_another_number_of_hosts(dataset, tmp_path):
    """One host resumes the training of two hosts and reads the remaining examples of both hosts."""
    options = {"drop_remainder": True}
    complete, stopped = (Loop(tmp_path / str(hosts[0]), first_epoch_batches(dataset, hosts=hosts, **options)) for hosts in ((1, 0), (2, 0)))
    complete.run(2)
    stopped.run(2, stop_at=(1, 6))
    resumed = Loop(tmp_path / "2", first_epoch_batches(dataset, hosts=(1, 0), **options))
    resumed.run(2)
    assert resumed.read == complete.read[NUM_BATCHES - 1 + 4 :]
    assert not {*stopped.read} & {*complete.read}  # The stopped host read only half of the rows of each batch.


def test_only_the_writing_process_saves_checkpoints(dataset, tmp_path):
    train = first_epoch_batches(dataset)
    saved = []
    reader = Loop(tmp_path, train, writes=False, before_save=lambda: saved.append("reader"))
    reader.run(1)
    assert not saved and not list(tmp_path.iterdir())
    writer = Loop(tmp_path, train, keep=3, before_save=lambda: saved.append((writer.checkpoint.epoch, writer.checkpoint.step)))
    writer.run(1)
    indices = [(0, 4), (0, 8), (1, 0)]
    assert saved == indices and sorted(path.name for path in tmp_path.iterdir()) == [
        f"checkpoint-{epoch:08d}-{step:08d}.npz" for epoch, step in indices
    ]
    reader = Loop(tmp_path, train, writes=False)
    for weight, expected in zip(reader.model.get_weights(), writer.model.get_weights()):
        np.testing.assert_array_equal(weight, expected)
    reader.checkpoint.delete()
    assert len(list(tmp_path.iterdir())) == 3
    writer.checkpoint.delete()
    assert not list(tmp_path.iterdir())


def test_rejects_invalid_use_of_training_loop(dataset, tmp_path):
    train = first_epoch_batches(dataset)
    loop = Loop(tmp_path, train, settings={"model": "a", "sizes": (1, 2)})
    with pytest.raises(ValueError, match="poch 1 .* 3 of 12"):
        for _ in loop.checkpoint.epochs(2):
            loop.checkpoint.advance(3)
    loop.run(1)
    with pytest.raises(ValueError, match=r"another training.* model='b' \(.*'a'\)"):
        Loop(tmp_path, train, settings={"model": "b", "sizes": (1, 2)})
    Loop(tmp_path, train, settings={"model": "a", "sizes": (1, 2)})
    with pytest.raises(ValueError, match="optimizer=None"):
        tf_input.Checkpoint(tmp_path, loop.model, train)
    with pytest.raises(ValueError, match="model.build"):
        tf_input.Checkpoint(tmp_path, keras.Sequential([keras.layers.Dense(1)]), train, optimizer=loop.optimizer)
    with pytest.raises(ValueError, match="keep=0"):
        Loop(tmp_path, train, keep=0)


def test_rejects_corrupt_checkpoint_by_name(dataset, resumable):
    (path,) = (resumable / "backups").iterdir()
    data = bytearray(path.read_bytes())
    data[data.rindex(b"NUMPY") + 130] ^= 255  # The changed byte is in the last array.
    train = first_epoch_batches(dataset)
    for corrupt in (bytes(data), bytes(data[:1000]), b""):
        path.write_bytes(corrupt)
        with pytest.raises(ValueError, match=f"{path.name}: .*corrupt: "):
            fit(dataset, resumable, train)


def test_unfinished_checkpoint_is_ignored(dataset, resumable):
    (resumable / "backups" / "checkpoint-00000009-00000000.unfinished").write_bytes(b"incomplete")
    model = fit(dataset, resumable, epochs=2)
    assert model.optimizer.iterations.numpy() == 2 * NUM_BATCHES


def test_resumed_epoch_reads_no_record_of_earlier_batches(dataset):
    """With an exact shuffle, a resumed epoch does not read the records of batches before the checkpoint."""
    config = tf_input.ReadConfig(**OPTIONS, shuffle="exact", cache_in_memory=0)
    plan = dataset.split_reader("train").plan(config)
    asked = []
    read = plan.reader.read
    plan.reader.read = lambda numbers, **options: asked.append(numbers.tolist()) or read(numbers, **options)
    data = input_pipeline.read_batches(plan, plan.decode, state := IteratorState(NUM_BATCHES), prefetch=False)
    state.go_to(0, NUM_BATCHES - 1)
    batch = next(iter(data))
    assert len(batch[1]) == 93 - (NUM_BATCHES - 1) * BATCH_SIZE
    read_first, *_ = asked
    assert read_first == plan.make_inputs().numbers(0, NUM_BATCHES - 1)[0].tolist()
