"""Tests that access by index returns the same examples as reading the shards with TensorFlow."""

import pathlib
import shutil
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_input
from beam_pipelines.__main__ import main
from made_sources import SIDE, write_coco, write_folders, write_jsonl
from tf_input.dataset_format import Feature

NUM = 20
TABLE = [
    *("--label=class", "--label=tags:multi_label", "--label=mask_path:mask", "--feature=heat_path:array[4,4,2]"),
    *("--feature=age:float", "--feature=count:integer", "--feature=city:text"),
]
SOURCES = {
    "table": (write_jsonl, TABLE),
    "objects": (write_coco, ["--masks"]),
    "raw": (write_folders, ["--image_encoding=raw", f"--image_size=exact={SIDE}x{SIDE}"]),
}


@pytest.fixture(scope="module")
def datasets(tmp_path_factory) -> dict[str, tf_input.PreparedDataset]:
    """Datasets with all kinds of features. Each dataset has one split with three shards."""
    root, actual = tmp_path_factory.mktemp("accessed"), {}
    for name, (write, options) in SOURCES.items():
        path = root / f"{name}-in"
        command = ["prepare", "--input", str(path / write(path)), "--output", str(root / name), *options]
        assert main([*command, "--splits=train=1", "--num_shards=train=3"]) == 0
        actual[name] = tf_input.open(root / name)
    return actual


def read_with_tensorflow(dataset: tf_input.PreparedDataset) -> list[tf.train.Example]:
    files = [str(dataset.directory / shard.name) for shard in dataset.manifest.splits["train"]]
    return [tf.train.Example.FromString(record) for record in tf.data.TFRecordDataset(files).as_numpy_iterator()]


def expected_value(stored: tf.train.Feature, feature: Feature) -> Any:
    """Returns the expected value of a feature as a Python value or a NumPy array."""
    if feature.kind == "class_label" and feature.is_ragged and not feature.name.startswith("objects/"):
        hot = np.zeros(len(feature.label_names), np.float32)
        hot[list(stored.int64_list.value)] = 1
        return hot
    values = (stored.bytes_list or stored.int64_list or stored.float_list).value
    if feature.kind == "image":
        return tf.io.decode_image(values[0], channels=3).numpy()
    if feature.kind == "pixels":
        return np.frombuffer(values[0], np.uint8).reshape(feature.shape)
    if feature.kind == "mask":
        return tf.io.decode_png(values[0], channels=1).numpy()
    if feature.kind == "text":
        return values[0].decode()
    if feature.kind in ("class_label", "integer"):
        values = np.array(stored.int64_list.value, np.int64)
    else:
        values = np.array(stored.float_list.value, np.float32)
    return values.reshape([-1 if size is None else size for size in feature.shape]) if feature.shape else values[0].item()


@pytest.mark.slow(0.8)
@pytest.mark.parametrize("name", SOURCES)
def test_examples_contain_the_values_of_their_records(datasets, name):
    dataset = datasets[name]
    train, kinds = dataset["train"], set()
    assert len(train) == NUM
    for index, record in enumerate(read_with_tensorflow(dataset)):
        example = train[index]
        objects = example.pop("objects", {})
        if objects:
            assert objects["valid"].dtype == bool and objects.pop("valid").tolist() == [True] * len(objects["bbox"])
        example |= {f"objects/{name}": value for name, value in objects.items()}
        assert example.keys() == dataset.features.keys()
        for feature in dataset.features.values():
            expected, actual = expected_value(record.features.feature[feature.name], feature), example[feature.name]
            assert type(actual) is type(expected), (index, feature)
            np.testing.assert_array_equal(actual, expected, err_msg=feature.name)
            if isinstance(expected, np.ndarray):
                assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype), (index, feature)
            kinds.add(feature.kind)
    assert {"raw": {"pixels"}, "objects": {"image", "mask", "bbox"}, "table": {"mask", "float", "text"}}[name] <= kinds


@pytest.mark.parametrize("name", SOURCES)
def test_example_equals_a_batch_of_size_one(datasets, name):
    """The text and the scalars of an example are Python values."""
    dataset = datasets[name]
    features = [feature for feature in dataset.features if not feature.startswith("objects/")]
    names = tuple(features + ["objects"] * (len(features) < len(dataset.features)))
    size = dataset["train"][0]["image"].shape[:2]
    options = {"batch_size": 1, "image_size": size, "fit": "stretch", "shuffle": False, "targets": (), "inputs": names}
    for batch, example in zip(dataset.as_numpy("train", **options), dataset["train"], strict=True):
        assert example.keys() == batch.keys() == set(names)
        if example["image"].shape[:2] != size:
            continue
        for value, actual in zip(tf.nest.flatten(batch), tf.nest.flatten(example), strict=True):
            expected = value[0].decode() if isinstance(value[0], bytes) else value[0]
            np.testing.assert_array_equal(actual, expected)
            assert np.shape(actual) == np.shape(expected) and (np.shape(actual) == () or actual.dtype == expected.dtype)


def test_indices_and_slices_work_like_those_of_a_list(datasets):
    train = datasets["table"]["train"]
    keys = [example["key"] for example in train]
    assert len(set(keys)) == len(train) == NUM
    for index in (0, NUM - 1, -1, -NUM, np.int64(7), np.array(7), tf.constant(7)):
        assert train[index]["key"] == keys[index]
    for chosen in (slice(3), slice(-4, None), slice(None, None, -1), slice(2, 99, 5), slice(9, 2)):
        assert [example["key"] for example in train[chosen]] == keys[chosen], chosen
        assert len(train[chosen]) == len(keys[chosen])
    assert train[5:][1:][2]["key"] == keys[8]


def test_rejects_invalid_indices_and_splits(datasets):
    train = datasets["table"]["train"]
    for index in (NUM, -NUM - 1, 10**15):
        with pytest.raises(IndexError, match=f"example {index} .* {NUM}"):
            train[index]
    with pytest.raises(IndexError, match="example 3 .* 3"):
        train[2:5][3]
    for index in (b"key", 1.5, None, (1, 2), [1], True, np.True_, np.array([3, 4]), np.array([3]), np.array(1.0), tf.constant([3, 4])):
        with pytest.raises(TypeError, match=r"examples\[.*examples\[17\] or examples\[:100\]"):
            train[index]
    with pytest.raises(KeyError, match="split='test'"):
        datasets["table"]["test"]


def test_threads_can_read_examples_concurrently(datasets):
    train = datasets["table"]["train"]
    expected = [example["image"] for example in train]
    with ThreadPoolExecutor(8) as pool:
        for index, example in enumerate(pool.map(lambda index: train[index % NUM], range(5 * NUM))):
            np.testing.assert_array_equal(example["image"], expected[index % NUM])


def test_error_for_corrupt_record_has_shard_record_and_offset(datasets, tmp_path):
    dataset = datasets["table"]
    copy = pathlib.Path(shutil.copytree(dataset.directory, tmp_path / "copy"))
    shard = copy / dataset.manifest.splits["train"][1].name
    first = dataset.manifest.splits["train"][0].num_examples
    data = bytearray(shard.read_bytes())
    second = 16 + int.from_bytes(data[:8], "little")  # the offset of the second record
    data[second + 100] ^= 1
    shard.write_bytes(data)
    train = tf_input.open(copy)["train"]
    with pytest.raises(ValueError, match=f"{shard.name}: record 1, at byte {second}: "):
        train[first + 1]
    for index in (first, first + 2):
        np.testing.assert_array_equal(train[index]["image"], dataset["train"][index]["image"])
