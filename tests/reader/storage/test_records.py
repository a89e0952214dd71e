"""Records by their numbers: out of runs or one by one, checked, by many threads."""

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
from tf_input.storage.record_reader import RecordReader, RunPart, ShardFile
from tf_input.storage.record_chunks import RecordChunk, RecordChunks, find_ends
from tf_input.storage.window_reader import WindowReader

COUNTS = (7, 1, 12)
RECORDS = [bytes([number]) * (number * 7 % 23) for number in range(sum(COUNTS))]
KINDS = {"one by one": None, "in runs": 60, "whole shards": 1 << 20, "chosen": 90}  # bytes of a run
BY_INDEX = ("one by one", "chosen")  # which look each record up


def write_shards(folder: pathlib.Path) -> list[ShardInfo]:
    starts = np.cumsum([0, *COUNTS])
    return [write_shard(folder, f"shard-{i}", RECORDS[starts[i] : starts[i + 1]]) for i in range(len(COUNTS))]


def make_reader(folder: pathlib.Path, shards: list[ShardInfo], corrupt: CorruptRecords | None = None, run_bytes: int | None = None, selection: Any = None):
    @functools.lru_cache
    def index_of(shard: int) -> ShardIndex:
        # Not mapped: what is damaged here while a thread looks at it would end the process.
        return ShardIndex(str(folder / shards[shard].index), shards[shard], files=open_files(folder))  # nothing compares its checksum

    files = [ShardFile(str(folder / shard.name), shard.num_bytes, count) for shard, count in zip(shards, COUNTS)]
    return RecordReader(open_files(folder), files, index_of, run_bytes or 1, corrupt, selection=selection)


def read(made: tuple[pathlib.Path, list[ShardInfo]], kind: str, numbers: Any = None, corrupt: CorruptRecords | None = None) -> list[bytes]:
    """All records, or those of some numbers; without those that were left out."""
    reader = make_reader(*made, corrupt, KINDS[kind], Selection(np.arange(len(RECORDS))) if kind == "chosen" else None)
    numbers = np.arange(len(RECORDS)) if numbers is None else np.array(numbers, np.int64)
    if KINDS[kind] is None:
        actual = reader.read(numbers)
    else:  # in the order of the shards places are numbers
        actual = read_windows(reader, numbers)
    return [item for item in actual.tolist() if item is not None]


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[pathlib.Path, list[ShardInfo]]:
    folder = tmp_path_factory.mktemp("shards")
    return folder, write_shards(folder)


@pytest.fixture
def own(tmp_path) -> tuple[pathlib.Path, list[ShardInfo]]:
    """Shards to damage."""
    return tmp_path, write_shards(tmp_path)


@pytest.mark.slow(0.8)
@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=40)
@given(numbers=st.lists(st.integers(0, len(RECORDS) - 1), max_size=30))
def test_records_come_in_the_order_in_which_they_are_asked_for(made, kind, numbers):
    assert read(made, kind, numbers) == [RECORDS[number] for number in numbers]


@pytest.mark.slow
@settings(deadline=None, max_examples=200)
@given(numbers=st.lists(st.integers(0, len(RECORDS) - 1), min_size=1, max_size=30), near=st.integers(0, 80), together=st.integers(1, 200))
def test_what_is_asked_for_anywhere_is_read_once_and_what_lies_between_only_where_it_is_near(made, numbers, near, together):
    reader, asked = make_reader(*made), []
    for name in ("read_range", "read_into"):
        plain = getattr(reader._files, name)
        note = functools.partial(lambda plain, *location: asked.append(location) or plain(*location), plain)
        setattr(reader._files, name, note)
    with mock.patch.multiple(record_reader, _NEAR_BYTES=near, _TOGETHER_BYTES=together):
        chunk = reader.read_scattered(np.array(numbers), Arena(10_000))
    assert RecordChunks([chunk]).take(np.arange(len(numbers))).tolist() == [RECORDS[number] for number in numbers]
    wanted = {(path, begin + byte) for number in numbers for path, _, begin in [reader.place(number)] for byte in range(16 + len(RECORDS[number]))}
    read = [(path, byte) for path, begin, part in asked for byte in range(begin, begin + (part if isinstance(part, int) else len(part)))]
    assert len(read) == len({*read}) and wanted <= {*read}
    assert len({*read} - wanted) <= near * len({*numbers}), "gaps that are no longer than that"
    assert max(chunk.ends) == len(wanted), "nothing else is held"


