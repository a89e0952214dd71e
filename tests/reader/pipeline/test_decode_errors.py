"""Images that do not decode in a batch: reported with their key, or left out with on_error="skip"."""

import contextlib
import pathlib

import numpy as np
import pytest
import tensorflow as tf

import tf_input
from beam_pipelines.__main__ import main
from made_images import jpeg, png, write_files
from prepared import make_once

BAD = ("a/03.png", "b/08.png")


@pytest.fixture
def unchecked(tmp_path_factory) -> tf_input.PreparedDataset:
    """24 examples that nobody checked: two of them do not decode."""

    def make(folder: pathlib.Path) -> pathlib.Path:
        files = {f"{'ab'[number % 2]}/{number:02}.jpg": jpeg(number, 20 + number, 30) for number in range(24) if number not in (3, 8)}
        write_files(folder / "in", files | {path: png(1, 20, 30)[:200] for path in BAD})
        prepare = ["prepare", "--input", str(folder / "in"), "--output", str(folder / "out")]
        assert main([*prepare, "--splits=train=1", "--check=none", "--no_report", "--quiet"]) == 0
        return folder / "out"

    return tf_input.open(make_once(tmp_path_factory, "unchecked", make))


def keys_of(batches: tf.data.Dataset) -> list[str]:
    return sorted(key.decode() for _, keys in batches for key in keys.numpy())


@pytest.mark.slow
def test_an_image_that_does_not_decode_is_reported_with_its_key_and_place(unchecked):
    for options in ({}, {"shuffle": False}, {"augment": True}):
        with pytest.raises(tf.errors.InvalidArgumentError) as error:
            list(unchecked.batches("train", batch_size=6, image_size=8, seed=1, **options))
        message = str(error.value)
        assert any(path in message for path in BAD), options
        assert "tfrecord-00000-of-00001: record" in message and "on_error=" in message, options
        assert "Traceback" not in message, options


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"shuffle": False}, {"augment": True}, {"map_batch": lambda x, y: (x + 1, y)}])
def test_skip_leaves_it_out_of_each_epoch_and_counts_it_once(unchecked, options):
    before = len(unchecked.skipped)
    batches = unchecked.batches("train", batch_size=6, image_size=8, seed=1, on_error="skip", keys=True, **options)
    actual = [keys_of(batches) for _ in range(3)]
    assert all(len(keys) == 22 and not set(BAD) & set(keys) for keys in actual)
    assert len({tuple(keys) for keys in actual}) == 1
    skipped = [item for item in unchecked.skipped if any(path in item.reason for path in BAD)]
    assert len(skipped) == 2 and len(unchecked.skipped) - before in (0, 2)


@pytest.mark.slow
def test_what_decodes_is_what_it_is_without_the_others(unchecked):
    options = {"batch_size": 6, "image_size": 8, "seed": 1, "keys": True}
    actual = []
    for batch_size in (6, 24):
        batches = unchecked.batches("train", on_error="skip", **options | {"batch_size": batch_size})
        actual.append({key: image for (x, _), keys in batches for key, image in zip(keys.numpy(), x.numpy())})
    assert actual[0].keys() == actual[1].keys() and len(actual[0]) == 22
    for key, image in actual[0].items():
        np.testing.assert_array_equal(image, actual[1][key], err_msg=key)


@pytest.mark.slow
@pytest.mark.parametrize("num_parts", [1, 2])
def test_a_sequence_and_random_access_name_the_example_too(unchecked, num_parts):
    parts = tf_input.Mixture({f"part{number}": (unchecked, "train", 1) for number in range(2)})
    arguments, options = {1: (unchecked, "train"), 2: (parts,)}[num_parts], {"batch_size": 6, "image_size": 8, "seed": 1, "keys": True}
    sequence = tf_input.Sequence(*arguments, **options)
    for step in range(len(sequence)):
        with contextlib.suppress(ValueError):
            sequence[step]
            continue
        with pytest.raises(ValueError, match=r"tfrecord-00000-of-00001: record .*(a/03|b/08)\.png"):
            sequence[step]
    skipping = tf_input.Sequence(*arguments, **options, on_error="skip")
    keys = [key.decode() for step in range(len(skipping)) for key in skipping[step][1]]
    assert set(keys) == set(unchecked.keys("train")) - set(BAD) and len(keys) >= 22
    number = unchecked.keys("train").tolist().index(BAD[0])
    with pytest.raises(ValueError, match=rf"example {number} .*tfrecord-00000-of-00001: record {number}, .*a/03\.png'"):
        unchecked["train"][number]


@pytest.mark.slow
def test_an_error_of_a_user_stays_what_it_is(unchecked):
    def fails(x, y):
        with tf.control_dependencies([tf.debugging.assert_less(tf.reduce_max(y), tf.cast(0, y.dtype), "of the user")]):
            return tf.identity(x), y

    with pytest.raises(tf.errors.InvalidArgumentError, match="of the user"):
        list(unchecked.batches("train", batch_size=6, image_size=8, seed=1, on_error="skip", map_batch=fails))


@pytest.mark.slow
def test_a_mix_reports_and_skips_too(unchecked):
    parts = {"one": (unchecked, "train", 1), "other": (unchecked, "train", 1)}
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"(a/03|b/08)\.png"):
        list(tf_input.mix(parts, batch_size=8, image_size=8, seed=1))
    actual = keys_of(tf_input.mix(parts, batch_size=8, image_size=8, seed=1, on_error="skip", keys=True))
    assert len(actual) > 40 and not set(BAD) & set(actual)


@pytest.mark.slow
def test_a_split_that_is_held_in_memory_reports_and_skips_too(tmp_path):
    files = {f"a/{number:02}.png": png(number, 20, 30) for number in range(12)} | {"a/03.png": png(1, 20, 30)[:200]}
    write_files(tmp_path / "in", files)
    prepare = ["prepare", "--input", str(tmp_path / "in"), "--output", str(tmp_path / "out"), "--splits=train=1", "--no_report", "--quiet"]
    assert main([*prepare, "--check=header", "--image_size=exact=20x30"]) == 0
    dataset = tf_input.open(tmp_path / "out")
    options = {"batch_size": 4, "image_size": None, "seed": 1, "keys": True}
    with pytest.raises(ValueError, match=r"a/03\.png"):
        list(dataset.batches("train", **options))
    actual = keys_of(dataset.batches("train", on_error="skip", **options))
    assert len(actual) == 11 and "a/03.png" not in actual and len(dataset.skipped) == 1
