"""Tests reading records by number: in chunks or individually, with checksums, and in several threads."""

import contextlib
import functools
import logging
import pathlib
import resource
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from made_shards import flip, frame, write_shard
from tf_input.dataset_format import INDEX_HEADER, INDEX_ROW, ShardInfo
from tf_input.epochs.selection import Selection
from tf_input.epochs.windows import WindowOrder
from tf_input.storage import arenas, record_reader
from tf_input.storage.arenas import Arena, ArenaSlice
from tf_input.storage.corrupt_records import CorruptRecord, CorruptRecords
from tf_input.storage.index import ShardIndex
from tf_input.storage.open_files import open_files
from tf_input.storage.record_reader import RecordReader, ShardFile
from tf_input.storage.record_chunks import RecordChunk, RecordChunks
from tf_input.storage.window_reader import WindowReader

COUNTS = (7, 1, 12)
RECORDS = [bytes([number]) * (number * 7 % 23) for number in range(sum(COUNTS))]
READ_MODES = {"single records": None, "chunks": 60, "whole shards": 1 << 20, "selection": 90}  # bytes per chunk


def write_shards(folder: pathlib.Path) -> list[ShardInfo]:
    starts = np.cumsum([0, *COUNTS])
    return [write_shard(folder, f"shard-{i}", RECORDS[starts[i] : starts[i + 1]]) for i in range(len(COUNTS))]


def make_reader(folder: pathlib.Path, shards: list[ShardInfo], corrupt: CorruptRecords | None = None, run_bytes: int | None = None, selection: Any = None):
    @functools.lru_cache
    def index_of(shard: int) -> ShardIndex:
        # The index is not memory-mapped: truncating a mapped file while a thread reads it would end the process.
        return ShardIndex(str(folder / shards[shard].index), shards[shard], files=open_files(folder))

    files = [ShardFile(str(folder / shard.name), shard.num_bytes, count) for shard, count in zip(shards, COUNTS)]
    return RecordReader(open_files(folder), files, index_of, run_bytes or 1, corrupt, selection=selection)


def read(
    dataset_shards: tuple[pathlib.Path, list[ShardInfo]],
    mode: str,
    numbers: Any = None,
    corrupt: CorruptRecords | None = None,
) -> list[bytes]:
    """Returns all records, or the records with the given numbers, and skips corrupt records."""
    reader = make_reader(
        *dataset_shards, corrupt, READ_MODES[mode], Selection(np.arange(len(RECORDS))) if mode == "selection" else None
    )
    numbers = np.arange(len(RECORDS)) if numbers is None else np.array(numbers, np.int64)
    if READ_MODES[mode] is None:
        actual = reader.read(numbers)
    else:
        actual = read_windows(reader, numbers)
    return [item for item in actual.tolist() if item is not None]


@pytest.fixture(scope="module")
def dataset_shards(tmp_path_factory) -> tuple[pathlib.Path, list[ShardInfo]]:
    folder = tmp_path_factory.mktemp("shards")
    return folder, write_shards(folder)


@pytest.fixture
def writable_shards(tmp_path) -> tuple[pathlib.Path, list[ShardInfo]]:
    """Shards that the test may corrupt."""
    return tmp_path, write_shards(tmp_path)


@pytest.mark.slow(0.8)
@pytest.mark.parametrize("mode", READ_MODES)
@settings(deadline=None, max_examples=40)
@given(numbers=st.lists(st.integers(0, len(RECORDS) - 1), max_size=30))
def test_records_are_returned_in_the_requested_order(dataset_shards, mode, numbers):
    assert read(dataset_shards, mode, numbers) == [RECORDS[number] for number in numbers]


