"""Tests that datasets of `prepare --records verbatim` are read with a function `parse`, in exact order and with keys."""

import pathlib
import pickle
import random

import numpy as np
import pytest
import tensorflow as tf

import tf_input
from beam_pipelines.__main__ import main
from made_records import example, write_records
from prepared import make_once, mixed_images
from resumed import batches_from

NUM_RECORDS = 90


def prepare(folder: pathlib.Path) -> pathlib.Path:
    """Prepares records with an id and a list of numbers, and returns the path of the dataset."""
    randomness = random.Random(3)
    records = [example({"id": number, "numbers": [1] * randomness.randrange(4)}) for number in range(NUM_RECORDS)]
    for part in range(2):
        write_records(folder / "in" / f"part{part}.tfrecord", records[part::2])
    command = ["prepare", f"--input={folder / 'in'}", f"--output={folder / 'out'}", "--source=tfrecord", "--records=verbatim"]
    assert main([*command, "--splits=train=0.9,validation=0.1", "--num_shards=train=3,validation=1"]) == 0
    return folder / "out"


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> tf_input.PreparedDataset:
    return tf_input.open(make_once(tmp_path_factory, "verbatim", prepare))


def parse(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the id as both x and y."""
    parsed = tf.io.parse_single_example(record, {"id": tf.io.FixedLenFeature([], tf.int64)})
    return parsed["id"], parsed["id"] * 10


def parse_words(record: tf.Tensor) -> dict[str, tf.Tensor]:
    features = {"numbers": tf.io.RaggedFeature(tf.int64), "id": tf.io.FixedLenFeature([], tf.int64)}
    return tf.io.parse_single_example(record, features)


def parse_sparse(record: tf.Tensor) -> dict[str, tf.Tensor]:
    return tf.io.parse_single_example(record, {"numbers": tf.io.VarLenFeature(tf.int64)})


def records_of(dataset: tf_input.PreparedDataset, split: str) -> list[bytes]:
    """Returns the records of a split in shard order, read without `tf_input`."""
    paths = [str(dataset.directory / shard.name) for shard in dataset.manifest.splits[split]]
    return list(tf.data.TFRecordDataset(paths).as_numpy_iterator())


def ids(records: list[bytes]) -> list[int]:
    return [tf.train.Example.FromString(record).features.feature["id"].int64_list.value[0] for record in records]


def test_records_are_parsed_in_shard_order(dataset):
    stored = ids(records_of(dataset, "train"))
    read = [x for batch, _ in dataset.as_numpy("train", batch_size=7, shuffle=False, parse=parse) for x in batch.tolist()]
    assert read == stored
    raw = [x for batch in dataset.as_numpy("train", batch_size=7, shuffle=False, parse=lambda record: record) for x in batch.tolist()]
    assert raw == records_of(dataset, "train")


@pytest.mark.parametrize("shuffle", ["window", "exact"])
def test_each_epoch_has_all_records_with_their_keys(dataset, shuffle):
    numbers = dict(zip(dataset.keys("train"), ids(records_of(dataset, "train"))))
    data = dataset.batches("train", batch_size=7, shuffle=shuffle, seed=1, parse=parse, with_keys=True)
    epochs = []
    for _ in range(2):
        pairs = [pair for (x, y), keys in data.as_numpy_iterator() for pair in zip(x.tolist(), y.tolist(), keys.tolist())]
        assert all(numbers[key.decode()] == x == y // 10 for x, y, key in pairs)
        epochs.append([x for x, *_ in pairs])
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(numbers.values()) and epochs[0] != epochs[1]


@pytest.mark.slow
def test_two_hosts_read_all_records_and_padding_has_no_weight(dataset):
    options = {"batch_size": 8, "seed": 4, "parse": parse, "with_keys": True, "select": range(81)}
    whole = [x.tolist() for (x, _), _ in dataset.as_numpy("train", **options)]
    halves = [list(dataset.as_numpy("train", hosts=(2, host), **options)) for host in range(2)]
    assert len(whole[-1]) % 2 == 1, "the last batch needs padding"
    for step, batch in enumerate(whole):
        read = []
        for (x, y, weight), keys in (half[step] for half in halves):
            assert ((weight == 1) == (keys != b"")).all()
            read += x[weight == 1].tolist()
        assert sorted(read) == sorted(batch), step


def test_a_weight_of_parse_is_kept_and_padding_is_masked(dataset):
    weighted = lambda record: (*parse(record), tf.constant([2.0, 3.0]))
    weights = [batch[2] for batch in dataset.as_numpy("train", batch_size=8, seed=4, select=range(81), hosts=(2, 1), parse=weighted)]
    assert weights[0].tolist() == [[2.0, 3.0]] * 4 and weights[-1].tolist()[-1] == [0.0, 0.0]


@pytest.mark.slow
@pytest.mark.parametrize("keys", [False, True])
def test_reading_resumes_at_any_batch(dataset, keys):
    options = {"batch_size": 7, "seed": 2, "parse": parse, "with_keys": keys}
    flat = lambda batch: [leaf.tolist() for leaf in tf.nest.flatten(batch)]
    whole = list(map(flat, dataset.as_numpy("train", **options)))
    data = dataset.batches("train", **options)
    assert list(map(flat, batches_from(data, 0, 5).as_numpy_iterator())) == whole[5:]
    following = list(map(flat, batches_from(data, 1).as_numpy_iterator()))
    data.iterator_state.go_to(0, 3)
    assert list(map(flat, data.as_numpy_iterator())) == whole[3:] + following[:3]


def test_values_of_varying_shape_become_ragged_or_sparse(dataset):
    stored = [tf.train.Example.FromString(record).features.feature["numbers"].int64_list.value[:] for record in records_of(dataset, "train")]
    batches = dataset.batches("train", batch_size=7, shuffle=False, parse=parse_words)
    assert [row for batch in batches for row in batch["numbers"].to_list()] == stored
    sparse = dataset.batches("train", batch_size=7, shuffle=False, parse=parse_sparse)
    assert sum(int(tf.reduce_sum(batch["numbers"].values)) for batch in sparse) == sum(map(sum, stored))


def test_map_batch_replaces_parse(dataset):
    features = {"id": tf.io.FixedLenFeature([], tf.int64)}
    data = dataset.as_numpy("train", batch_size=7, shuffle=False, map_batch=lambda records: tf.io.parse_example(records, features)["id"])
    assert np.concatenate(list(data)).tolist() == ids(records_of(dataset, "train"))
    after = dataset.as_numpy("train", batch_size=7, shuffle=False, parse=parse, map_example=lambda x, y: x + y)
    assert np.concatenate(list(after)).tolist() == [11 * number for number in ids(records_of(dataset, "train"))]


def test_examples_are_the_bytes_of_records(dataset):
    records, keys = records_of(dataset, "train"), dataset.keys("train")
    assert dataset["train"][3] == records[3] and dataset["train"][keys[5]] == records[5]
    assert keys[5] in dataset["train"] and "missing" not in dataset["train"]
    assert pickle.loads(pickle.dumps(dataset["train"]))[-1] == records[-1]


def test_selected_and_mixed_records_are_parsed(dataset):
    chosen = dataset.as_numpy("train", batch_size=7, parse=parse, select="path == 'part1.tfrecord'")
    assert all(x % 2 == 1 for batch, _ in chosen for x in batch.tolist())
    for select, is_chosen in {"id >= 40": lambda x: x >= 40, "id in (3, 5, 7)": lambda x: x in (3, 5, 7)}.items():
        chosen = dataset.as_numpy("train", batch_size=7, parse=parse, select=select)
        assert sorted(x for batch, _ in chosen for x in batch.tolist()) == sorted(filter(is_chosen, ids(records_of(dataset, "train")))), select
    mixed = tf_input.mix({"a": (dataset, "train", 0.5), "b": (dataset, "validation", 0.5)}, batch_size=4, seed=0, parse=parse)
    x, y = next(iter(mixed))
    assert (y.numpy() == 10 * x.numpy()).all()


def test_earlier_batch_is_found_without_parse(dataset):
    found = dataset.which("train", epoch=1, step=2, batch_size=7, seed=6)
    data = dataset.batches("train", batch_size=7, seed=6, parse=parse, with_keys=True)
    _, keys = next(iter(batches_from(data, 1, 2)))
    assert found["key"].tolist() == [key.decode() for key in keys.numpy().tolist()]


@pytest.mark.slow
def test_records_that_parse_rejects_are_named_or_skipped(dataset):
    def reject(record: tf.Tensor) -> tf.Tensor:
        number, _ = parse(record)
        with tf.control_dependencies([tf.debugging.assert_none_equal(number % 10, tf.constant(3, tf.int64))]):
            return tf.identity(number)

    with pytest.raises(tf.errors.InvalidArgumentError, match="record .*at byte"):
        list(dataset.batches("train", batch_size=7, shuffle=False, parse=reject))
    skipping = tf_input.open(dataset.directory)
    read = [x for batch in skipping.as_numpy("train", batch_size=7, shuffle=False, parse=reject, skip_corrupt=True) for x in batch.tolist()]
    assert read == [number for number in ids(records_of(dataset, "train")) if number % 10 != 3] and len(skipping.skipped)


@pytest.mark.slow
def test_errors_name_the_option(dataset, tmp_path_factory):
    cases = {
        "parse=": {},
        "image_size=": {"parse": parse, "image_size": 4},
        "targets=": {"parse": parse, "targets": ("id",)},
        "class_weight=": {"parse": parse, "class_weight": "balanced"},
        "returned None": {"parse": lambda record: None},
        "tuple of 4": {"parse": lambda record: (record,) * 4},
        "number of dimensions": {"parse": lambda record: tf.io.parse_tensor(record, tf.float32)},
        "parse='x'": {"parse": "x"},
    }
    for named, options in cases.items():
        with pytest.raises(ValueError, match=named):
            dataset.batches("train", batch_size=4, **options)
    with pytest.raises(ValueError, match="map_example"):
        tf_input.open(mixed_images(tmp_path_factory)).batches("train", batch_size=4, image_size=8, parse=parse)


@pytest.mark.slow
def test_model_is_trained_and_predicts(dataset):
    keras = pytest.importorskip("keras")
    scaled = lambda record: tf.nest.map_structure(lambda value: tf.reshape(tf.cast(value, tf.float32) / 100, [1]), parse(record))
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(loss="mse")
    train = dataset.batches("train", batch_size=8, seed=0, parse=scaled)
    model.fit(train, validation_data=dataset.batches("validation", batch_size=8, parse=scaled), epochs=1, verbose=0)
    found = dataset.predict(model, "validation", batch_size=8, parse=scaled)
    assert found["key"].tolist() == dataset.keys("validation").tolist() and found["output"].shape == (len(dataset["validation"]), 1)
    with pytest.raises(ValueError, match="verbatim"):
        tf_input.export_serving(model, train, "unused")
