"""Tests that seed, epoch and step determine each batch, that reading resumes exactly, and that splits are cached."""

import json
import logging
import sys
import threading
import time
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_input
from tf_input.pipeline import input_pipeline
from tf_input.pipeline.inputs import RecordInputs
from resumed import batches_from

SIZE = (12, 16)
OPTIONS = {"batch_size": 8, "image_size": SIZE}


def batch_bytes(data: tf.data.Dataset) -> list[bytes]:
    """Reads all batches once and returns the bytes of each batch."""
    return [b"".join(part.tobytes() for part in batch) for batch in data.as_numpy_iterator()]


def examples(data: tf.data.Dataset) -> list[bytes]:
    """Reads all examples once and returns the bytes of each example."""
    return [image.tobytes() + bytes([label]) for batch in data.as_numpy_iterator() for image, label in zip(*batch)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, shuffle, indices",
    [
        ("mixed", False, [(1, 7)]),
        ("mixed", "window", [(1, 7)]),
        ("mixed", "exact", [(1, 11)]),
        ("uniform", False, [(1, 0)]),
        ("uniform", "window", [(1, 7)]),
    ],
)
def test_reading_can_start_at_any_step_of_any_epoch(name, shuffle, indices, request):
    dataset = request.getfixturevalue(name)
    options = {**OPTIONS, "shuffle": shuffle, "augment": True, "seed": 5}
    data = dataset.batches("train", **options)
    epochs = [batch_bytes(data) for _ in range(2)]
    assert [len(batches) for batches in epochs] == [12, 12] and len(
        {batch for batches in epochs for batch in batches}
    ) == 24
    for epoch, step in indices:
        resumed = batches_from(dataset.batches("train", **options), epoch, step)
        assert batch_bytes(resumed) == epochs[epoch][step:], (epoch, step)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"shuffle": "exact"}, {"cache_in_memory": 0, "skip_corrupt": True}, {"map_example": lambda x, y: (x, y)}])
def test_every_iteration_has_cardinality_many_batches(uniform, options):
    """If an iteration starts in the middle of an epoch, it continues into the next epoch."""
    options = {"batch_size": 8, "seed": 5, **options}
    data = uniform.batches("train", **options)
    complete = [batch for _ in range(3) for batch in batch_bytes(data)]
    assert len(data) == 12 and len(complete) == 36
    for read, count in ((batch_bytes, 12), (lambda data: batch_bytes(data.repeat(2)), 24)):
        data.iterator_state.go_to(0, 5)
        assert read(data) == complete[5 : 5 + count]
        assert data.iterator_state.next == divmod(5 + count, 12)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"cache_in_memory": 0}, {"shuffle": "exact"}])