@pytest.mark.slow
@settings(deadline=None, max_examples=200)
@given(numbers=st.lists(st.integers(0, len(RECORDS) - 1), min_size=1, max_size=30), near=st.integers(0, 80), together=st.integers(1, 200))
def test_scattered_reads_fetch_each_byte_once_and_only_short_gaps(dataset_shards, numbers, near, together):
    reader, requested = make_reader(*dataset_shards), []
    for name in ("read_range", "read_into"):
        plain = getattr(reader._files, name)
        record_read = functools.partial(lambda plain, *args: requested.append(args) or plain(*args), plain)
        setattr(reader._files, name, record_read)
    with mock.patch.object(record_reader, "_TOGETHER_BYTES", together):
        chunk = reader.load(np.array(numbers), Arena(10_000), near)
    assert RecordChunks([chunk]).take(np.arange(len(numbers))).tolist() == [RECORDS[number] for number in numbers]
    wanted = {(path, begin + byte) for number in numbers for path, _, begin in [reader.locate(number)] for byte in range(16 + len(RECORDS[number]))}
    read = [(path, byte) for path, begin, part in requested for byte in range(begin, begin + (part if isinstance(part, int) else len(part)))]
    assert len(read) == len({*read}) and wanted <= {*read}
    assert len({*read} - wanted) <= near * len({*numbers}), "only gaps up to the limit are read"
    assert max(chunk.ends) == len(wanted), "only the requested records are kept"


@pytest.mark.slow
@settings(deadline=None, max_examples=100)
@given(data=st.data(), corruption=st.sampled_from(["none", "shard", "index", "truncated", "missing"]))
def test_corrupt_chunk_does_not_affect_other_chunks(tmp_path_factory, data, corruption):
    """Intact chunks are returned unchanged even if the read buffer contains data of an earlier read."""
    folder = tmp_path_factory.mktemp("shards")
    shards = write_shards(folder)
    reader, arena = make_reader(folder, shards, run_bytes=60), Arena(1 << 16)
    arena.take(1 << 16).view[:] = (b"".join(frame(record) for record in RECORDS) * (1 << 8))[: 1 << 16]
    arena.clear()
    wanted = np.array(data.draw(st.lists(st.sampled_from(range(len(RECORDS))), min_size=1)))
    shard = data.draw(st.integers(0, len(shards) - 1))
    path, index = folder / shards[shard].name, folder / shards[shard].index
    if corruption == "shard":
        flip(path, data.draw(st.integers(0, 8 * shards[shard].num_bytes - 1)))
    elif corruption == "index":
        flip(index, data.draw(st.integers(8 * INDEX_HEADER.size, 8 * index.stat().st_size - 1)))
    elif corruption == "truncated":
        path.write_bytes(path.read_bytes()[: data.draw(st.integers(0, shards[shard].num_bytes - 1))])
    elif corruption == "missing":
        path.unlink()
    actual = records_of(reader.load(wanted, arena, in_parallel=False))
    bounds = np.cumsum([0, *COUNTS])
    for number, record in zip(wanted.tolist(), actual):
        may_be_missing = corruption != "none" and bounds[shard] <= number < bounds[shard + 1]
        assert record == RECORDS[number] or (may_be_missing and record is None)


def test_threads_can_read_concurrently(dataset_shards):
    reader = make_reader(*dataset_shards)
    batches = [np.random.default_rng(seed).integers(0, len(RECORDS), 16) for seed in range(200)]
    with ThreadPoolExecutor(8) as threads:
        for numbers, records in zip(batches, threads.map(reader.read, batches), strict=True):
            assert records.dtype == object and records.tolist() == [RECORDS[number] for number in numbers]


def test_place_returns_file_number_and_offset(dataset_shards):
    folder, _ = dataset_shards
    reader = make_reader(*dataset_shards)
    assert reader.locate(0) == (str(folder / "shard-0"), 0, 0)
    assert reader.locate(7) == (str(folder / "shard-1"), 0, 0)
    assert reader.locate(9) == (str(folder / "shard-2"), 1, 16 + len(RECORDS[8]))


RECORD_PARTS = {
    "length": (0, "its length is"),
    "length checksum": (8, "the checksum of its length is"),
    "data": (12, "the checksum of its data is"),
    "data checksum": (-1, "the checksum of its data is"),
}


