"""A training that was interrupted goes on as if it had not been."""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import warnings

import keras
import numpy as np
import pytest
import resumable_training
import tensorflow as tf
from prepared import prepare_images
from resumable_training import BATCH_SIZE, EPOCHS, SAVE_FREQ, SIZE, make_model, train

import tf_input
from tf_input.position import Position

ROOT = pathlib.Path(__file__).parent.parent
NUM_BATCHES = 12
ORDER = "window"
OPTIONS = {"batch_size": BATCH_SIZE, "image_size": SIZE, "seed": 0}


@pytest.fixture(autouse=True)
def no_seed_stays():
    yield
    tf.random.set_seed(None)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> tf_input.PreparedDataset:
    return tf_input.open(prepare_images(tmp_path_factory.mktemp("resumed"), "--num_shards", "train=4,validation=1"))


@pytest.fixture(scope="module")
def trained(dataset, tmp_path_factory) -> pathlib.Path:
    """What a training of one epoch left."""
    folder = tmp_path_factory.mktemp("trained")
    fit(dataset, folder, epochs=1, delete_checkpoint=False)
    return folder


@pytest.fixture
def begun(trained, tmp_path) -> pathlib.Path:
    """That, to go on with."""
    return shutil.copytree(trained, tmp_path / "begun")


class Interrupt(keras.callbacks.Callback):
    """Raises amid a training."""

    def __init__(self, epoch: int, batch: int) -> None:
        super().__init__()
        self.at, self.epoch = (epoch, batch), 0

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        if (self.epoch, batch) == self.at:
            raise KeyboardInterrupt


class EndAfterAnEpoch(keras.callbacks.Callback):
    """Wants no further one."""

    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = True