@pytest.mark.slow
@settings(deadline=None, max_examples=100)
@given(data=st.data(), corruption=st.sampled_from(["none", "a byte", "an index", "cut off", "missing"]))
def test_of_runs_that_are_read_together_a_damaged_one_harms_no_other(tmp_path_factory, data, corruption):
    """Whatever lay in the memory before: the same records, at other places."""
    folder = tmp_path_factory.mktemp("shards")
    shards = write_shards(folder)
    numbers = np.arange(len(RECORDS))
    reader, arena = make_reader(folder, shards, run_bytes=60), Arena(1 << 16)
    arena.take(1 << 16).view[:] = (b"".join(frame(record) for record in RECORDS) * (1 << 8))[: 1 << 16]
    arena.clear()
    run_starts = np.cumsum([0, *reader.runs.counts])
    parts = []
    for run in data.draw(st.lists(st.sampled_from(range(len(reader.runs))), unique=True, min_size=1)):
        first, stop = sorted(data.draw(st.tuples(*[st.integers(0, int(reader.runs.counts[run]))] * 2)))
        parts.append(RunPart(run, first, stop))
    shard = data.draw(st.integers(0, len(shards) - 1))
    path, index = folder / shards[shard].name, folder / shards[shard].index
    if corruption == "a byte":
        flip(path, data.draw(st.integers(0, 8 * shards[shard].num_bytes - 1)))
    elif corruption == "an index":
        flip(index, data.draw(st.integers(8 * INDEX_HEADER.size, 8 * index.stat().st_size - 1)))
    elif corruption == "cut off":
        path.write_bytes(path.read_bytes()[: data.draw(st.integers(0, shards[shard].num_bytes - 1))])
    elif corruption == "missing":
        path.unlink()
    wanted = np.concatenate([numbers[run_starts[run] + first : run_starts[run] + stop] for run, first, stop in parts])
    actual = RecordChunks([reader.read_runs(parts, arena)]).take(np.arange(len(wanted))).tolist()
    bounds = np.cumsum([0, *COUNTS])
    for number, record in zip(wanted.tolist(), actual):
        is_harmed = corruption != "none" and bounds[shard] <= number < bounds[shard + 1]
        assert record == RECORDS[number] or (is_harmed and record is None)


def test_short_runs_are_read_several_at_a_time_and_each_thread_has_some(made):
    reader, asked = make_reader(*made, run_bytes=1), []
    plain = reader.read_runs
    reader.read_runs = lambda parts, arena: asked.append(len(parts)) or plain(parts, arena)
    assert read_windows(reader, np.arange(len(RECORDS)), 1 << 20).tolist() == RECORDS
    assert sum(asked) == len(reader.runs) == 20 and len(asked) == 10 and max(asked) == 2


