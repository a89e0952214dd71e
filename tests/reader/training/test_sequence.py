"""Tests that `Sequence` and `batches` return equal batches, with threads, with processes and in Keras."""

import functools
import gc
import inspect
import itertools
import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_input

SIZE, NUM, NUM_BATCHES = (12, 16), 93, 12
OPTIONS = {"batch_size": 8, "image_size": SIZE, "seed": 3}


def darken(image, label, seed):
    if label == 0:  # The label is a tensor, as in `Dataset.map`.
        image = image // 2
    return image + tf.cast(tf.random.stateless_uniform([], seed, 0, 9, tf.int32), tf.uint8), label


def negate(images, labels):
    return 255 - images, tf.numpy_function(lambda values: -values, [labels], tf.int64)


def assert_same(result, expected, case=None) -> None:
    tf.nest.assert_same_structure(result, expected)
    for actual, other in zip(tf.nest.flatten(result), tf.nest.flatten(expected)):
        assert isinstance(actual, np.ndarray) and actual.dtype == other.dtype, case
        np.testing.assert_array_equal(actual, other, err_msg=str(case))


@pytest.mark.slow(3)
def test_sequence_gives_the_same_batches_as_batches(mixed, uniform):
    cases = [
        (mixed, "train", {"augment": True, "hosts": (2, 1)}),
        (mixed, "train", {"augment": tf_input.Augmentation(brightness=0.2, hue=0.1), "shuffle": "exact", "drop_remainder": True}),
        (mixed, "train", {"augment": True, "map_example": darken, "map_batch": negate}),
        (mixed, "validation", {}),
        (uniform, "train", {"augment": True}),
        (uniform, "train", {"image_size": None, "map_batch": negate}),
    ]
    for dataset, split, options in cases:
        options = {**OPTIONS, **options}
        batches, sequence = dataset.batches(split, **options), tf_input.Sequence(dataset, split, **options)
        for epoch in range(2):
            assert sequence.epoch == epoch
            expected = list(batches.as_numpy_iterator())
            assert len(sequence) == len(expected) == len(batches)
            # The steps are read in a random order.
            for step in np.random.default_rng(0).permutation(len(expected))[:5]:
                assert_same(sequence[step], expected[step], (split, options, step))
            assert_same(sequence[-1], expected[-1])
            sequence.iterator_state.go_to(sequence.epoch + 1)


def test_repeated_sequences_cause_no_retracing_warning(uniform, monkeypatch):
    warned = []
    monkeypatch.setattr(tf.get_logger(), "handle", lambda record: warned.append(record.getMessage()))
    for _ in range(6):
        tf_input.Sequence(uniform, "train", batch_size=8, image_size=None)[5]
    assert not [message for message in warned if "retracing" in message]


def test_worker_threads_give_the_same_batches(mixed):
    options = {**OPTIONS, "augment": True, "map_example": darken}
    expected = list(tf_input.Sequence(mixed, "train", **options))
    assert len(expected) == NUM_BATCHES
    for workers, size in ((2, 1), (4, 99)):
        sequence = tf_input.Sequence(mixed, "train", workers=workers, max_queue_size=size, **options)
        for step in (*range(NUM_BATCHES), 4, 5, 6, 11, 3, 0, 0):
            assert_same(sequence[step], expected[step], (workers, step))
        with ThreadPoolExecutor(4) as pool:
            for step, batch in enumerate(pool.map(sequence.__getitem__, range(NUM_BATCHES))):
                assert_same(batch, expected[step], (workers, step))


@pytest.mark.slow(4)
def test_worker_processes_give_the_same_batches(mixed, quick_spawn):
    options = {**OPTIONS, "augment": True, "map_example": darken, "shuffle": "exact"}
    expected = tf_input.Sequence(mixed, "train", **options)
    assert repr(expected) == f"<Sequence of {mixed.manifest.name}, train: {len(expected)} batches of {options['batch_size']}>"
    sequence = tf_input.Sequence(mixed, "train", workers=2, use_multiprocessing=True, **options)
    assert not sequence.use_multiprocessing and sequence.workers == 1
    for _ in range(2):
        for step in range(NUM_BATCHES):
            assert_same(sequence[step], expected[step], step)
        sequence.on_epoch_end(), expected.on_epoch_end()
    pool = sequence._read._processes
    processes, manager = list(pool._processes.values()), pool._executor_manager_thread
    assert len(processes) == 2 and all(process.is_alive() for process in processes)
    del sequence, pool
    gc.collect()
    manager.join(60)  # The manager waits for the processes. A second waiter might not learn their exit codes.
    assert [process.exitcode for process in processes] == [0, 0]