def lines(path: pathlib.Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def kill_amid_an_epoch(dataset: tf_input.PreparedDataset, folder: pathlib.Path) -> None:
    """Trains in a process, and kills it."""
    held_at = NUM_BATCHES + SAVE_FREQ + 2
    command = [sys.executable, resumable_training.__file__, str(dataset.directory), str(folder), ORDER, str(held_at)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True, **pipes) as running:
        try:
            assert running.stdout.readline() == "held\n"
            assert len(lines(folder / "log")) == held_at
        finally:
            running.kill()
    assert running.returncode == -signal.SIGKILL


@pytest.mark.slow
def test_a_killed_training_goes_on_with_the_same_batches_to_the_same_weights(dataset, tmp_path):
    directory = str(dataset.directory)
    kill_amid_an_epoch(dataset, tmp_path / "killed")
    weights, history = train(directory, tmp_path / "whole", ORDER)
    expected, killed = lines(tmp_path / "whole" / "log"), lines(tmp_path / "killed" / "log")
    assert len(set(expected)) == len(expected) == EPOCHS * NUM_BATCHES
    assert killed == expected[: len(killed)] and len(killed) < 2 * NUM_BATCHES
    (backup,) = (tmp_path / "killed" / "backups").glob("*.npz")
    _, epoch, step = backup.stem.split("-")
    assert epoch == "00000001" and 0 < int(step) <= len(killed) - NUM_BATCHES

    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        resumed_weights, resumed_history = train(directory, tmp_path / "killed", ORDER)
    assert not [one for one in raised if "ran out of data" in str(one.message)]
    resumed = lines(tmp_path / "killed" / "log")[len(killed) :]
    assert resumed == expected[NUM_BATCHES + int(step) :]
    for one, other in zip(resumed_weights, weights):
        np.testing.assert_array_equal(one, other)
    assert resumed_history["loss"][1:] == history["loss"][2:]  # the first is of the batches that were left
    assert not list((tmp_path / "killed" / "backups").iterdir())  # a training that has ended leaves none


def fit(dataset, folder, train=None, epochs=EPOCHS, steps_per_execution=1, callbacks=(), **options):
    train = dataset.batches("train", **OPTIONS) if train is None else train
    model = make_model(folder / "log")
    model.steps_per_execution = steps_per_execution
    backup = tf_input.BackupAndRestore(folder / "backups", train, **options)
    try:
        model.fit(train, epochs=epochs, callbacks=[backup, *callbacks], shuffle=False, verbose=0)
    except KeyboardInterrupt:
        pass
    return model


def backups(folder: pathlib.Path) -> list[tuple[int, int]]:
    return sorted(tuple(map(int, path.stem.split("-")[1:])) for path in (folder / "backups").iterdir())


def test_which_backups_there_are(dataset, tmp_path):
    cases = [
        # options, where it is interrupted, the backups that there are then
        ({}, (0, 9), None),
        ({"save_freq": 5, "keep": 3}, (1, 6), [(0, 10), (1, 0), (1, 5)]),
        ({"save_freq": 12, "delete_checkpoint": False}, (9, 9), [(2, 0)]),
    ]
    for number, (options, at, expected) in enumerate(cases):
        folder = tmp_path / str(number)
        fit(dataset, folder, epochs=2, callbacks=[Interrupt(*at)], **options)
        assert (backups(folder) if (folder / "backups").exists() else None) == expected, options


def test_steps_per_execution_are_respected(dataset, tmp_path):
    """And an exact order goes on as the other one does."""

    def fit_exact(folder: str, *callbacks: keras.callbacks.Callback) -> None:
        data = dataset.batches("train", **OPTIONS, shuffle="exact", augment=True)
        fit(dataset, tmp_path / folder, data, 2, 3, callbacks, save_freq=4)

    fit_exact("whole")
    fit_exact("parts", Interrupt(1, 9))
    assert backups(tmp_path / "parts") == [(1, 6)]
    before = len(lines(tmp_path / "parts" / "log"))
    fit_exact("parts")
    assert lines(tmp_path / "parts" / "log")[before:] == lines(tmp_path / "whole" / "log")[NUM_BATCHES + 6 :]


@pytest.mark.parametrize("steps_per_execution", [1, 5])
def test_a_resumed_training_makes_a_step_for_each_batch_and_says_where_it_goes_on(dataset, tmp_path, steps_per_execution, recwarn, capsys):
    """Validation, and a callback that wants to stop, are what they are without it."""
    valid = dataset.batches("validation", **OPTIONS)
    at = [2, 1][steps_per_execution > 1]
    fit(dataset, tmp_path, None, 3, steps_per_execution, [Interrupt(1, 5 * at)], save_freq=5)
    (place,) = backups(tmp_path)
    assert place[0] == 1 and place[1] > 0
    train, seen = dataset.batches("train", **OPTIONS), []
    model = make_model(tmp_path / "log")
    model.steps_per_execution = steps_per_execution
    backup = tf_input.BackupAndRestore(tmp_path / "backups", train, save_freq=5)
    count = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append((epoch, int(model.optimizer.iterations.numpy()))))
    model.fit(train, validation_data=valid, epochs=3, callbacks=[backup, count], shuffle=False, verbose=0)
    assert seen == [(1, 2 * NUM_BATCHES), (2, 3 * NUM_BATCHES)]
    assert not [one for one in recwarn if "ran out of data" in str(one.message)]
    assert f"resumed at epoch 2, batch {place[1] + 1}, from {tmp_path / 'backups'}" in capsys.readouterr().out
    fit(dataset, tmp_path / "stopped", None, 3, steps_per_execution, [Interrupt(1, 5)], save_freq=5)
    seen.clear()
    model = fit(dataset, tmp_path / "stopped", None, 3, steps_per_execution, [EndAfterAnEpoch()])
    assert model.optimizer.iterations.numpy() == 2 * NUM_BATCHES


def test_an_epoch_that_is_stopped_in_its_middle_is_gone_on_with(dataset, tmp_path):
    """And one that Keras cuts short, as it does with steps_per_epoch, is refused."""

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = batch == 6

    fit(dataset, tmp_path, callbacks=[Stop()], delete_checkpoint=False)
    assert backups(tmp_path) == [(0, 7)]
    train, model = dataset.batches("train", **OPTIONS), make_model(tmp_path / "log")
    backup = tf_input.BackupAndRestore(tmp_path / "backups", train)
    with pytest.raises(ValueError, match="epoch 2 ended after 0 of 12 batches: expected what `train` gives, and no steps_per_epoch"):
        model.fit(train, epochs=3, steps_per_epoch=NUM_BATCHES, callbacks=[backup], verbose=0)


def test_a_sequence_goes_on_with_whole_epochs(dataset, tmp_path):
    for folder, at in (("whole", (9, 9)), ("parts", (1, 1))):
        fit(dataset, tmp_path / folder, tf_input.Sequence(dataset, "train", **OPTIONS), 2, callbacks=[Interrupt(*at)])
    sequence = tf_input.Sequence(dataset, "train", **OPTIONS)
    before = len(lines(tmp_path / "parts" / "log"))
    fit(dataset, tmp_path / "parts", sequence, 2)
    assert lines(tmp_path / "parts" / "log")[before:] == lines(tmp_path / "whole" / "log")[NUM_BATCHES:]
    with pytest.raises(ValueError, match="save_freq=5: expected 'epoch' with a Sequence"):
        tf_input.BackupAndRestore(tmp_path, sequence, save_freq=5)


