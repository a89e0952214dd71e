"""Epochs as a function of seed, epoch and step: other orders, exact resume, and splits that are held in memory."""

import logging

import keras
import numpy as np
import pytest
import tensorflow as tf
from prepared import prepare_images

import tf_input
from tf_input.position import Position

SIZE = (12, 16)
OPTIONS = {"batch_size": 8, "image_size": SIZE}
SHUFFLES = (False, "buffer", "exact")


@pytest.fixture(scope="module")
def mixed(tmp_path_factory) -> tf_input.PreparedDataset:
    """Images of many sizes, 93 of them in four training shards."""
    options = ("--num_shards", "train=4,validation=1")
    return tf_input.open(prepare_images(tmp_path_factory.mktemp("mixed"), *options))


@pytest.fixture(scope="module")
def uniform(tmp_path_factory) -> tf_input.PreparedDataset:
    """Images of 24 x 32 pixels, which fit into memory."""
    return tf_input.open(prepare_images(tmp_path_factory.mktemp("uniform"), image_size=(24, 32)))


def epoch(data: tf.data.Dataset) -> list[bytes]:
    """Each batch of a pass, labels and pixels."""
    return [b"".join(part.tobytes() for part in batch) for batch in data.as_numpy_iterator()]


def examples(data: tf.data.Dataset) -> list[bytes]:
    """Each example of a pass."""
    return [image.tobytes() + bytes([label]) for batch in data.as_numpy_iterator() for image, label in zip(*batch)]


@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize("name", ["mixed", "uniform"])
def test_any_step_of_any_epoch_is_where_reading_may_begin(name, shuffle, request):
    dataset = request.getfixturevalue(name)
    options = {**OPTIONS, "shuffle": shuffle, "augment": True, "seed": 5}
    data = dataset.batches("train", **options)
    epochs = [epoch(data) for _ in range(3)]
    assert [len(one) for one in epochs] == [12, 12, 12] and len({batch for one in epochs for batch in one}) == 36
    for start_epoch, start_step in [(0, 0), (1, 0), (1, 7), (2, 11)]:
        resumed = dataset.batches("train", **options, start_epoch=start_epoch, start_step=start_step)
        assert epoch(resumed) == epochs[start_epoch][start_step:], (start_epoch, start_step)
        if start_epoch < 2:
            assert epoch(resumed) == epochs[start_epoch + 1]
        assert int(resumed.cardinality()) == 12  # of a whole epoch


def test_a_position_says_what_the_next_pass_reads(mixed):
    data = mixed.batches("train", **OPTIONS, seed=1)
    epochs = [epoch(data) for _ in range(2)]
    assert repr(data.position) == "Position(epoch=2, step=0)"
    data.position.go_to(1, 10)
    assert epoch(data) == epochs[1][10:]
    data.position.go_to(0)
    assert epoch(data.repeat(2).take(20)) == [*epochs[0], *epochs[1][:8]]
    iter(data)  # nothing is asked of it, so it reads nothing
    assert repr(data.position) == "Position(epoch=2, step=0)"


@pytest.mark.parametrize("shuffle", ["buffer", "exact"])
def test_each_example_once_an_epoch_in_whatever_order(mixed, shuffle):
    expected = sorted(examples(mixed.batches("train", **OPTIONS, shuffle=False)))
    data = mixed.batches("train", **OPTIONS, shuffle=shuffle)
    epochs = [examples(data) for _ in range(2)]
    assert [sorted(one) for one in epochs] == [expected] * 2
    assert epochs[0] != epochs[1]


def test_a_step_beyond_the_epoch_is_refused(mixed):
    with pytest.raises(ValueError, match="start_step=12: an epoch of train has 12 batches; expected one below"):
        mixed.batches("train", **OPTIONS, start_step=12)
    position = mixed.batches("train", **OPTIONS).position
    for epoch, step in ((0, 12), (0, -1), (-1, 0)):
        with pytest.raises(ValueError, match=f"epoch={epoch}, step={step}: an epoch has 12 batches; expected one of them"):
            position.go_to(epoch, step)
    assert position.next == (0, 0)


def test_keras_goes_on_with_whole_epochs_after_a_part_of_one(mixed):
    """It cuts all epochs to the first one's length if the cardinality is unknown."""
    model = keras.Sequential([keras.Input((*SIZE, 3)), keras.layers.Flatten(), keras.layers.Dense(3)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    steps = []
    count = keras.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: steps.append(step))
    train = mixed.batches("train", **OPTIONS, start_epoch=1, start_step=9)
    with pytest.warns(UserWarning, match="ran out of data"):
        model.fit(train, initial_epoch=1, epochs=3, callbacks=[count], verbose=0)
    assert steps == [*range(3), *range(12)]


def test_what_fits_is_held_in_memory_and_said_once(uniform, caplog):
    caplog.set_level(logging.INFO, "tf_input")
    uniform = tf_input.open(uniform.directory)
    num_bytes = uniform.num_examples("train") * 24 * 32 * 3
    held = {"memory_budget": num_bytes, "batch_size": 8, "image_size": None, "seed": 2}
    streamed = {**held, "memory_budget": num_bytes - 1}
    for options in ({"shuffle": False}, {"shuffle": "exact"}):
        assert epoch(uniform.batches("train", **held, **options)) == epoch(uniform.batches("train", **streamed, **options))
    messages = [record.getMessage() for record in caplog.records]
    expected = "train: 93 images held in memory, 0.2 MB of a budget of 0.2; shuffled, their order is exact"
    assert messages == [expected]
    # What nobody asked to be a buffer is exact.
    exact = epoch(uniform.batches("train", **held, shuffle="exact"))
    assert epoch(uniform.batches("train", **held)) == exact != epoch(uniform.batches("train", **streamed))


def test_in_memory_reading_needs_no_files(uniform, tmp_path):
    """Once they are held."""
    import shutil

    dataset = tf_input.open(shutil.copytree(uniform.directory, tmp_path / "copy"))
    data = dataset.batches("train", batch_size=8, image_size=(12, 16), augment=True, seed=0)
    shutil.rmtree(tmp_path / "copy")
    again = dataset.batches("train", batch_size=8, image_size=(12, 16), augment=True, seed=0)
    assert epoch(data) == epoch(again)


def test_views_from_memory_show_what_views_of_files_show(uniform):
    options = {"batch_size": 93, "image_size": (12, 16), "augment": True, "seed": 3, "shuffle": "exact"}
    (held, labels), (streamed, expected) = (
        next(uniform.batches("train", **options, memory_budget=budget).as_numpy_iterator()) for budget in (1 << 30, 0)
    )
    np.testing.assert_array_equal(labels, expected)
    assert np.abs(held.astype(int) - streamed).mean() < 1


def test_a_batch_that_is_larger_than_the_split_reads_each_record_once(mixed):
    plan = mixed.plan("validation", tf_input.ReadConfig(1_000_000, SIZE))
    asked, read = [], plan.reader.read
    plan.reader.read = lambda numbers, **options: asked.extend(numbers.tolist()) or read(numbers, **options)
    ((images, labels),) = plan.read(Position())
    assert asked == list(range(len(labels))) == list(range(17))