def test_threads_may_read_at_a_time(made):
    reader = make_reader(*made)
    batches = [np.random.default_rng(seed).integers(0, len(RECORDS), 16) for seed in range(200)]
    with ThreadPoolExecutor(8) as threads:
        for numbers, records in zip(batches, threads.map(reader.read, batches), strict=True):
            assert records.dtype == object and records.tolist() == [RECORDS[number] for number in numbers]


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
    location, expected = REGIONS[region]
    _, _, offset = make_reader(*own).place(10)
    end = offset + 16 + len(RECORDS[10])
    flip(folder / "shard-2", 8 * ((end if location < 0 else offset) + location) + 3)
    with pytest.raises(ValueError) as error:
        read(own, kind)
    message = str(error.value)
    assert message.startswith(f"{folder / 'shard-2'}: record 2, at byte {offset}: {expected}"), message
    assert message.endswith("batches(..., on_error='skip')")

    corrupt = CorruptRecords()
    assert read(own, kind, corrupt=corrupt) == [*RECORDS[:10], *RECORDS[11:]], "all others are there, and it alone is not"
    assert [item[:3] for item in corrupt] == [(str(folder / "shard-2"), 2, offset)]


def test_of_a_missing_shard_another_copy_is_advised_and_not_to_skip_it(own):
    folder, _ = own
    reader = make_reader(*own)
    (folder / "shard-2").unlink()
    with pytest.raises(ValueError, match="shard-2.*recordmill repair") as error:
        reader.read(np.array([10]))
    assert "on_error" not in str(error.value)


def column_of(byte: int) -> int:
    """Of an index file's byte: 0 to 3, the record's offset, the image's, its length and label."""
    return (byte - INDEX_HEADER.size) % INDEX_ROW.size // 8