def test_what_can_not_be_read_again_is_refused(dataset, tmp_path):
    data = dataset.batches("train", **OPTIONS)
    unseeded = {**OPTIONS, "seed": None}
    cases = [
        (data.repeat(), {}, "expected what `batches` returns"),
        (np.zeros(3), {}, "expected what `batches` returns"),
        (dataset.batches("train", **unseeded), {}, "seed=None: expected a seed"),
        (tf_input.Sequence(dataset, "train", **unseeded), {}, "seed=None: expected a seed"),
        (data, {"save_freq": 0}, "save_freq=0: expected `epoch`, or an integer above 0"),
        (data, {"save_freq": "batch"}, "save_freq='batch': expected `epoch`, or"),
        (data, {"keep": 0}, "keep=0: expected an integer above 0"),
        (data, {"directory": "gs://a/b"}, "directory='gs://a/b': expected a local directory"),
    ]
    for given, options, message in cases:
        with pytest.raises(ValueError, match=message):
            tf_input.BackupAndRestore(**{"directory": tmp_path / "backups", "train": given, **options})
    model = make_model(tmp_path / "log")
    with pytest.raises(ValueError, match="steps_per_epoch=5: expected None, or 12, the batches in an epoch"):
        model.fit(data, steps_per_epoch=5, callbacks=[tf_input.BackupAndRestore(tmp_path, data)], verbose=0)


def test_the_backup_of_another_training_is_refused(dataset, begun):
    cases = [
        ({"seed": 1}, r"seed=1 \(there 0\)"),
        ({"batch_size": 4}, r"batch_size=4 \(there 8\)"),
        ({"shuffle": "exact"}, r"shuffle='exact' \(there 'buffer'\), order=.*"),
        ({"augment": True}, r"augment=\{'min_area': 0.08.* \(there None\)"),
        ({"map_batch": make_pairs}, r"map_batch='make_pairs' \(there None\)"),
    ]
    for options, message in cases:
        with pytest.raises(ValueError, match=f"is the backup of another training: here {message}; expected another directory"):
            fit(dataset, begun, dataset.batches("train", **{**OPTIONS, **options}))
    other = tf_input.open(prepare_images(begun / "other", num_images={"ant": 60, "bee": 61}))
    changed = r"the data set has changed since this backup was made: the number of examples in train was 93 and is \d+; expected"
    with pytest.raises(ValueError, match=changed):
        fit(other, begun)
    with pytest.raises(ValueError, match="start_step=3: expected 0; the callback itself finds where to go on"):
        fit(dataset, begun, dataset.batches("train", **OPTIONS, start_step=3))
    model = keras.Sequential([keras.Input((*SIZE, 3)), keras.layers.Flatten(), keras.layers.Dense(3)])
    model.compile("sgd", "mse")
    data = dataset.batches("train", **OPTIONS)
    with pytest.raises(ValueError, match="is the backup of another model: it has .* variables; here are"):
        model.fit(data, callbacks=[tf_input.BackupAndRestore(begun / "backups", data)], verbose=0)


def make_pairs(images, labels):
    return images, labels


def test_a_damaged_backup_is_refused_by_name(dataset, begun):
    (path,) = (begun / "backups").iterdir()
    data = bytearray(path.read_bytes())
    data[data.rindex(b"NUMPY") + 130] ^= 255  # in the last array
    for damaged in (bytes(data), bytes(data[:1000]), b""):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=f"{path.name}: a damaged backup: "):
            fit(dataset, begun)


def test_what_was_not_finished_is_no_backup(dataset, begun):
    (begun / "backups" / "backup-00000009-00000000.unfinished").write_bytes(b"killed amid it")
    model = fit(dataset, begun, epochs=2)
    assert model.optimizer.iterations.numpy() == 2 * NUM_BATCHES


def test_a_resumed_epoch_reads_no_record_of_the_batches_before(dataset):
    """In an exact order; in the other one, no more than the windows that are left."""
    config = tf_input.ReadConfig(**OPTIONS, shuffle="exact", memory_budget=0, start_step=NUM_BATCHES - 1)
    plan = dataset.plan("train", config)
    asked = []
    read = plan.reader.read
    plan.reader.read = lambda numbers, **options: asked.extend(numbers.tolist()) or read(numbers, **options)
    (batch,) = plan.read(Position(0, config.start_step))
    assert len(set(asked)) == len(batch[1]) == 93 - (NUM_BATCHES - 1) * BATCH_SIZE
