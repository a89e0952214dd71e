"""Tests that reading a corrupt dataset either raises an error with the file name or returns each intact record once."""

import itertools
import json
import pathlib
import shutil
from typing import Any, Callable

import pytest
import tensorflow as tf

import tf_input
from made_shards import flip
from prepared import prepare_images
from tf_input.dataset_format import INDEX_HEADER, INDEX_ROW, decode_index, read_manifest

BATCH_SIZE, NUM_SHARDS = 8, 4
ORDERS = {
    "storage order": {"shuffle": False, "cache_in_memory": 0},
    "window": {"shuffle": "window", "cache_in_memory": 0},
    "exact": {"shuffle": "exact", "cache_in_memory": 0},
    "in memory": {"shuffle": True},
}
ERRORS = (OSError, ValueError, tf.errors.InvalidArgumentError)


@pytest.fixture(scope="module")
def complete(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("whole")
    return prepare_images(
        folder,
        "--splits",
        "train=1",
        "--num_shards",
        str(NUM_SHARDS),
        num_images={"ant": 30, "bee": 31},
        image_size=(12, 16),
    )


@pytest.fixture
def copy(complete, tmp_path) -> pathlib.Path:
    """Returns a copy of the dataset, which the test can corrupt."""
    return shutil.copytree(complete, tmp_path / "copy")


def shards_of(directory: pathlib.Path) -> list[pathlib.Path]:
    return [directory / shard.name for shard in read_manifest(directory).splits["train"]]


def offsets_of(directory: pathlib.Path, shard: int) -> list[int]:
    """Returns the offsets of all records of a shard, and the length of the shard."""
    info = read_manifest(directory).splits["train"][shard]
    return [*(row.record_offset for row in decode_index((directory / info.index).read_bytes())), info.num_bytes]


def batches(flowers: tf_input.PreparedDataset, **options: Any) -> tf.data.Dataset:
    options = {"image_size": 8, "seed": 3, "skip_corrupt": True, "inputs": ("image", "key"), **options}
    return flowers.batches("train", batch_size=BATCH_SIZE, targets=(), **options)


def batches_of_keys(flowers: tf_input.PreparedDataset, order: str, **options: Any) -> tf.data.Dataset:
    """Returns batches of example keys, read in the given order."""
    return batches(flowers, **({} if order == "in memory" else {"inputs": "key"}), **ORDERS[order], **options)


def keys_of(data: tf.data.Dataset) -> list[bytes]:
    """Returns the keys of an epoch and asserts that the cardinality is correct and that no batch is empty."""
    actual = [(batch["key"] if isinstance(batch, dict) else batch).numpy().tolist() for batch in data]
    assert len(actual) == data.cardinality() and all(actual)
    return sum(actual, [])


@pytest.fixture(scope="module")
def keys(complete) -> list[list[bytes]]:
    """Returns the keys of all records in each shard."""
    counts = [shard.num_examples for shard in read_manifest(complete).splits["train"]]
    actual = iter(keys_of(batches(tf_input.open(complete), shuffle=False)))
    return [[next(actual) for _ in range(count)] for count in counts]


def other_keys(keys: list[list[bytes]], *locations: tuple[int, int]) -> list[bytes]:
    return sorted(key for i, some in enumerate(keys) for j, key in enumerate(some) if (i, j) not in locations)


@pytest.mark.slow(0.4)
@pytest.mark.parametrize("order", ORDERS)
def test_flipped_bit_raises_an_error_with_its_record(copy, order):
    flip(shards_of(copy)[2], (offset := offsets_of(copy, 2)[5]) * 8 + 300)
    with pytest.raises(ERRORS) as error:  # the order `in memory` reads all records when it is created
        list(batches(tf_input.open(copy), skip_corrupt=False, **ORDERS[order]))
    message = str(error.value)
    assert f"{shards_of(copy)[2]}: record 5, at byte {offset}" in message
    assert "Traceback" not in message


@pytest.mark.slow(0.5)
@pytest.mark.parametrize("order", ORDERS)
def test_intact_records_appear_once_in_every_epoch(copy, keys, order, caplog):
    corrupt = [(0, 0), (2, 5), (2, 6), (3, 14)]
    for shard, record in corrupt:
        flip(shards_of(copy)[shard], offsets_of(copy, shard)[record] * 8 + 300)
    flowers = tf_input.open(copy)
    data = batches(flowers, **ORDERS[order])
    with caplog.at_level("WARNING", "tf_input"):
        epochs = [keys_of(data), keys_of(data)]
    assert [sorted(epoch) for epoch in epochs] == [other_keys(keys, *corrupt)] * 2
    assert len(flowers.skipped) == 4
    actual = sorted((entry.shard, entry.record, entry.offset) for entry in flowers.skipped)
    assert actual == [(str(shards_of(copy)[i]), j, offsets_of(copy, i)[j]) for i, j in corrupt]
    assert len([item for item in caplog.records if item.getMessage().startswith("skipped ")]) == 4


def truncate(shard: int, location: Callable[[list[int]], int]) -> Callable[[pathlib.Path], None]:
    def corruption(directory: pathlib.Path) -> None:
        path = shards_of(directory)[shard]
        path.write_bytes(path.read_bytes()[: location(offsets_of(directory, shard))])

    return corruption


def append(directory: pathlib.Path) -> None:
    with open(shards_of(directory)[1], "ab") as file:
        file.write(b"more")


# Maps each case to the corruption, words of the error, the number of readable records in shard 1, and the orders.
LOSSES = {
    "shard truncated within a record": (truncate(1, lambda offsets: offsets[9] + 20), "bytes; manifest.json says", 9, tuple(ORDERS)),
    "shard truncated between records": (truncate(1, lambda offsets: offsets[9]), "bytes; manifest.json says", 9, ("window", "exact")),
    "shard truncated within a length": (truncate(1, lambda offsets: offsets[9] + 3), "bytes; manifest.json says", 9, ("storage order", "in memory")),
    "empty shard": (truncate(1, lambda offsets: 0), "has 0 bytes; manifest.json says", 0, ("window",)),
    "missing shard": (lambda directory: shards_of(directory)[1].unlink(), "is missing; manifest.json lists it", 0, ("window",)),
    "bytes after a shard": (append, "bytes; manifest.json says", 99, tuple(ORDERS)),
}


@pytest.mark.slow(0.4)
@pytest.mark.parametrize("case", LOSSES)
def test_shard_with_a_wrong_size_is_reported_or_skipped(copy, keys, case):
    corruption, expected, num_remaining, orders = LOSSES[case]
    corruption(copy)
    with pytest.raises((FileNotFoundError, ValueError)) as error:
        batches(tf_input.open(copy), skip_corrupt=False)
    assert str(shards_of(copy)[1]) in str(error.value) and expected in str(error.value)

    lost = [(1, record) for record in range(num_remaining, len(keys[1]))]
    left = other_keys(keys, *lost)
    for order in orders:
        flowers = tf_input.open(copy)
        data = batches_of_keys(flowers, order)
        assert data.cardinality() == -(-len(left) // BATCH_SIZE), (case, order)
        assert sorted(keys_of(data)) == left, (case, order)
        assert len(flowers.skipped) == len(lost), (case, order)


@pytest.mark.slow
def test_hosts_share_the_remaining_records(copy, keys):
    LOSSES["missing shard"][0](copy)
    for order in ("storage order", "window", "exact"):
        parts = [keys_of(batches_of_keys(tf_input.open(copy), order, hosts=(2, host))) for host in range(2)]
        left = other_keys(keys, *((1, record) for record in range(len(keys[1]))))
        assert len(parts[0]) == len(parts[1]), order
        assert len(set(parts[0] + parts[1])) == len(left) // 2 * 2 and set(parts[0] + parts[1]) <= set(left), order


@pytest.mark.slow(0.5)
@pytest.mark.parametrize("skip_corrupt", [False, True])
def test_shard_replaced_by_another_shard_raises(copy, skip_corrupt):
    """The replacement has intact records and the same size as the original shard, but a different checksum."""
    item, other = shards_of(copy)[:2]
    size = item.stat().st_size
    item.write_bytes((other.read_bytes() * 2)[:size])
    message = f"{item.name} .*manifest.json"
    for order in ORDERS:
        with pytest.raises(ERRORS, match=message):
            list(batches_of_keys(tf_input.open(copy), order, skip_corrupt=skip_corrupt))
    options = {"image_size": 8, "inputs": "key", "targets": (), "skip_corrupt": skip_corrupt, **ORDERS["storage order"]}
    with pytest.raises(ValueError, match=message):
        list(tf_input.Sequence(copy, "train", batch_size=BATCH_SIZE, **options))


def test_batch_without_readable_records_raises(copy):
    for record, offset in enumerate(offsets_of(copy, 0)[:-1]):
        flip(shards_of(copy)[0], 8 * (offset + 12) + record % 8)
    options = {"image_size": 8, "inputs": "key", "targets": (), "skip_corrupt": True, "shuffle": False, "cache_in_memory": 0}
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"all {BATCH_SIZE} records"):
        list(batches(tf_input.open(copy), **ORDERS["storage order"]))
    with pytest.raises(ValueError, match=f"all {BATCH_SIZE} records"):
        list(tf_input.Sequence(copy, "train", batch_size=BATCH_SIZE, **options))


@pytest.mark.slow(0.3)
@pytest.mark.parametrize("order", [order for order in ORDERS if order != "in memory"])
def test_disk_failure_during_training_raises_and_skips_nothing(copy, order):
    """The shard is a link to /proc/self/mem, which can be opened but not read at the offsets of the records."""
    flowers = tf_input.open(copy)
    data = batches(flowers, **ORDERS[order])
    shard = shards_of(copy)[2]
    shard.unlink()
    shard.symlink_to("/proc/self/mem")
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        list(data)
    assert f"{shard}: record " in error.value.message and "[Errno 5]" in error.value.message
    assert "skip_corrupt" not in error.value.message and not len(flowers.skipped)


def index_of(directory: pathlib.Path) -> pathlib.Path:
    return directory / read_manifest(directory).splits["train"][1].index


def rewrite(change: Callable[[bytes], bytes]) -> Callable[[pathlib.Path], None]:
    return lambda directory: index_of(directory).write_bytes(change(index_of(directory).read_bytes()))


INDEXES = {
    "missing": (lambda directory: index_of(directory).unlink(), "is missing"),
    "wrong length": (rewrite(lambda data: data[:-24]), "336 bytes"),
    "wrong format version": (
        rewrite(lambda data: data[:8] + b"\1" + data[9:]),
        "version 1",
    ),
    "wrong magic bytes": (rewrite(lambda data: b"IDX" + data[3:]), "IDXLLIDX"),
}


@pytest.mark.slow(0.6)
@pytest.mark.parametrize("case", INDEXES)
def test_unusable_index_is_named(copy, case):
    """Records are found with the index, so its shard can't be read in any order, and no example is skipped."""
    corruption, expected = INDEXES[case]
    corruption(copy)
    for skip_corrupt, order in itertools.product((False, True), ("window", "exact")):
        with pytest.raises(ERRORS) as error:
            list(batches_of_keys(tf_input.open(copy), order, skip_corrupt=skip_corrupt))
        message = str(error.value)
        assert str(index_of(copy)) in message and expected in message and "Traceback" not in message, (skip_corrupt, order)


@pytest.mark.parametrize("order", ORDERS)
def test_split_without_readable_examples_raises(copy, order):
    for shard in shards_of(copy):
        shard.unlink()
    with pytest.raises(ValueError, match="train has no readable example"):
        batches(tf_input.open(copy), **ORDERS[order])


@pytest.mark.slow(0.2)
@pytest.mark.parametrize("skip_corrupt", [False, True])
@pytest.mark.parametrize("bit", [1, 63])
def test_flipped_bit_in_the_index_raises_and_skips_nothing(copy, skip_corrupt, bit):
    flip(index_of(copy), 8 * (INDEX_HEADER.size + 4 * INDEX_ROW.size) + bit)
    flowers = tf_input.open(copy)
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"{index_of(copy).name}: .*CRC-32C ") as error:
        list(batches_of_keys(flowers, "exact", skip_corrupt=skip_corrupt))
    assert "skip" not in error.value.message and not len(flowers.skipped)
    with pytest.raises(ValueError, match=f"{index_of(copy).name}: "):
        list(tf_input.open(copy)["train"])
