"""Tests that undecodable records are skipped and counted, or cause an error with the file and the record number."""

import pathlib
from collections import Counter

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.data.experimental.ops.distribute import _AutoShardDataset

import tf_input
from made_images import encode, noise
from made_records import example, write_records

COUNT = 9  # number of records in each file
IMAGE = encode(noise(0, 40, 40), "PNG")
BAD_IMAGES = {  # (file, record): image bytes, and a part of the error message
    (0, 4): (IMAGE[:200], "PNG"),
    (1, 3): (b"", "empty"),
    (1, 5): (encode(noise(0, 40, 40), "JPEG")[:-200], "JPEG"),
    (2, 7): (b"<html>not found</html>", "format"),
}

# A random crop can miss the missing rows of a truncated JPEG, and then the crop is decoded without an error.
NO_CROP = tf_input.Augmentation(crop=False)


def write_files(
    folder: pathlib.Path, compression: str = "", with_keys: bool = True, bad=BAD_IMAGES
) -> tf_input.RecordFiles:
    for file in range(3):
        records = []
        for number in range(COUNT):
            image = encode(noise(10 * file + number, 40, 40), "PNG")
            record = {"image/encoded": bad.get((file, number), [image])[0], "image/class/label": 10 * file + number}
            records.append(example(record | ({"image/filename": f"{file}/{number}.png"} if with_keys else {})))
        write_records(folder / f"{file}.tfrecord", records, compression)
    return tf_input.open_tfrecords(folder / "*.tfrecord")


def labels_of(batches: tf.data.Dataset) -> list[int]:
    return [label for _, labels in batches for label in labels.numpy().tolist()]


@pytest.mark.slow
@pytest.mark.parametrize("compression", ["", "GZIP"])
@pytest.mark.parametrize("options", [{"shuffle": False}, {"seed": 1}, {"augment": NO_CROP}, {"drop_remainder": True}])
def test_error_for_undecodable_record_has_file_number_and_key(tmp_path, compression, options):
    for (file, number), (image, reason) in BAD_IMAGES.items():
        files = write_files(tmp_path, compression, bad={(file, number): (image, reason)})
        with pytest.raises(tf.errors.InvalidArgumentError) as error:
            list(files.batches(batch_size=3, image_size=8, **options))
        message = str(error.value)
        assert f"{file}.tfrecord: record {number}: " in message and f"{file}/{number}.png" in message
        assert reason in message and "skip_corrupt=" in message and "Traceback" not in message


@pytest.mark.slow
@pytest.mark.parametrize("compression", ["", "GZIP"])
@pytest.mark.parametrize("options", [{"shuffle": False}, {}, {"augment": NO_CROP}, {"map_batch": lambda x, y: (x + 1, y)}])
def test_undecodable_records_are_skipped_every_epoch_and_counted_once(tmp_path, compression, options):
    files = write_files(tmp_path, compression, with_keys=False)
    batches = files.batches(batch_size=4, image_size=8, skip_corrupt=True, seed=1, **options)
    expected = [10 * file + number for file in range(3) for number in range(COUNT) if (file, number) not in BAD_IMAGES]
    for _ in range(2):
        assert sorted(labels_of(batches)) == expected
    actual = {(int(pathlib.Path(item.shard).stem), item.record) for item in files.skipped}
    assert actual == set(BAD_IMAGES) and len(files.skipped) == len(BAD_IMAGES)


@pytest.mark.slow
def test_identical_undecodable_records_are_counted_separately(tmp_path):
    bad = {(0, 2): [b"no image"], (0, 5): [b"no image"]}
    write_records(tmp_path / "a", [example({"image/encoded": bad.get((0, number), [IMAGE])[0]}) for number in range(8)])
    files = tf_input.open_tfrecords(tmp_path / "a")
    assert sum(len(x) for x in files.batches(batch_size=8, image_size=8, skip_corrupt=True)) == 6
    assert sorted(item.record for item in files.skipped) == [2, 5]  # records are decoded in parallel


@pytest.mark.slow
def test_skipping_does_not_change_the_other_examples(tmp_path):
    bad = {(1, 0): BAD_IMAGES[0, 4], (1, 3): BAD_IMAGES[0, 4]}
    images = {}
    for case, skip_corrupt in {"bad": True, "good": False}.items():
        (tmp_path / case).mkdir()
        files = write_files(tmp_path / case, bad=bad if case == "bad" else {})
        batches = files.batches(batch_size=4, image_size=8, skip_corrupt=skip_corrupt, seed=1, augment=True)
        images[case] = {int(label): image for x, y in batches for label, image in zip(y, x.numpy())}
    assert set(images["good"]) - set(images["bad"]) == {10, 13}
    for label, image in images["bad"].items():
        np.testing.assert_array_equal(image, images["good"][label], err_msg=str(label))


@pytest.mark.slow
def test_strategy_shards_the_records_among_its_workers(tmp_path):
    batches = write_files(tmp_path).batches(batch_size=4, image_size=8, skip_corrupt=True, shuffle=False)
    actual = Counter(label for worker in range(3) for label in labels_of(_AutoShardDataset(batches, 3, worker)))
    assert len(actual) == 3 * COUNT - len(BAD_IMAGES) and set(actual.values()) == {1}


@pytest.mark.slow
def test_batch_without_decodable_records_raises_an_error(tmp_path):
    files = write_files(tmp_path, bad={(1, number): BAD_IMAGES[0, 4] for number in range(COUNT)})
    with pytest.raises(tf.errors.InvalidArgumentError, match="skipped"):
        list(files.batches(batch_size=4, image_size=8, skip_corrupt=True, shuffle=False))