def test_repeated_dataset_reads_next_epoch_ahead(uniform, options):
    """The reader reads ahead to avoid a delay at the end of each epoch."""
    has_read_ahead = threading.Event()

    def record_seed(seed: tf.Tensor, images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        keys.add(seed.numpy().tobytes())
        if len(keys) > 12:
            has_read_ahead.set()
        return images, labels

    def recording(images: tf.Tensor, labels: tf.Tensor, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        images_spec, labels_spec = images.shape, labels.shape
        images, labels = tf.py_function(record_seed, [seed, images, labels], [images.dtype, labels.dtype])
        return tf.ensure_shape(images, images_spec), tf.ensure_shape(labels, labels_spec)

    keys: set[bytes] = set()
    options = {"batch_size": 8, "seed": 5, **options}
    iterations = uniform.batches("train", **options)
    expected = [batch_bytes(iterations) for _ in range(2)]
    data = uniform.batches("train", **options, map_batch=recording)
    batches = iter(data.repeat())
    actual = [next(batches) for _ in range(11)]
    assert has_read_ahead.wait(60) and data.iterator_state.next == (1, 0)
    actual += [next(batches) for _ in range(13)]
    assert [images.numpy().tobytes() + labels.numpy().tobytes() for images, labels in actual] == [*expected[0], *expected[1]]
    assert data.iterator_state.next == (2, 0)


def test_repeat_multiplies_the_number_of_batches(uniform):
    """The argument `count` can be an integer or a tensor, as in tf.data."""
    data = uniform.batches("train", batch_size=8, inputs="key", seed=5)
    for count, expected in ((3, 36), (1, 12), (0, 0), (np.int64(2), 24), (tf.constant(2, tf.int64), 24)):
        assert len(data.repeat(count)) == expected, count
    for endless in (data.repeat(), data.repeat(-1), data.repeat().repeat(2)):
        assert endless.cardinality() == tf.data.INFINITE_CARDINALITY
    assert len(batch_bytes(data.repeat(sys.maxsize).take(13))) == 13
    assert len(data.repeat(2).repeat(3)) == 72 and len(batch_bytes(data.repeat(2).repeat(3).take(50))) == 50
    assert ": batches of 8: endless, element_spec=" in repr(data.repeat()) and ": batches of 8: 36, " in repr(data.repeat(3))


@pytest.mark.slow
def test_saved_iterator_state_restores_the_rest_of_the_epoch(mixed):
    """Loops over tensors, arrays and mapped batches can save their position, and a loader accepts the same dictionary."""
    options = {**OPTIONS, "seed": 4}
    whole = mixed.batches("train", **options)
    epochs = [batch_bytes(whole) for _ in range(2)]

    def to_bytes(batch: tuple) -> bytes:
        return b"".join(np.asarray(part).tobytes() for part in batch)

    for derive in (lambda data: data, lambda data: data.map(lambda x, y: (x, y)), lambda data: data.as_numpy_iterator()):
        data = mixed.batches("train", **options)
        rest = data.iterator_state.resume(derive(data))
        assert [to_bytes(next(rest)) for _ in range(9)] == epochs[0][:9]
        state = json.loads(json.dumps(data.iterator_state.state_dict()))
        assert (state["epoch"], state["step"]) == (0, 9) and state == data.iterator_state.get_state()
        assert data.iterator_state.state_dict(1, 3) == {**state, "epoch": 1, "step": 3}
        restored = mixed.batches("train", **options)
        restored.iterator_state.load_state_dict(state)
        for expected in (epochs[0][9:], epochs[1]):
            assert list(map(to_bytes, restored.iterator_state.resume(derive(restored)))) == expected
        assert restored.iterator_state.state_dict() == {**state, "epoch": 2, "step": 0}
    loops, loader = mixed.as_numpy("train", **options), mixed.loader("train", **options)
    loops.iterator_state.set_state(state)
    loader.load_state_dict(state)
    assert [labels.tolist() for _, labels in loops] == [batch["label"].tolist() for batch in loader]
    assert loader.state_dict() == loops.iterator_state.state_dict() == {**state, "epoch": 1, "step": 0}
    next(iter(loops))  # reading one batch does not count as an iteration
    assert list(map(to_bytes, loops)) == epochs[1]
    with pytest.raises(ValueError, match="seed"):
        mixed.batches("train", **{**options, "seed": 5}).iterator_state.load_state_dict(state)


def test_resume_counts_only_the_batches_that_it_yields(uniform):
    """The state does not depend on batches that a derived dataset prefetches, and a `break` does not change it."""
    data = uniform.batches("train", **OPTIONS, seed=5)
    state = data.iterator_state

    def position() -> tuple[int, int]:
        return state.state_dict()["epoch"], state.state_dict()["step"]

    for first in (0, 7):
        state.go_to(0, first)
        for number, _ in enumerate(state.resume(data.map(lambda x, y: x).prefetch(2)), first + 1):
            time.sleep(0.1)  # leaves time for prefetching
            assert position() == (0, number) and state.next == ((0, first) if number == first + 1 else (1, 0))
            if number == first + 3:
                break
        assert position() == (0, first + 3)
    assert len(batch_bytes(data)) == 12 and position() == state.next == (2, 0)


def test_iteration_counts_after_its_second_batch_is_requested(mixed):
    """If an iteration reads only the first batch, the next iteration still reads the first epoch."""
    data = mixed.batches("train", **OPTIONS, seed=3)
    iterations = mixed.batches("train", **OPTIONS, seed=3)
    epochs = [batch_bytes(iterations) for _ in range(4)]
    next(iter(data))
    for _ in data.take(1):
        pass
    assert batch_bytes(data.take(1).prefetch(2)) == epochs[0][:1] and data.iterator_state.next == (0, 0)
    first, second = data.as_numpy_iterator(), data.as_numpy_iterator()
    first_batches = [next(first), next(second)]  # concurrent iterators read the same epoch
    assert (
        batch_bytes(tf.data.Dataset.from_generator(lambda: first_batches, output_signature=data.element_spec))
        == [epochs[0][0]] * 2
    )
    assert len(list(first)) == 11 and data.iterator_state.next == (1, 0)
    next(data.as_numpy_iterator())
    assert len(list(second)) == 11 and data.iterator_state.next == (1, 0)
    assert batch_bytes(data.take(2)) == epochs[1][:2] and data.iterator_state.next == (2, 0)
    assert batch_bytes(data.repeat().take(14)) == [*epochs[2], *epochs[3][:2]] and data.iterator_state.next == (4, 0)


def read_with_iterator(data: tf.data.Dataset) -> None:
    iterator = iter(data)
    for _ in range(3):
        next(iterator)


def read_with_break(data: tf.data.Dataset) -> None:
    for number, _ in enumerate(data):
        if number:
            break


def read_with_dataset_zip(data: tf.data.Dataset) -> None:
    for _ in tf.data.Dataset.zip((data, tf.data.Dataset.range(3))):
        pass


def read_with_python_zip(data: tf.data.Dataset) -> None:
    for _ in zip(data.map(lambda x, y: x).prefetch(1), range(3)):
        pass


@pytest.mark.parametrize(
    "read",
    [
        read_with_iterator, read_with_break, read_with_dataset_zip, read_with_python_zip,
        lambda data: batch_bytes(data.take(3)),
    ],
)
def test_each_incomplete_iteration_advances_to_the_next_epoch(uniform, read):
    data = uniform.batches("train", batch_size=8, seed=5)
    for number in range(1, 4):
        read(data)
        assert data.iterator_state.next == (number, 0), number


def test_iteration_with_a_single_batch_advances_the_epoch(uniform):
    data = uniform.batches("train", batch_size=93, seed=5)
    assert len({batch_bytes(data)[0] for _ in range(3)}) == 3 and data.iterator_state.next == (3, 0)

@pytest.mark.slow
def test_interleaved_iterators_read_their_own_epochs(uniform):
    data = uniform.batches("train", **OPTIONS, seed=1)
    expected = [batch_bytes(batches_from(uniform.batches("train", **OPTIONS, seed=1), epoch)) for epoch in range(3)]
    early, results = data.as_numpy_iterator(), [[], [], []]
    results[0] += [next(early), next(early)]  # The second batch lets the next iterator begin the next epoch.
    middle = data.as_numpy_iterator()
    results[1] += [next(middle), next(middle)]
    late = data.as_numpy_iterator()
    for _ in range(len(data)):
        for result, iterator in zip(results, (early, middle, late)):
            result += [batch for batch in [next(iterator, None)] if batch is not None]
    for result, batches in zip(results, expected):
        assert [b"".join(part.tobytes() for part in batch) for batch in result] == batches
    assert data.iterator_state.next == (3, 0)


@pytest.mark.slow
def test_iterator_state_advances_only_with_requested_batches(mixed):
    """With automatic prefetching, the iterator state would advance before the last batches are requested."""
    data = mixed.batches("train", batch_size=1, image_size=SIZE, seed=3, cache_in_memory=0)
    batches = iter(data.repeat())
    for epochs in range(2):
        for number in range(len(data)):
            next(batches)
            assert data.iterator_state.next == (epochs + (number > 0), 0), number
            if number % 10 == 9:
                time.sleep(0.1)  # leaves time for prefetching, as a training step does
    assert len(data) == 93


def make_model() -> keras.Model:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((*SIZE, 3)), keras.layers.Flatten(), keras.layers.Dense(3)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    model.optimizer.build(model.trainable_variables)  # avoids tracing the first step twice
    return model


@pytest.mark.slow
def test_reading_a_single_batch_does_not_change_training(mixed):
    weights = []
    for reads_one_batch in (False, True):
        data, model = mixed.batches("train", **OPTIONS, seed=3), make_model()
        if reads_one_batch:
            next(iter(data))
            model.fit(data.take(1), verbose=0)
            model = make_model()
            model.evaluate(data, steps=1, verbose=0)
        model.fit(data, epochs=2, verbose=0)
        weights.append(model.get_weights())
    for actual, expected in zip(*weights):
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.slow
@pytest.mark.parametrize("step, steps_per_execution", [(0, 1), (5, 4)])
def test_fit_makes_one_optimizer_step_per_batch(mixed, step, steps_per_execution, recwarn):
    model, data = make_model(), mixed.batches("train", **OPTIONS, seed=3)
    data.iterator_state.go_to(0, step)
    model.steps_per_execution = steps_per_execution
    model.fit(data.map(lambda x, y: (x, y)), epochs=2, validation_data=data, verbose=0)
    assert model.optimizer.iterations.numpy() == 24
    model.fit(data, epochs=2, steps_per_epoch=12, verbose=0)
    assert model.optimizer.iterations.numpy() == 48
    assert len(model.predict(data, verbose=0)) > 0
    assert not [warning for warning in recwarn if "ran out of data" in str(warning.message)]


@pytest.mark.slow
def test_callback_of_fit_saves_the_state_after_a_restore(mixed):
    """`fit` counts batches from 0, even if it begins in the middle of an epoch."""

    class SaveState(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.epoch = epoch

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            more, step = divmod(state.next[1] + batch + 1, len(data))
            saved.append(state.state_dict(self.epoch + more, step))

    data, saved = mixed.batches("train", **OPTIONS, seed=3), []
    state = data.iterator_state
    state.load_state_dict(state.state_dict(1, 3))
    make_model().fit(data, initial_epoch=1, epochs=3, callbacks=[SaveState()], verbose=0)
    assert [(item["epoch"], item["step"]) for item in saved] == [divmod(15 + number, 12) for number in range(1, 25)]
    assert state.next == (3, 3)


@pytest.mark.slow
def test_iterator_state_determines_the_next_iteration(mixed):
    data = mixed.batches("train", **OPTIONS, seed=1)
    epochs = [batch_bytes(data) for _ in range(2)]
    assert repr(data.iterator_state) == "IteratorState(epoch=2, step=0)"
    data.iterator_state.go_to(1, 10)
    following = batch_bytes(batches_from(mixed.batches("train", **OPTIONS, seed=1), 2))
    assert batch_bytes(data) == [*epochs[1][10:], *following[:10]] and len(data) == 12
    assert repr(data.iterator_state) == "IteratorState(epoch=2, step=10)"
    data.iterator_state.go_to(0)
    assert batch_bytes(data.repeat(2).take(20)) == [*epochs[0], *epochs[1][:8]]
    assert repr(data.iterator_state) == "IteratorState(epoch=2, step=0)"


@pytest.mark.slow
def test_exact_shuffle_reads_each_example_once_per_epoch(mixed):
    expected = sorted(examples(mixed.batches("train", **OPTIONS, shuffle=False)))
    data = mixed.batches("train", **OPTIONS, shuffle="exact")
    epochs = [examples(data) for _ in range(2)]
    assert [sorted(values) for values in epochs] == [expected] * 2
    assert epochs[0] != epochs[1]


def test_rejects_positions_that_do_not_exist(mixed):
    iterator_state = mixed.batches("train", **OPTIONS, seed=3).iterator_state
    for number, step in ((0, 13), (0, -1), (-1, 0), (0, 1.5)):
        for method in (iterator_state.go_to, iterator_state.state_dict):
            with pytest.raises(ValueError, match=f"epoch={number}, step={step} .* 12 batches"):
                method(number, step)
    with pytest.raises(ValueError, match="epoch=0, step=12"):
        iterator_state.go_to(0, 12)
    with pytest.raises(ValueError, match="step=3 needs an epoch"):
        iterator_state.state_dict(step=3)
    completed = iterator_state.state_dict(0, 12)
    assert (completed["epoch"], completed["step"]) == (1, 0)
    for batches in ("ab", None, {}, {"seed": 3}, [1]):
        with pytest.raises(ValueError, match="is not an iterator state|differ in"):
            iterator_state.load_state_dict({"epoch": 0, "step": 0, "batches": batches})
    assert iterator_state.next == (0, 0)


def test_unused_selections_are_evicted_if_memory_is_needed(uniform, caplog):
    """Selected examples stay cached for reuse if they fit in the memory budget."""
    caplog.set_level(logging.INFO, "tf_input")
    uniform = tf_input.open(uniform.directory)

    def counts_read(*counts: int) -> list[int]:
        caplog.clear()
        for count in counts:
            uniform.split_reader("train").plan(tf_input.ReadConfig(4, hosts=(1, 0), cache_in_memory=20 * (24 * 32 * 3 + 8), select=range(count)))
        return [int(record.args[1]) for record in caplog.records]

    assert counts_read(9, 8, 7, 6, 5) == [9, 8, 7, 6, 5]
    assert counts_read(7, 6, 5) == []
    assert counts_read(8, 5, 7) == [8, 7]


@pytest.mark.slow
def test_memory_budget_applies_to_all_readers_of_a_split(uniform, caplog):
    """Readers with different options share the budget. Concurrent readers load the split once."""
    caplog.set_level(logging.INFO, "tf_input")
    uniform = tf_input.open(uniform.directory)

    def read(channels: int | None) -> None:
        uniform.split_reader("train").plan(tf_input.ReadConfig(4, hosts=(1, 0), cache_in_memory=100 * (24 * 32 * 3 + 8), channels=channels))

    threads = [threading.Thread(target=read, args=(3,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(caplog.records) == 1
    for channels in (1, 3, 3):
        read(channels)
    assert len(caplog.records) == 3
    assert uniform.files.memory_cache.num_bytes <= 100 * (24 * 32 * 3 + 8)


@pytest.mark.slow
def test_the_memory_budget_holds_for_all_splits_together(uniform, caplog):
    caplog.set_level(logging.INFO, "tf_input")
    dataset, num_bytes = tf_input.open(uniform.directory), 24 * 32 * 3 + 8
    sizes = {split: dataset.num_examples(split) * num_bytes for split in ("train", "validation")}

    def read(split: str, budget: int, **options) -> tf.data.Dataset:
        return dataset.batches(split, batch_size=4, seed=0, cache_in_memory=budget, **options)

    for options in ({}, {"select": range(dataset.num_examples("train") - 1)}):  # most of the split shares its entry
        caplog.clear()
        batches = read("train", max(sizes.values()), **options)
        read("validation", max(sizes.values()))
        assert dataset.files.memory_cache.num_bytes == sizes["validation"]
        expected = batch_bytes(batches)
        again = read("train", max(sizes.values()), **options)  # from the memory that `batches` still uses
        assert dataset.files.memory_cache.num_bytes == sizes["train"]
        assert len(caplog.records) == (1 if options else 2)
        assert batch_bytes(again) == expected
    caplog.clear()
    read("validation", sum(sizes.values()))
    read("train", sum(sizes.values()))
    assert len(dataset.files.memory_cache) == 2 and len(caplog.records) == 1


@pytest.mark.slow
def test_split_within_memory_budget_is_cached_and_logged_once(uniform, caplog):
    caplog.set_level(logging.INFO, "tf_input")
    uniform = tf_input.open(uniform.directory)
    num_bytes = uniform.num_examples("train") * (24 * 32 * 3 + 8)
    cached = {"cache_in_memory": num_bytes, "batch_size": 8, "image_size": None, "seed": 2}
    streamed = {**cached, "cache_in_memory": num_bytes - 1}
    for shuffle in (False, "exact"):
        exact = batch_bytes(uniform.batches("train", **cached, shuffle=shuffle))
        assert exact == batch_bytes(uniform.batches("train", **streamed, shuffle=shuffle))
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 1 and messages[0].startswith("train: 93 images ") and " 0.2 MB of " in messages[0]
    # Without the `shuffle` option, a cached split has an exact order.
    assert batch_bytes(uniform.batches("train", **cached)) == exact != batch_bytes(uniform.batches("train", **streamed))


@pytest.mark.slow
def test_cached_split_is_read_after_its_files_are_removed(uniform, tmp_path):
    import shutil

    dataset = tf_input.open(shutil.copytree(uniform.directory, tmp_path / "copy"))
    data = dataset.batches("train", batch_size=8, image_size=(12, 16), augment=True, seed=0)
    shutil.rmtree(tmp_path / "copy")
    again = dataset.batches("train", batch_size=8, image_size=(12, 16), augment=True, seed=0)
    assert batch_bytes(data) == batch_bytes(again)


@pytest.mark.slow
def test_crops_from_memory_match_crops_from_files(uniform):
    options = {"batch_size": 93, "image_size": (12, 16), "augment": True, "seed": 3, "shuffle": "exact"}
    (cached, labels), (streamed, expected) = (
        next(uniform.batches("train", **options, cache_in_memory=budget).as_numpy_iterator()) for budget in (1 << 30, 0)
    )
    np.testing.assert_array_equal(labels, expected)
    assert np.abs(cached.astype(int) - streamed).mean() < 1


def test_batch_larger_than_the_split_reads_each_record_once(mixed):
    plan = mixed.split_reader("validation").plan(tf_input.ReadConfig(1_000_000, SIZE))
    requested, load = [], plan.reader.load
    plan.reader.load = lambda numbers, *args, **options: requested.extend(numbers.tolist()) or load(numbers, *args, **options)
    ((images, labels),) = input_pipeline.read_batches(plan, plan.decode)
    assert sorted(requested) == [*range(17)] and len(labels) == 17


def test_iteration_that_fails_at_its_first_batch_is_repeated(uniform, monkeypatch):
    data, plain = uniform.batches("train", **OPTIONS, cache_in_memory=0, seed=5), RecordInputs.batch

    def fail(self: RecordInputs, epoch: int, step: int) -> Any:
        raise OSError("the disk is gone")

    monkeypatch.setattr(RecordInputs, "batch", fail)
    for _ in range(2):
        with pytest.raises(tf.errors.InvalidArgumentError, match="the disk is gone"):
            next(iter(data))
    monkeypatch.setattr(RecordInputs, "batch", plain)
    for number in (1, 2):
        assert len(batch_bytes(data)) == 12 and data.iterator_state.next == (number, 0)