@pytest.mark.slow
@pytest.mark.parametrize("skips", [False, True], ids=["raise", "skip"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_flip_in_an_index_is_never_blamed_on_a_record(own, kind, skips):
    """One in every fifth byte of an index file, so that each of a row's has its turn: it is named, or, where nothing of it is read, every
    record is there. None is skipped."""
    folder, shards = own
    path = folder / "shard-2.idx"
    complete, num_named = path.read_bytes(), 0
    flipped = range(0, len(complete), 5)
    for byte in flipped:
        flip(path, 8 * byte + byte % 8)
        column = column_of(byte)
        corrupt = CorruptRecords()
        try:
            records = read(own, kind, corrupt=corrupt if skips else None)
        except ValueError as error:
            assert str(error).startswith(f"{path}") and "on_error" not in str(error), byte
            assert byte < INDEX_HEADER.size or (column == 0 and "shard-2.idx is corrupt" in str(error)), byte
            num_named += 1
        else:
            assert records == RECORDS and (kind == "whole shards" or byte >= INDEX_HEADER.size), byte
            assert column > 0 or kind not in BY_INDEX, byte
        assert not len(corrupt), byte
        path.write_bytes(complete)
    if kind in BY_INDEX:
        assert num_named == sum(byte < INDEX_HEADER.size or column_of(byte) == 0 for byte in flipped)
    else:  # of runs, only where they begin is looked up
        assert bool(num_named) == (kind == "in runs")


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_record_beside_a_damaged_index(own, kind):
    """Each is called what it is: of the shard's first records the headers are gone, and an offset of the index behind them is wrong."""
    folder, _ = own
    path = folder / "shard-2.idx"
    complete = path.read_bytes()
    for record in (0, 1, 2):
        flip(folder / "shard-2", 8 * make_reader(*own).place(8 + record)[2])
    flip(path, 8 * (INDEX_HEADER.size + 5 * INDEX_ROW.size))
    if kind != "in runs":  # of which none begins there
        with pytest.raises(ValueError, match="shard-2.idx is corrupt.*record 4 ends at byte"):
            read(own, kind, corrupt=CorruptRecords())
    path.write_bytes(complete)
    corrupt = CorruptRecords()
    assert read(own, kind, corrupt=corrupt) == [*RECORDS[:8], *RECORDS[11:]] and sorted(item.record for item in corrupt) == [0, 1, 2]


@pytest.mark.slow
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(data=st.data(), kind=st.sampled_from(list(KINDS)), is_index=st.booleans())
def test_no_flipped_bit_gives_other_data(own, data, kind, is_index):
    folder, _ = own
    path = folder / data.draw(st.sampled_from(["shard-0", "shard-2"]))
    path = path.with_name(f"{path.name}.idx") if is_index else path
    complete = path.read_bytes()
    flip(path, data.draw(st.integers(0, 8 * len(complete) - 1)))
    try:
        assert read(own, kind) == RECORDS and is_index  # what it says of images and labels is not looked at here
    except ValueError as error:
        assert path.name in str(error) or (is_index and path.stem in str(error))
    finally:
        path.write_bytes(complete)


def test_a_shard_that_ends_too_soon(own):
    folder, shards = own
    path = folder / "shard-2"
    path.write_bytes(path.read_bytes()[:-5])
    for kind in KINDS:
        with pytest.raises(ValueError, match="record 11, at byte .*: the shard ends after .* of its .* bytes"):
            read(own, kind)
        assert read(own, kind, corrupt=CorruptRecords()) == RECORDS[:-1]


def test_a_shard_that_is_not_there(own):
    folder, _ = own
    (folder / "shard-2").unlink()
    for kind in KINDS:
        with pytest.raises(ValueError, match="shard-2: record 0, at byte 0: .*No such file"):
            read(own, kind)
        corrupt = CorruptRecords()
        assert read(own, kind, corrupt=corrupt) == RECORDS[:8] and len(corrupt) == 12


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
def test_a_busy_or_broken_disk_costs_no_record(own, case, skips):
    """An error that names shard and record, and offers to leave out nothing; once the disk is well again, all are there."""
    folder, _ = own
    (begin, expected), corrupt = BUSY[case], CorruptRecords()
    numbers = np.arange(8, len(RECORDS))
    for is_window in (False, True):
        reader = make_reader(*own, corrupt if skips else None, 60)
        reader.place(7), reader.place(8)  # the indexes are open
        read(own, "chosen"), read(own, "one by one")  # all that is imported when it is first needed is there
        way = functools.partial(read_windows, reader) if is_window else reader.read
        end = begin(folder / "shard-2")
        try:
            with pytest.raises(OSError) as error:
                way(numbers)
        finally:
            end()
        message = str(error.value)
        assert f"{folder / 'shard-2'}: record 0, at byte 0: could not be read: " in message and expected in message
        assert "on_error" not in message and not len(corrupt)
        assert way(np.arange(len(RECORDS))).tolist() == RECORDS


def read_windows(reader: RecordReader, numbers: np.ndarray, window_bytes: int = 100) -> np.ndarray:
    windows = WindowReader(reader, lambda epoch, runs: WindowOrder(runs, window_bytes, None), (1, 0), 3 * window_bytes)
    with contextlib.closing(windows):
        return windows.read(0, numbers)


def test_a_pass_reads_into_the_memory_of_the_one_before_it(made, monkeypatch):
    asked = []
    monkeypatch.setattr(arenas, "_free", [])
    monkeypatch.setattr(arenas, "Arena", lambda num_bytes: asked.append(num_bytes) or Arena(num_bytes))
    nums = []
    for _ in range(3):
        assert read_windows(make_reader(*made), np.arange(len(RECORDS))).tolist() == RECORDS
        nums.append(len(asked))
    assert nums[0] == nums[2] > 0


def test_of_memory_that_waits_there_is_no_more_than_a_reader_takes(monkeypatch):
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


def test_an_epoch_is_read_into_what_the_one_before_was_read_into(monkeypatch):
    """Its windows are an eighth, a fourth and a half of what may be held of one, and then about as much; two at a time, but for the first."""
    monkeypatch.setattr(arenas, "_free", [])
    made = []
    monkeypatch.setattr(arenas, "Arena", lambda num_bytes: made.append(num_bytes) or Arena(num_bytes))
    for _ in range(3):
        cached = []
        for size in (16, 32, 64, 125, 131, 128, 122):
            while len(cached) > 1 and sum(item._taken for item in cached) + (size << 20) > 256 << 20:
                arenas.return_arena(cached.pop(0))
            cached.append(arenas.borrow_arena(size << 20))
            cached[-1].take(size << 20)
        while cached:
            arenas.return_arena(cached.pop())
    assert len(made) == 5


def test_memory_into_which_somebody_still_reads_is_nobody_elses(made, monkeypatch):
    monkeypatch.setattr(arenas, "_free", [])
    reader, may_end, begun = make_reader(*made, run_bytes=1 << 20), threading.Event(), []
    plain = reader.read_runs

    def read_runs(parts: list[RunPart], arena: Arena) -> Any:
        begun.append(arena)
        assert not parts[0].run or may_end.wait(60)
        return plain(parts, arena)

    reader.read_runs = read_runs
    windows = WindowReader(reader, lambda epoch, runs: WindowOrder(runs, 100, None), (1, 0), 1 << 30)
    with contextlib.closing(windows):
        assert windows.read(0, np.arange(COUNTS[0])).tolist() == RECORDS[: COUNTS[0]]  # of one run; the others are read ahead
    (free,) = arenas._free
    may_end.set()
    assert free is begun[0]


def test_frames_are_cut_as_they_are_written():
    """Where the lengths lead elsewhere than to the end, nothing is guessed."""
    data = b"".join(frame(record) for record in RECORDS)
    chunks = []
    for before in (b"", b"before"):
        index = len(before)
        ends = np.array(find_ends(memoryview(before + data + b"after"), index, index + len(data), len(RECORDS))) - index
        chunks.append(RecordChunk(ArenaSlice(before + data, index, len(data)), np.array([0, *ends[:-1]]), ends))
    for some in ([chunks[0], chunks[0]], chunks):
        assert RecordChunks(some).take(np.arange(2 * len(RECORDS))).tolist() == 2 * RECORDS
    assert find_ends(memoryview(b""), 0, 0, 0) == []
    for wrong, count in ((data[:-1], 20), (data + b"x", 20), (data, 19), (data, 21), (b"", 1), (data[4:], 20)):
        assert find_ends(memoryview(wrong), 0, len(wrong), count) is None


def test_damaged_records_are_counted_once_and_the_first_are_logged(caplog):
    corrupt = CorruptRecords()
    with caplog.at_level(logging.WARNING, "tf_input"):
        for _ in range(2):
            for record in range(15):
                corrupt.add(CorruptRecord("shard", record, 100 * record, "torn"))
        corrupt.add(CorruptRecord("other", 3, 7, "the shard is missing", 20))
    assert len(corrupt) == 35 and len(list(corrupt)) == 16
    assert [record.getMessage() for record in caplog.records] == [
        *(f"skipped shard: record {record}, at byte {100 * record}: torn" for record in range(9)),
        "skipped shard: record 9, at byte 900: torn; further ones are only counted",
    ]
    assert str(list(corrupt)[-1]) == "other: record 3 and 19 more, at byte 7: the shard is missing"


def records_of(chunk: RecordChunk) -> list[bytes | None]:
    return RecordChunks([chunk]).take(np.arange(len(chunk.begins))).tolist()


def test_what_could_not_be_read_is_not_what_was_there_before(own):
    """Memory is used again, and records of one length, as of raw pixels, would fit into the place of any others."""
    (folder, shards), arena = own, Arena(1 << 20)
    count = COUNTS[0]
    assert records_of(make_reader(folder, shards, run_bytes=1 << 20).read_runs([RunPart(0, 0, count)], arena)) == RECORDS[:count]
    arena.clear()
    (folder / shards[0].name).unlink()
    (folder / shards[0].name).symlink_to("/proc/self/mem")  # which opens, and can't be read at these places
    assert records_of(make_reader(folder, shards, run_bytes=1 << 20).read_runs([RunPart(0, 0, count)], arena)) == [None] * count
    arena.clear()
    assert records_of(make_reader(folder, shards).read_scattered(np.arange(count), arena)) == [None] * count
