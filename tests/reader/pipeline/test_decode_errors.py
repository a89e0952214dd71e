"""Tests that undecodable images are reported with their key, or are skipped with `skip_corrupt=True`."""

import contextlib
import pathlib

import numpy as np
import pytest
import tensorflow as tf

import tf_input
from beam_pipelines.__main__ import main
from made_images import jpeg, png, write_files
from prepared import make_once

BAD_KEYS = ("a/03.png", "b/08.png")


@pytest.fixture
def unchecked_dataset(tmp_path_factory) -> tf_input.PreparedDataset:
    """A dataset of 24 examples that was prepared without checks. Two of its images cannot be decoded."""

    def make(folder: pathlib.Path) -> pathlib.Path:
        files = {f"{'ab'[number % 2]}/{number:02}.jpg": jpeg(number, 20 + number, 30) for number in range(24) if number not in (3, 8)}
        write_files(folder / "in", files | {path: png(1, 20, 30)[:200] for path in BAD_KEYS})
        prepare = ["prepare", "--input", str(folder / "in"), "--output", str(folder / "out")]
        assert main([*prepare, "--splits=train=1", "--check=none", "--no_report", "--quiet"]) == 0
        return folder / "out"

    return tf_input.open(make_once(tmp_path_factory, "unchecked_dataset", make))


def keys_of(batches: tf.data.Dataset) -> list[str]:
    return sorted(key.decode() for _, keys in batches for key in keys.numpy())


@pytest.mark.slow
def test_error_for_undecodable_image_has_key_shard_and_record(unchecked_dataset):
    for options in ({}, {"shuffle": False}, {"augment": True}):
        with pytest.raises(tf.errors.InvalidArgumentError) as error:
            list(unchecked_dataset.batches("train", batch_size=6, image_size=8, seed=1, **options))
        message = str(error.value)
        assert any(path in message for path in BAD_KEYS), options
        assert "tfrecord-00000-of-00001: record" in message and "skip_corrupt=" in message, options
        assert "Traceback" not in message, options


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"shuffle": False}, {"augment": True}, {"map_batch": lambda x, y: (x + 1, y)}])
def test_undecodable_images_are_skipped_every_epoch_and_counted_once(unchecked_dataset, options):
    before = len(unchecked_dataset.skipped)
    batches = unchecked_dataset.batches(
        "train", batch_size=6, image_size=8, seed=1, skip_corrupt=True, with_keys=True, **options
    )
    actual = [keys_of(batches) for _ in range(3)]
    assert all(len(keys) == 22 and not set(BAD_KEYS) & set(keys) for keys in actual)
    assert len({tuple(keys) for keys in actual}) == 1
    skipped = [item for item in unchecked_dataset.skipped if any(path in item.reason for path in BAD_KEYS)]
    assert len(skipped) == 2 and len(unchecked_dataset.skipped) - before in (0, 2)


@pytest.mark.slow
def test_skipping_does_not_change_other_images(unchecked_dataset):
    options = {"batch_size": 6, "image_size": 8, "seed": 1, "with_keys": True}
    actual = []
    for batch_size in (6, 24):
        batches = unchecked_dataset.batches("train", skip_corrupt=True, **options | {"batch_size": batch_size})
        actual.append({key: image for (x, _), keys in batches for key, image in zip(keys.numpy(), x.numpy())})
    assert actual[0].keys() == actual[1].keys() and len(actual[0]) == 22
    for key, image in actual[0].items():
        np.testing.assert_array_equal(image, actual[1][key], err_msg=key)


@pytest.mark.slow
@pytest.mark.parametrize("num_components", [1, 2])
def test_sequence_and_random_access_report_undecodable_images(unchecked_dataset, num_components):
    parts = tf_input.Mixture({f"part{number}": (unchecked_dataset, "train", 1) for number in range(2)})
    arguments, options = {1: (unchecked_dataset, "train"), 2: (parts,)}[num_components], {
        "batch_size": 6,
        "image_size": 8,
        "seed": 1,
        "with_keys": True,
    }
    sequence = tf_input.Sequence(*arguments, **options)
    for step in range(len(sequence)):
        with contextlib.suppress(ValueError):
            sequence[step]
            continue
        with pytest.raises(ValueError, match=r"tfrecord-00000-of-00001: record .*(a/03|b/08)\.png"):
            sequence[step]
    skipping = tf_input.Sequence(*arguments, **options, skip_corrupt=True)
    keys = [key.decode() for step in range(len(skipping)) for key in skipping[step][1]]
    assert set(keys) == set(unchecked_dataset.keys("train")) - set(BAD_KEYS) and len(keys) >= 22
    number = unchecked_dataset.keys("train").tolist().index(BAD_KEYS[0])
    with pytest.raises(ValueError, match=rf"example {number} .*tfrecord-00000-of-00001: record {number}, .*a/03\.png'"):
        unchecked_dataset["train"][number]


@pytest.mark.slow
def test_error_of_map_batch_is_not_skipped(unchecked_dataset):
    def fails(x, y):
        with tf.control_dependencies([tf.debugging.assert_less(tf.reduce_max(y), tf.cast(0, y.dtype), "of the user")]):
            return tf.identity(x), y

    with pytest.raises(tf.errors.InvalidArgumentError, match="of the user"):
        list(unchecked_dataset.batches("train", batch_size=6, image_size=8, seed=1, skip_corrupt=True, map_batch=fails))


@pytest.mark.slow
def test_mixture_reports_and_skips_undecodable_images(unchecked_dataset):
    parts = {"first": (unchecked_dataset, "train", 1), "second": (unchecked_dataset, "train", 1)}
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"(a/03|b/08)\.png"):
        list(tf_input.mix(parts, batch_size=8, image_size=8, seed=1))
    actual = keys_of(tf_input.mix(parts, batch_size=8, image_size=8, seed=1, skip_corrupt=True, with_keys=True))
    assert len(actual) > 40 and not set(BAD_KEYS) & set(actual)


@pytest.mark.slow
def test_cached_split_reports_and_skips_undecodable_images(tmp_path):
    files = {f"a/{number:02}.png": png(number, 20, 30) for number in range(12)} | {"a/03.png": png(1, 20, 30)[:200]}
    write_files(tmp_path / "in", files)
    prepare = ["prepare", "--input", str(tmp_path / "in"), "--output", str(tmp_path / "out"), "--splits=train=1", "--no_report", "--quiet"]
    assert main([*prepare, "--check=header", "--image_size=exact=20x30"]) == 0
    dataset = tf_input.open(tmp_path / "out")
    options = {"batch_size": 4, "image_size": None, "seed": 1, "with_keys": True}
    with pytest.raises(ValueError, match=r"a/03\.png"):
        list(dataset.batches("train", **options))
    actual = keys_of(dataset.batches("train", skip_corrupt=True, **options))
    assert len(actual) == 11 and "a/03.png" not in actual and len(dataset.skipped) == 1