@pytest.mark.slow(5)
def test_worker_process_needs_no_shards_of_split_in_memory(uniform, tmp_path):
    """If a split is cached, worker processes decode the cached images and read no shards."""
    copy = tf_input.open(shutil.copytree(uniform.directory, tmp_path / "copy"))
    options = {**OPTIONS, "augment": True, "map_example": darken}
    expected = tf_input.Sequence(uniform, "train", **options)
    sequence = tf_input.Sequence(copy, "train", workers=1, use_multiprocessing=True, **options)
    for path in (tmp_path / "copy").glob("*.tfrecord-*"):
        path.unlink()
    for step in range(len(expected)):
        assert_same(sequence[step], expected[step], step)


def test_rejects_functions_that_cannot_be_sent_to_processes(mixed):
    with pytest.raises(ValueError, match="use_multiprocessing=True"):
        tf_input.Sequence(mixed, "train", use_multiprocessing=True, map_batch=lambda x, y: (x, y), **OPTIONS)


def test_sequence_can_be_pickled(mixed):
    sequence = tf_input.Sequence(mixed, "train", augment=True, workers=2, **OPTIONS)
    sequence.iterator_state.go_to(1)
    copy = pickle.loads(pickle.dumps(sequence))
    assert copy.epoch == sequence.epoch == 1
    assert_same(copy[5], sequence[5])


def test_sequence_accepts_a_directory(mixed):
    assert_same(tf_input.Sequence(mixed.directory, "train", **OPTIONS)[1], tf_input.Sequence(mixed, "train", **OPTIONS)[1])


def test_sequence_accepts_a_config_with_changes(mixed):
    config = tf_input.ReadConfig(**{**OPTIONS, "batch_size": 2})
    complete = tf_input.Sequence(mixed, "train", tf_input.ReadConfig(**OPTIONS))
    changed = tf_input.Sequence(mixed, "train", config=config, batch_size=OPTIONS["batch_size"])
    expected = tf_input.Sequence(mixed, "train", **OPTIONS)[1]
    for case, sequence in {"complete": complete, "changed": changed, "pickled": pickle.loads(pickle.dumps(changed))}.items():
        assert_same(sequence[1], expected, case)
    with pytest.raises(TypeError, match="^config=8"):
        tf_input.Sequence(mixed, "train", 8)


def test_rejects_invalid_options_and_indices(mixed):
    cases = [
        ({"workers": 0}, "workers=0"),
        ({"workers": True}, "workers=True"),
        ({"max_queue_size": 0}, "max_queue_size=0"),
        ({"batch_size": 0}, "batch_size=0 "),
    ]
    for options, message in cases:
        with pytest.raises(ValueError, match=message):
            tf_input.Sequence(mixed, "train", **{**OPTIONS, **options})
    with pytest.raises(ValueError, match="split='test'"):
        tf_input.Sequence(mixed, "test", **OPTIONS)
    sequence = tf_input.Sequence(mixed, "train", **OPTIONS)
    for index in (NUM_BATCHES, -NUM_BATCHES - 1):
        with pytest.raises(IndexError, match=f"batch {index} .* {NUM_BATCHES}"):
            sequence[index]


def test_rejects_batches_in_place_of_a_dataset(mixed):
    with pytest.raises(ValueError, match=r"dataset=.*Sequence\(flowers, 'train'"):
        tf_input.Sequence(mixed.batches("train", **OPTIONS), "train", **OPTIONS)


def test_signature_has_all_options(mixed):
    shown = inspect.signature(tf_input.Sequence).parameters
    expected = {*inspect.signature(tf_input.ReadConfig).parameters}
    assert {*shown} == expected | {"dataset", "split", "config", "workers", "use_multiprocessing", "max_queue_size"}
    assert shown["seed"].annotation == int | None and shown["batch_size"].default is inspect.Parameter.empty
    with pytest.raises(TypeError, match="Sequence.. has no option 'batchsize'; did you mean 'batch_size'?"):
        tf_input.Sequence(mixed, "train", batchsize=8)


def test_split_without_shuffle_is_equal_in_each_epoch(mixed):
    sequence = tf_input.Sequence(mixed, "validation", **OPTIONS)
    first = list(sequence)
    sequence.on_epoch_end()
    for batch, other in zip(first, sequence, strict=True):
        assert_same(batch, other)