@pytest.mark.parametrize("region", RECORD_PARTS)
@pytest.mark.parametrize("mode", READ_MODES)
def test_flipped_bit_is_detected_in_every_part_of_a_record(writable_shards, mode, region):
    folder, shards = writable_shards
    byte, expected = RECORD_PARTS[region]
    _, _, offset = make_reader(*writable_shards).locate(10)
    end = offset + 16 + len(RECORDS[10])
    flip(folder / "shard-2", 8 * ((end if byte < 0 else offset) + byte) + 3)
    with pytest.raises(ValueError) as error:
        read(writable_shards, mode)
    message = str(error.value)
    assert message.startswith(f"{folder / 'shard-2'}: record 2, at byte {offset}: {expected}"), message
    assert "skip_corrupt=True" in message

    corrupt = CorruptRecords()
    assert read(writable_shards, mode, corrupt=corrupt) == [*RECORDS[:10], *RECORDS[11:]], "only the corrupt record is skipped"
    assert [item[:3] for item in corrupt] == [(str(folder / "shard-2"), 2, offset)]


def test_error_for_missing_shard_recommends_repair(writable_shards):
    folder, _ = writable_shards
    reader = make_reader(*writable_shards)
    (folder / "shard-2").unlink()
    with pytest.raises(ValueError, match="shard-2.*recordmill repair") as error:
        reader.read(np.array([10]))
    assert "skip_corrupt" not in str(error.value)


def column_of(byte: int) -> int:
    """Returns the column to which a byte of an index file belongs. Column 0 contains the offsets of records."""
    return (byte - INDEX_HEADER.size) % INDEX_ROW.size // 8


@pytest.mark.slow
@pytest.mark.parametrize("skips", [False, True], ids=["raise", "skip"])
@pytest.mark.parametrize("mode", READ_MODES)
def test_flipped_bit_in_an_index_is_not_reported_as_a_corrupt_record(writable_shards, mode, skips):
    """If a flipped bit prevents reading, the error names the index file. Otherwise, all records are returned."""
    folder, shards = writable_shards
    path = folder / "shard-2.idx"
    complete, num_named = path.read_bytes(), 0
    flipped = range(0, len(complete), 5)
    for byte in flipped:
        flip(path, 8 * byte + byte % 8)
        column = column_of(byte)
        corrupt = CorruptRecords()
        try:
            records = read(writable_shards, mode, corrupt=corrupt if skips else None)
        except ValueError as error:
            assert str(error).startswith(f"{path}") and "skip_corrupt" not in str(error), byte
            assert byte < INDEX_HEADER.size or (column == 0 and "shard-2.idx is corrupt" in str(error)), byte
            num_named += 1
        else:
            assert records == RECORDS and byte >= INDEX_HEADER.size and column > 0, byte
        assert not len(corrupt), byte
        path.write_bytes(complete)
    assert num_named == sum(byte < INDEX_HEADER.size or column_of(byte) == 0 for byte in flipped)


@pytest.mark.parametrize("mode", READ_MODES)
def test_corrupt_records_and_corrupt_index_are_reported_separately(writable_shards, mode):
    """The test corrupts the headers of the first three records, and the offset of a later record in the index."""
    folder, _ = writable_shards
    path = folder / "shard-2.idx"
    complete = path.read_bytes()
    for record in (0, 1, 2):
        flip(folder / "shard-2", 8 * make_reader(*writable_shards).locate(8 + record)[2])
    flip(path, 8 * (INDEX_HEADER.size + 5 * INDEX_ROW.size))
    with pytest.raises(ValueError, match="shard-2.idx is corrupt.*record 4 ends at byte"):
        read(writable_shards, mode, corrupt=CorruptRecords())
    path.write_bytes(complete)
    corrupt = CorruptRecords()
    assert read(writable_shards, mode, corrupt=corrupt) == [*RECORDS[:8], *RECORDS[11:]] and sorted(item.record for item in corrupt) == [0, 1, 2]


