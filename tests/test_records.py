"""Records by their numbers: out of blocks or one by one, checked, by many threads."""

import functools
import gc
import logging
import pathlib
import resource
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_shards import flip, write_shard

from tf_input.damaged import DamagedRecord, DamagedRecords
from tf_input.dataset_format import INDEX_HEADER, INDEX_ROW, ShardInfo
from tf_input.index import ShardIndex
from tf_input.records import RecordReader
from tf_input.storage.local_files import LocalFiles

COUNTS = (7, 1, 12)
RECORDS = [bytes([number]) * (number * 7 % 23) for number in range(sum(COUNTS))]
KINDS = {
    "one by one": {},
    "in blocks": {"block": 5, "num_blocks": 3},
    "in large blocks": {"block": 100, "num_blocks": 4},
}


def write_shards(folder: pathlib.Path) -> list[ShardInfo]:
    starts = np.cumsum([0, *COUNTS])
    return [write_shard(folder, f"shard-{i}", RECORDS[starts[i] : starts[i + 1]]) for i in range(len(COUNTS))]


def make_reader(folder: pathlib.Path, shards: list[ShardInfo], **options: Any) -> RecordReader:
    def index_of(shard: int) -> ShardIndex:
        return ShardIndex(str(folder / shards[shard].index), shards[shard])

    return RecordReader([str(folder / shard.name) for shard in shards], functools.cache(index_of), COUNTS, LocalFiles(), **options)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[pathlib.Path, list[ShardInfo]]:
    folder = tmp_path_factory.mktemp("shards")
    return folder, write_shards(folder)


@pytest.fixture
def own(tmp_path) -> tuple[pathlib.Path, list[ShardInfo]]:
    """Shards to damage."""
    return tmp_path, write_shards(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=40)
@given(numbers=st.lists(st.integers(0, len(RECORDS) - 1), max_size=30))
def test_records_come_in_the_order_in_which_they_are_asked_for(made, kind, numbers):
    reader = make_reader(*made, **KINDS[kind])
    assert reader.num_examples == len(RECORDS)
    records = reader.read(np.array(numbers, np.int64))
    assert records.dtype == object and records.tolist() == [RECORDS[number] for number in numbers]


@pytest.mark.parametrize("kind", KINDS)
def test_threads_may_read_at_a_time(made, kind):
    reader = make_reader(*made, **KINDS[kind])
    batches = [np.random.default_rng(seed).integers(0, len(RECORDS), 16) for seed in range(200)]
    with ThreadPoolExecutor(8) as threads:
        for numbers, records in zip(batches, threads.map(reader.read, batches)):
            assert records.tolist() == [RECORDS[number] for number in numbers]


def test_a_block_is_read_once_while_it_is_kept(made, monkeypatch):
    reader, loads = make_reader(*made, block=4, num_blocks=8), []
    monkeypatch.setattr(
        reader, "_read_range", lambda *place, read=reader._read_range: loads.append(place) or read(*place)
    )
    for number in np.random.default_rng(0).permutation(len(RECORDS)):
        reader.read(np.array([number]))
    # Of 20 records five blocks of 4, of which the second lies in two shards.
    assert len(loads) == len(set(loads)) == 6


def test_no_more_blocks_are_kept_than_are_allowed(made):
    reader = make_reader(*made, block=2, num_blocks=3)
    reader.read(np.arange(len(RECORDS)))
    assert len(reader._kept._kept) == 3


def test_where_a_record_lies(made):
    folder, _ = made
    reader = make_reader(*made)
    assert reader.place(0) == (str(folder / "shard-0"), 0, 0)
    assert reader.place(7) == (str(folder / "shard-1"), 0, 0)
    assert reader.place(9) == (str(folder / "shard-2"), 1, 16 + len(RECORDS[8]))


REGIONS = {
    "its length": (0, "its length is"),
    "the length's checksum": (8, "the checksum of its length is"),
    "the data": (12, "the checksum of its data is"),
    "their checksum": (-1, "the checksum of its data is"),
}


