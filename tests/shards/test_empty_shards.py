"""Tests that datasets can be read even if some shards are empty because of rejected inputs."""

import pathlib
from collections import Counter
from typing import Any

import pyarrow.parquet as pq
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

import tf_input
from beam_pipelines.__main__ import main
from made_images import write_files
from prepared import prepare_images
from tf_input.dataset_format import read_manifest

NUM_SHARDS = 8
EMPTY = (0, 1, 4, NUM_SHARDS - 1)
OPTIONS = ("--splits=train=1", f"--num_shards={NUM_SHARDS}", "--max_bad_fraction=0.6")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> pathlib.Path:
    """Returns a dataset with eight shards. The first two shards, the fifth shard and the last shard are empty."""
    folder = tmp_path_factory.mktemp("prepared")
    complete = prepare_images(folder, *OPTIONS, num_images={"ant": 17, "bee": 15}, image_size=(20, 24))
    catalogs = sorted((complete / "catalog").iterdir())
    keys = [key for index in EMPTY for key in pq.read_table(catalogs[index]).column("key").to_pylist()]
    write_files(folder / "source", dict.fromkeys(keys, b"no image"))
    assert main(["prepare", "--input", str(folder / "source"), "--output", str(folder / "out"), *OPTIONS]) == 0
    shards = read_manifest(folder / "out").splits["train"]
    assert [index for index, shard in enumerate(shards) if not shard.num_examples] == list(EMPTY)
    assert sum(shard.num_examples for shard in shards) == 16
    return folder / "out"


def keys_of(data: Any) -> Counter:
    return Counter(key for batch in data for key in batch.numpy().tolist())


def read(directory: pathlib.Path, **options: Any) -> tf.data.Dataset:
    return tf_input.open(directory).batches("train", batch_size=3, inputs="key", targets=(), **{"seed": 1, "drop_remainder": False, **options})


def stored_keys(directory: pathlib.Path) -> Counter:
    """Returns the number of records with each key, which are read without `tf_input`."""
    names = [str(directory / shard.name) for shard in read_manifest(directory).splits["train"]]
    examples = map(tf.train.Example.FromString, tf.data.TFRecordDataset(names).as_numpy_iterator())
    return Counter(example.features.feature["key"].bytes_list.value[0] for example in examples)


@pytest.mark.slow
def test_empty_shards_have_files_and_catalogs_with_the_same_columns(prepared):
    shards = read_manifest(prepared).splits["train"]
    tables = [pq.read_table(prepared / shard.catalog) for shard in shards]
    for index, (shard, table) in enumerate(zip(shards, tables)):
        assert (prepared / shard.name).stat().st_size == shard.num_bytes and (shard.num_bytes == 0) == (index in EMPTY)
        assert table.schema == tables[2].schema and table.num_rows == shard.num_examples, index
    assert pq.read_table(prepared / "catalog").num_rows == 16


READ_OPTIONS = {
    "without shuffling": {"shuffle": False, "cache_in_memory": 0},
    "window": {"shuffle": "window", "cache_in_memory": 0},
    "exact": {"shuffle": "exact", "cache_in_memory": 0},
    "in memory": {"shuffle": True},
    "skip_corrupt=skip": {"shuffle": "window", "cache_in_memory": 0, "skip_corrupt": True},
}


@pytest.mark.slow(0.4)
@pytest.mark.parametrize("case", READ_OPTIONS)
def test_epoch_has_each_example_once(prepared, case):
    data = read(prepared, **READ_OPTIONS[case])
    assert keys_of(data.take(int(data.cardinality()))) == stored_keys(prepared)


def test_augmented_epoch_has_all_images(prepared):
    """An epoch with augmentation contains all examples, even if some shards are empty."""
    data = tf_input.open(prepared).batches("train", batch_size=4, image_size=8, augment=True, cache_in_memory=0)
    assert sum(len(labels) for _, labels in data.take(int(data.cardinality()))) == 16


@pytest.mark.slow
@pytest.mark.parametrize("host_count", [2, 4, 8])
def test_hosts_read_all_examples_together(prepared, host_count):
    """All hosts have the same number of steps, even if all shards of a host are empty."""
    options = {"cache_in_memory": 0, "shuffle": "exact", "seed": 1}
    flowers = tf_input.open(prepared)
    actual = Counter()
    for host in range(host_count):
        data = flowers.batches("train", batch_size=8, inputs="key", targets=(), hosts=(host_count, host), **options)
        actual += keys_of(data.take(int(data.cardinality())))
    assert actual == stored_keys(prepared)


def test_examples_can_be_indexed(prepared):
    examples = tf_input.open(prepared)["train"]
    assert len(examples) == 16
    assert Counter(examples[index]["key"].encode() for index in range(-16, 0)) == stored_keys(prepared)


def test_keras_sequence_has_full_batches(prepared):
    sequence = tf_input.Sequence(tf_input.open(prepared), "train", batch_size=4, image_size=8, shuffle=True)
    assert [len(labels) for _, labels in (sequence[index] for index in range(len(sequence)))] == [4] * 4


def test_files_without_a_manifest_can_be_read(prepared, tmp_path):
    shards = read_manifest(prepared).splits["train"]
    write_files(tmp_path, {shard.name: (prepared / shard.name).read_bytes() for shard in shards})
    data = tf_input.open_tfrecords(f"{tmp_path}/*-train*").batches(batch_size=3, image_size=8, shuffle=False)
    assert sum(len(labels) for _, labels in data) == 16


def test_tensorflow_datasets_reads_all_examples(prepared):
    builder = tfds.builder_from_directory(str(prepared))
    assert builder.info.splits["train"].num_examples == 16
    assert Counter(entry["key"] for entry in builder.as_dataset(split="train").as_numpy_iterator()) == stored_keys(prepared)
    parts = [builder.as_dataset(split=part).as_numpy_iterator() for part in ("train[:30%]", "train[30%:]")]
    assert Counter(item["key"] for part in parts for item in part) == stored_keys(prepared)


def test_dataset_is_a_source(prepared, tmp_path):
    assert main(["prepare", "--input", str(prepared), "--output", str(tmp_path / "out")]) == 0
    assert stored_keys(tmp_path / "out") == stored_keys(prepared)


@pytest.mark.slow
def test_benchmark_succeeds(prepared, capsys):
    assert main(["benchmark", str(prepared), "--batch_size=4", "--image_size=8", "--seconds=0.05"]) == 0


@pytest.mark.slow(5)
def test_analyze_and_transform_keep_empty_shards(prepared, tmp_path):
    pytest.importorskip("tensorflow_transform")
    assert main(["analyze", str(prepared), "--image_size=8"]) == 0
    assert main(["transform", str(prepared), str(tmp_path / "out")]) == 0
    assert stored_keys(tmp_path / "out") == stored_keys(prepared)
    shards = read_manifest(tmp_path / "out").splits["train"]
    assert [index for index, shard in enumerate(shards) if not shard.num_examples] == list(EMPTY)
    assert keys_of(read(tmp_path / "out", shuffle=False)) == stored_keys(prepared)