@pytest.mark.slow
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(data=st.data(), mode=st.sampled_from(list(READ_MODES)), is_index=st.booleans())
def test_flipped_bit_never_returns_wrong_data(writable_shards, data, mode, is_index):
    folder, _ = writable_shards
    path = folder / data.draw(st.sampled_from(["shard-0", "shard-2"]))
    path = path.with_name(f"{path.name}.idx") if is_index else path
    complete = path.read_bytes()
    flip(path, data.draw(st.integers(0, 8 * len(complete) - 1)))
    try:
        # image offsets and labels of the index are not used here
        assert read(writable_shards, mode) == RECORDS and is_index
    except ValueError as error:
        assert path.name in str(error) or (is_index and path.stem in str(error))
    finally:
        path.write_bytes(complete)


def test_truncated_shard_raises_an_error_or_skips_the_last_record(writable_shards):
    folder, shards = writable_shards
    path = folder / "shard-2"
    path.write_bytes(path.read_bytes()[:-5])
    for mode in READ_MODES:
        with pytest.raises(ValueError, match="record 11, at byte .*: the shard ends "):
            read(writable_shards, mode)
        assert read(writable_shards, mode, corrupt=CorruptRecords()) == RECORDS[:-1]


def test_missing_shard_raises_an_error_or_skips_its_records(writable_shards):
    folder, _ = writable_shards
    (folder / "shard-2").unlink()
    for mode in READ_MODES:
        with pytest.raises(ValueError, match="shard-2: record 0, at byte 0: .*No such file"):
            read(writable_shards, mode)
        corrupt = CorruptRecords()
        assert read(writable_shards, mode, corrupt=corrupt) == RECORDS[:8] and len(corrupt) == 12