@pytest.mark.parametrize("region", REGIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_is_found_in_every_part_of_a_record(own, kind, region):
    folder, shards = own
    place, expected = REGIONS[region]
    _, _, offset = make_reader(*own).place(10)
    end = offset + 16 + len(RECORDS[10])
    flip(folder / "shard-2", 8 * ((end if place < 0 else offset) + place) + 3)
    with pytest.raises(ValueError) as error:
        make_reader(*own, **KINDS[kind]).read(np.arange(len(RECORDS)))
    message = str(error.value)
    assert message.startswith(f"{folder / 'shard-2'}: record 2, at byte {offset}: {expected}"), message
    assert message.endswith("; on_error='skip' leaves such records out")

    damaged = DamagedRecords()
    records = make_reader(*own, **KINDS[kind], damaged=damaged).read(np.arange(len(RECORDS)))
    assert records.tolist() == [*RECORDS[:10], *RECORDS[11:]], "all others are there, and it alone is not"
    assert [one[:3] for one in damaged] == [(str(folder / "shard-2"), 2, offset)]


@pytest.mark.parametrize("skips", [False, True], ids=["raise", "skip"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_flip_in_an_index_is_never_blamed_on_a_record(own, kind, skips):
    """One in each byte of an index file: it is named, or, where nothing of it is read, every record is there. None is skipped."""
    folder, shards = own
    path = folder / "shard-2.idx"
    whole, num_named = path.read_bytes(), 0
    for byte in range(len(whole)):
        flip(path, 8 * byte + byte % 8)
        column = (byte - INDEX_HEADER.size) % INDEX_ROW.size // 8  # the record's offset, the image's, its length and label
        damaged = DamagedRecords()
        try:
            records = make_reader(*own, **KINDS[kind], damaged=damaged if skips else None).read(np.arange(len(RECORDS)))
        except ValueError as error:
            assert str(error).startswith(f"{path}: ") and "on_error" not in str(error), byte
            assert byte < INDEX_HEADER.size or (column == 0 and "the index is damaged, or shard-2 is not" in str(error)), byte
            num_named += 1
        else:
            assert records.tolist() == RECORDS and byte >= INDEX_HEADER.size and column > 0, byte
        assert not len(damaged), byte
        path.write_bytes(whole)
    assert num_named == INDEX_HEADER.size + 8 * COUNTS[2]


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_record_beside_a_damaged_index(own, kind):
    """Each is called what it is: of the shard's first records the headers are gone, and an offset of the index behind them is wrong."""
    folder, _ = own
    path = folder / "shard-2.idx"
    whole = path.read_bytes()
    for record in (0, 1, 2):
        flip(folder / "shard-2", 8 * make_reader(*own).place(8 + record)[2])
    flip(path, 8 * (INDEX_HEADER.size + 5 * INDEX_ROW.size))
    with pytest.raises(ValueError, match="shard-2.idx: the index is damaged, .*: by it, record 4 ends at byte"):
        make_reader(*own, **KINDS[kind], damaged=DamagedRecords()).read(np.arange(len(RECORDS)))
    path.write_bytes(whole)
    damaged = DamagedRecords()
    records = make_reader(*own, **KINDS[kind], damaged=damaged).read(np.arange(len(RECORDS)))
    assert records.tolist() == [*RECORDS[:8], *RECORDS[11:]] and sorted(one.record for one in damaged) == [0, 1, 2]


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(data=st.data(), kind=st.sampled_from(list(KINDS)), is_index=st.booleans())
def test_no_flipped_bit_gives_other_data(own, data, kind, is_index):
    folder, _ = own
    path = folder / data.draw(st.sampled_from(["shard-0", "shard-2"]))
    path = path.with_name(f"{path.name}.idx") if is_index else path
    whole = path.read_bytes()
    flip(path, data.draw(st.integers(0, 8 * len(whole) - 1)))
    try:
        records = make_reader(folder, own[1], **KINDS[kind]).read(np.arange(len(RECORDS)))
        assert is_index and records.tolist() == RECORDS  # what it says of images and labels is not looked at here
    except ValueError as error:
        assert path.name in str(error) or (is_index and path.stem in str(error))
    finally:
        path.write_bytes(whole)


def test_a_shard_that_ends_too_soon(own):
    folder, shards = own
    path = folder / "shard-2"
    path.write_bytes(path.read_bytes()[:-5])
    for options in KINDS.values():
        with pytest.raises(ValueError, match="record 11, at byte .*: the shard ends after .* of its .* bytes"):
            make_reader(*own, **options).read(np.arange(len(RECORDS)))
        damaged = DamagedRecords()
        assert make_reader(*own, **options, damaged=damaged).read(np.arange(len(RECORDS))).tolist() == RECORDS[:-1]


def test_a_shard_that_is_not_there(own):
    folder, _ = own
    (folder / "shard-2").unlink()
    for options in KINDS.values():
        with pytest.raises(ValueError, match="shard-2: record 0, at byte 0: .*No such file"):
            make_reader(*own, **options).read(np.arange(len(RECORDS)))
        damaged = DamagedRecords()
        assert make_reader(*own, **options, damaged=damaged).read(np.arange(len(RECORDS))).tolist() == RECORDS[:8]
        assert len(damaged) == 12


def out_of_descriptors(_: pathlib.Path) -> Callable[[], None]:
    """As if the process had as many files open as it may."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def broken_disk(path: pathlib.Path) -> Callable[[], None]:
    """In the shard's place a file that opens and can't be read: the first page of a process' memory is never there."""
    kept = path.rename(path.with_name("kept"))
    path.symlink_to("/proc/self/mem")
    return lambda: kept.replace(path)


BUSY = {"no more descriptors": (out_of_descriptors, "Too many open files"), "a broken disk": (broken_disk, "Input/output error")}


@pytest.mark.parametrize("skips", [False, True], ids=["raise", "skip"])
@pytest.mark.parametrize("case", BUSY)
@pytest.mark.parametrize("kind", KINDS)
def test_a_busy_or_broken_disk_costs_no_record(own, kind, case, skips):
    """An error that names shard and record, and offers to leave out nothing; once the disk is well again, all are there."""
    folder, _ = own
    (begin, expected), damaged = BUSY[case], DamagedRecords()
    reader = make_reader(*own, **KINDS[kind], damaged=damaged if skips else None)
    numbers = tf.range(8, len(RECORDS), dtype=tf.int64)
    reader.read_batch(numbers[:0])  # TensorFlow has opened what it wants,
    reader.place(8)  # and the index is open
    end = begin(folder / "shard-2")
    try:
        with pytest.raises(OSError) as error:
            reader.read(numbers.numpy())
        with pytest.raises(tf.errors.InvalidArgumentError) as of_graph:
            reader.read_batch(numbers)
    finally:
        end()
    for message in (str(error.value), of_graph.value.message):
        assert f"{folder / 'shard-2'}: record 0, at byte 0: could not be read: " in message and expected in message
        assert "on_error" not in message
    assert not len(damaged)
    assert make_reader(*own, **KINDS[kind], damaged=damaged).read(np.arange(len(RECORDS))).tolist() == RECORDS


def test_what_could_not_be_read_once_is_tried_again(own, monkeypatch):
    reader, failures = make_reader(*own, block=5, num_blocks=3), [OSError("gone"), OSError("gone")]
    read = reader._read_range

    def fail_first(*place: Any) -> bytes:
        if failures:
            raise failures.pop()
        return read(*place)

    monkeypatch.setattr(reader, "_read_range", fail_first)
    with pytest.raises(OSError, match="record 0, at byte 0: could not be read: gone"):
        reader.read(np.arange(3))
    assert reader.read(np.arange(len(RECORDS))).tolist() == RECORDS


def test_as_an_operation_of_a_graph(own):
    folder, _ = own
    reader = make_reader(*own, block=5, num_blocks=3)
    data = tf.data.Dataset.range(len(RECORDS)).batch(6).map(reader.read_batch)
    assert [one for batch in data.as_numpy_iterator() for one in batch] == RECORDS
    flip(folder / "shard-1", 100)
    reader = make_reader(*own, block=5, num_blocks=3)
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        list(tf.data.Dataset.range(len(RECORDS)).batch(6).map(reader.read_batch))
    assert f"{folder / 'shard-1'}: record 0, at byte 0: the checksum of its data is" in error.value.message
    assert "Traceback" not in error.value.message


def test_a_batch_of_damaged_records_alone_is_an_error(own):
    """A loss of nothing is NaN."""
    folder, _ = own
    flip(folder / "shard-1", 100)
    damaged = DamagedRecords()
    reader = make_reader(*own, damaged=damaged)
    assert reader.read_batch(tf.constant([6, 7], tf.int64)).numpy().tolist() == [RECORDS[6]]
    with pytest.raises(tf.errors.InvalidArgumentError, match="all 1 records of a batch are damaged"):
        reader.read_batch(tf.constant([7], tf.int64))
    with pytest.raises(ValueError, match="all 1 records of a batch are damaged: .*shard-1: record 0, at byte 0"):
        reader.read(np.array([7]))
    assert reader.read(np.array([7]), may_be_empty=True).tolist() == []
    assert reader.read(np.array([], np.int64)).tolist() == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_data_set_that_is_no_more_keeps_no_reader(made, kind):
    """TensorFlow keeps every Python function that a graph calls, and with it would keep open files, and blocks in memory."""

    def make_data() -> tuple[tf.data.Dataset, weakref.ref]:
        reader = make_reader(*made, **KINDS[kind])
        data = tf.data.Dataset.range(20).batch(4).map(lambda numbers: reader.read_batch(numbers))
        return data, weakref.ref(reader)

    data, reader = make_data()
    gc.collect()
    batches = iter(data)
    assert next(batches).numpy().tolist() == RECORDS[:4]
    del data
    gc.collect()
    assert next(batches).numpy().tolist() == RECORDS[4:8] and reader() is not None
    del batches
    gc.collect()
    assert reader() is None


def test_an_operation_outlives_its_reader(made):
    with tf.Graph().as_default() as graph:
        records = make_reader(*made).read_batch(tf.constant([3, 8], tf.int64))
    gc.collect()
    with tf.compat.v1.Session(graph=graph) as session:
        assert session.run(records).tolist() == [RECORDS[3], RECORDS[8]]


def test_damaged_records_are_counted_once_and_the_first_are_logged(caplog):
    damaged = DamagedRecords()
    with caplog.at_level(logging.WARNING, "tf_input"):
        for _ in range(2):
            for record in range(15):
                damaged.add(DamagedRecord("shard", record, 100 * record, "torn"))
        damaged.add(DamagedRecord("other", 3, 7, "the shard is missing", 20))
    assert len(damaged) == 35 and len(list(damaged)) == 16
    assert [record.getMessage() for record in caplog.records] == [
        *(f"skipped shard: record {record}, at byte {100 * record}: torn" for record in range(9)),
        "skipped shard: record 9, at byte 900: torn; further ones are counted alone",
    ]
    assert str(list(damaged)[-1]) == "other: record 3 and 19 more, at byte 7: the shard is missing"