def test_sequence_without_seed_varies_only_between_epochs(mixed):
    sequence, other = (tf_input.Sequence(mixed, "train", **{**OPTIONS, "seed": None}) for _ in range(2))
    assert_same(sequence[3], sequence[3])
    assert (sequence[3][0] != other[3][0]).any()
    before = sequence[3][0]
    sequence.iterator_state.go_to(1)
    assert (sequence[3][0] != before).any()


class Recorded(tf_input.Sequence):
    """A sequence that records the epoch and the index of each requested batch."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.read = []

    def __getitem__(self, index):
        self.read.append((self.epoch, index))
        return super().__getitem__(index)


def small_model() -> keras.Model:
    """Returns an untrained model. TensorFlow traces the model only once for all tests."""
    model, weights = make_traced_model()
    model.set_weights(weights)
    return model


@functools.cache
def make_traced_model() -> tuple[keras.Model, list[np.ndarray]]:
    layers = [keras.Input((*SIZE, 3)), keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(3, activation="softmax")]
    model = keras.Sequential(layers)
    model.compile("sgd", "sparse_categorical_crossentropy", jit_compile=False)
    model.optimizer.build(model.trainable_variables)  # Otherwise the first step would be traced twice.
    return model, model.get_weights()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3])
def test_keras_reads_each_epoch_with_its_own_number(mixed, workers):
    train = Recorded(mixed, "train", workers=workers, **OPTIONS)
    valid = Recorded(mixed, "validation", workers=workers, **OPTIONS)
    model = small_model()
    history = model.fit(train, validation_data=valid, epochs=3, shuffle=False, verbose=0)
    assert len(history.history["val_loss"]) == 3
    expected = list(itertools.product(range(3), range(NUM_BATCHES)))
    assert train.read[-len(expected) :] == expected  # Before that, Keras reads a few batches to find the structure.
    assert train.read[: -len(expected)] == [(0, index) for index in range(len(train.read) - len(expected))]
    assert train.epoch == 3
    assert [epoch for epoch, index in valid.read if index == 2].count(2) == 1
    model.fit(train, epochs=4, initial_epoch=3, shuffle=False, verbose=0)
    assert train.read[-NUM_BATCHES:] == [(3, index) for index in range(NUM_BATCHES)]
    # Predictions are in the order of the shards.
    images = np.concatenate([x for x, _ in mixed.batches("validation", **OPTIONS).as_numpy_iterator()])
    np.testing.assert_allclose(model.predict(valid, verbose=0), model(images), atol=1e-5)


def test_keras_may_shuffle_the_batches_within_an_epoch(mixed):
    train = Recorded(mixed, "train", **OPTIONS)
    small_model().fit(train, epochs=2, verbose=0)
    read = train.read[-2 * NUM_BATCHES :]
    assert read != sorted(read) == list(itertools.product(range(2), range(NUM_BATCHES)))


def test_steps_per_epoch_cut_no_epoch_short(mixed):
    train = Recorded(mixed, "train", **OPTIONS)
    small_model().fit(train, epochs=6, steps_per_epoch=4, shuffle=False, verbose=0)
    read = train.read[len(train.read) % NUM_BATCHES :]
    assert sorted(set(read)) == [(epoch, index) for epoch in range(2) for index in range(NUM_BATCHES)]
    assert read[-2 * NUM_BATCHES :] == sorted(set(read))


def test_epoch_ends_after_every_batch_was_read(mixed):
    train = tf_input.Sequence(mixed, "train", **OPTIONS)
    every = range(NUM_BATCHES)
    cases = [
        # Columns: batches that are read before each end of an epoch, resulting epoch.
        ([[]], 0),
        ([[0, 1], every], 1),  # Keras with TensorFlow reads two batches first.
        ([[0], every, [], every], 2),  # Keras with JAX and torch reads one batch first. An evaluation ends twice.
        ([[7], reversed(every)], 1),
        ([range(5), range(5, 10), range(10, 12), range(5)], 1),
        ([[NUM_BATCHES - 1]], 0),
    ]
    for ends, expected in cases:
        train.iterator_state.go_to(0)
        for steps in ends:
            for step in steps:
                train[step]
            train.on_epoch_end()
        assert train.epoch == expected, ends
        for step in every:  # Read all remaining batches.
            train[step]
        train.on_epoch_end()