def exhaust_descriptors(_: pathlib.Path) -> Callable[[], None]:
    """Lowers the limit on open files and returns a function that restores the limit."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def break_disk(path: pathlib.Path) -> Callable[[], None]:
    """Replaces a shard with a file that can be opened but not read, and returns a function that restores the shard."""
    kept = path.rename(path.with_name("kept"))
    path.symlink_to("/proc/self/mem")
    return lambda: kept.replace(path)


DISK_FAILURES = {"too many open files": (exhaust_descriptors, "Too many open files"), "broken disk": (break_disk, "Input/output error")}


@pytest.mark.parametrize("skips", [False, True], ids=["raise", "skip"])
@pytest.mark.parametrize("case", DISK_FAILURES)
def test_temporary_disk_failure_never_skips_records(writable_shards, case, skips):
    """The error names the shard and the record and does not suggest skipping records. Later, all records are read."""
    folder, _ = writable_shards
    (fail, expected), corrupt = DISK_FAILURES[case], CorruptRecords()
    numbers = np.arange(8, len(RECORDS))
    for is_window in (False, True):
        reader = make_reader(*writable_shards, corrupt if skips else None, 60)
        reader.locate(7), reader.locate(8)  # opens the indexes
        # loads modules that are imported on first use
        read(writable_shards, "selection"), read(writable_shards, "single records")
        read_records = functools.partial(read_windows, reader) if is_window else reader.read
        recover = fail(folder / "shard-2")
        try:
            with pytest.raises(OSError) as error:
                read_records(numbers)
        finally:
            recover()
        message = str(error.value)
        assert f"{folder / 'shard-2'}: record 0, at byte 0: could not be read: " in message and expected in message
        assert "skip_corrupt" not in message and not len(corrupt)
        assert read_records(np.arange(len(RECORDS))).tolist() == RECORDS


def read_windows(reader: RecordReader, numbers: np.ndarray, window_bytes: int = 100) -> np.ndarray:
    windows = WindowReader(reader, lambda epoch, runs: WindowOrder(runs, window_bytes, None), (1, 0), 3 * window_bytes)
    with contextlib.closing(windows):
        return windows.read(0, numbers)


def test_each_iteration_reuses_the_arenas_of_the_previous_one(dataset_shards, monkeypatch):
    requested = []
    monkeypatch.setattr(arenas, "_free", [])
    monkeypatch.setattr(arenas, "Arena", lambda num_bytes: requested.append(num_bytes) or Arena(num_bytes))
    num_arenas = []
    for _ in range(3):
        assert read_windows(make_reader(*dataset_shards), np.arange(len(RECORDS))).tolist() == RECORDS
        num_arenas.append(len(requested))
    assert num_arenas[0] == num_arenas[2] > 0


def test_free_arenas_are_limited_in_total_size(monkeypatch):
    monkeypatch.setattr(arenas, "_free", [])
    monkeypatch.setattr(arenas, "_MAX_FREE_BYTES", 100)
    cached = [arenas.borrow_arena(40) for _ in range(4)]
    for arena in cached:
        arena.take(40)
        arenas.return_arena(arena)
    assert arenas._free == cached[2:]
    assert arenas.borrow_arena(50) is cached[2] and arenas.borrow_arena(10) not in cached
    assert arenas._free == cached[3:]
    assert arenas.borrow_arena(90) is not cached[3] and not arenas._free


def test_arena_is_not_freed_while_a_thread_reads_into_it(dataset_shards, monkeypatch):
    monkeypatch.setattr(arenas, "_free", [])
    reader, may_end, begun = make_reader(*dataset_shards, run_bytes=1 << 20), threading.Event(), []
    plain = reader.load

    def load(numbers: np.ndarray, arena: Arena, **options: bool) -> Any:
        begun.append(arena)
        assert not numbers[0] or may_end.wait(60)
        return plain(numbers, arena, **options)

    reader.load = load
    windows = WindowReader(reader, lambda epoch, runs: WindowOrder(runs, 100, None), (1, 0), 1 << 30)
    with contextlib.closing(windows):
        assert windows.read(0, np.arange(COUNTS[0])).tolist() == RECORDS[: COUNTS[0]]  # the first chunk; the other chunks are read ahead
    (free,) = arenas._free
    may_end.set()
    assert free is begun[0]


def test_chunks_of_one_or_several_buffers_are_read_as_one_sequence():
    data, ends = b"".join(frame(record) for record in RECORDS), np.cumsum([16 + len(record) for record in RECORDS])
    chunks = [
        RecordChunk(ArenaSlice(before + data, len(before), len(data)), np.array([0, *ends[:-1]]), ends) for before in (b"", b"before")
    ]
    for pair in ([chunks[0], chunks[0]], chunks):
        assert RecordChunks(pair).take(np.arange(2 * len(RECORDS))).tolist() == 2 * RECORDS


def test_corrupt_records_are_counted_once_and_the_first_ten_are_logged(caplog):
    corrupt = CorruptRecords()
    with caplog.at_level(logging.WARNING, "tf_input"):
        for _ in range(2):
            for record in range(15):
                corrupt.add(CorruptRecord("shard", record, 100 * record, "truncated"))
        corrupt.add(CorruptRecord("other", 3, 7, "the shard is missing", 20))
    assert len(corrupt) == 35 and len(list(corrupt)) == 16
    assert [record.getMessage() for record in caplog.records] == [
        *(f"skipped shard: record {record}, at byte {100 * record}: truncated" for record in range(9)), mock.ANY,
    ]
    assert "record 9, at byte 900: truncated" in caplog.records[-1].getMessage()
    assert str(list(corrupt)[-1]).startswith("other: record 3 and 19 more, at byte 7: ")


def records_of(chunk: RecordChunk) -> list[bytes | None]:
    return RecordChunks([chunk]).take(np.arange(len(chunk.begins))).tolist()


def test_failed_read_does_not_return_earlier_records_of_the_arena(writable_shards):
    """Read buffers are reused, so a buffer may contain earlier records of the same length when a read fails."""
    (folder, shards), arena = writable_shards, Arena(1 << 20)
    count = COUNTS[0]
    numbers = np.arange(count)
    assert records_of(make_reader(folder, shards).load(numbers, arena)) == RECORDS[:count]
    (folder / shards[0].name).unlink()
    (folder / shards[0].name).symlink_to("/proc/self/mem")  # opens, but cannot be read at these offsets
    for numbers in (np.arange(count), np.arange(0, count, 2)):
        arena.clear()
        assert records_of(make_reader(folder, shards).load(numbers, arena)) == [None] * len(numbers)
