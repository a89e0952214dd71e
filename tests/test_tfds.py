"""Peers read what we write: TensorFlow Datasets, and plain tf.data with no code of ours."""

import json
import pathlib
import struct

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from prepared import CLASSES, prepare_images

from tf_input import dataset_format

# As a user would write it, who has only the description of the format.
FEATURES = {
    "image": tf.io.FixedLenFeature([], tf.string),
    "label": tf.io.FixedLenFeature([], tf.int64),
    "key": tf.io.FixedLenFeature([], tf.string),
    "height": tf.io.FixedLenFeature([], tf.int64),
    "width": tf.io.FixedLenFeature([], tf.int64),
}
SPLITS = ("train", "validation")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> pathlib.Path:
    return prepare_images(tmp_path_factory.mktemp("prepared"), "--num_shards", "train=4,validation=2")


def plain_examples(prepared: pathlib.Path, split: str) -> list[dict]:
    """In the order of the shards' names and of their records."""
    files = sorted(str(path) for path in prepared.glob(f"*-{split}.tfrecord-*"))
    data = tf.data.TFRecordDataset(files).map(lambda record: tf.io.parse_single_example(record, FEATURES))
    return list(data.as_numpy_iterator())


def by_key(examples) -> dict[bytes, dict]:
    return {example["key"]: example for example in examples}


def test_plain_tf_data_reads_every_record(prepared):
    examples = [example for split in SPLITS for example in plain_examples(prepared, split)]
    assert len(by_key(examples)) == len(examples) == sum(CLASSES.values())
    names = sorted(CLASSES)
    for example in examples:
        key = example["key"].decode()
        assert key.startswith(f"{names[example['label']]}/"), key
        assert example["image"] == (prepared.parent / "source" / key).read_bytes(), key
        image = tf.io.decode_image(example["image"], channels=3)
        assert image.shape == (example["height"], example["width"], 3), key


def test_tensorflow_datasets_opens_it(prepared):
    builder = tfds.builder_from_directory(str(prepared))
    assert builder.info.name == "made"
    assert set(builder.info.splits) == set(SPLITS)
    assert builder.info.features["label"].names == sorted(CLASSES)
    assert builder.info.supervised_keys == ("image", "label")
    for split in SPLITS:
        expected = by_key(plain_examples(prepared, split))
        examples = by_key(tfds.as_numpy(builder.as_dataset(split=split)))
        assert builder.info.splits[split].num_examples == len(expected) == len(examples)
        assert examples.keys() == expected.keys()
        for key, example in examples.items():
            assert set(example) == set(FEATURES), key
            assert example["label"] == expected[key]["label"], key
            np.testing.assert_array_equal(example["image"], tf.io.decode_image(expected[key]["image"], channels=3), str(key))


def test_tensorflow_datasets_reads_it_supervised_and_in_part(prepared):
    builder = tfds.builder_from_directory(str(prepared))
    pairs = list(builder.as_dataset(split="train[:50%]", as_supervised=True))
    assert len(pairs) == round(builder.info.splits["train"].num_examples / 2)
    assert all(image.dtype == tf.uint8 and label.dtype == tf.int64 for image, label in pairs)


def test_tensorflow_datasets_opens_a_set_of_unchecked_images(tmp_path):
    """Without heights and widths."""
    output = prepare_images(tmp_path, "--check", "none", num_images={"ant": 20, "bee": 20})
    builder = tfds.builder_from_directory(str(output))
    assert sum(len(list(builder.as_dataset(split=split))) for split in SPLITS) == 40


def test_every_row_of_an_index_points_at_its_record(prepared):
    manifest = json.loads((prepared / "manifest.json").read_text())
    for split in SPLITS:
        examples = iter(plain_examples(prepared, split))
        for shard in manifest["splits"][split]["shards"]:
            data = (prepared / shard["name"]).read_bytes()
            rows = list(dataset_format.decode_index((prepared / shard["index"]).read_bytes()))
            assert len(rows) == shard["num_examples"], shard["name"]
            position = 0
            for row in rows:
                example, place = next(examples), (shard["name"], row)
                assert row.record_offset == position, place
                (num_bytes,) = struct.unpack_from("<Q", data, position)  # then its checksum, the record, and its checksum
                record = tf.train.Example.FromString(data[position + 12 : position + 12 + num_bytes])
                assert record.features.feature["key"].bytes_list.value[0] == example["key"], place
                assert data[row.image_offset : row.image_offset + row.image_length] == example["image"], place
                assert row.label == example["label"], place
                position += 16 + num_bytes
            assert position == len(data) == shard["num_bytes"], shard["name"]
        assert not list(examples), split
