"""Reads and checks the records of a split, one by one or in chunks. In names, a chunk is called a "run"."""

import collections
import dataclasses
import functools
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Callable, NamedTuple, Sequence

import numpy as np

from tf_input.epochs.runs import Runs, ShardRuns, cut_runs
from tf_input.epochs.selection import Selection, cut_selection
from tf_input.storage.arenas import Arena
from tf_input.storage.corrupt_records import REPAIR, SKIP, CorruptRecord, CorruptRecords
from tf_input.storage.files import FILE_MISSING_ERRORS, Files
from tf_input.storage.frames import CHECKSUM_BYTES, HEADER_BYTES, find_corruption, unframe
from tf_input.storage.index import ShardIndex
from tf_input.storage.record_chunks import RecordChunk, find_ends
from tf_input.storage.users import Users

_NUM_REQUESTS = 16  # number of parallel requests
_NEAR_BYTES = 256 << 10  # reading this number of bytes takes as long as another request
_TOGETHER_BYTES = 4 << 20  # largest size of a request that also reads unneeded bytes


class RunPart(NamedTuple):
    """Consecutive records of a chunk.

    Attributes:
        run: The index of the chunk among all chunks.
        first: The index of the first record in the chunk.
        stop: The index after the last record in the chunk.
    """

    run: int
    first: int
    stop: int


@dataclasses.dataclass(frozen=True)
class ShardFile:
    """A shard file, which may be truncated.

    Attributes:
        path: The local path or URL of the shard.
        num_bytes: The size of the file in bytes.
        num_examples: The number of complete records in the file.
        is_complete: Whether the file contains all records of the shard.
    """

    path: str
    num_bytes: int
    num_examples: int
    is_complete: bool = True


class RecordReader:
    """Reads records of a split by index. Any number of threads may read at the same time.

    Args:
        files: The object that reads the shards.
        shards: The shards of the split.
        open_index: A function that takes the index of a shard in the split and opens the shard's index file.
        run_bytes: The size of the chunks for `read_runs`, in bytes.
        corrupt: The collection to which corrupt records are added. None means that corrupt records raise errors.
        users: The counter of the readers of the files. Files stay open as long as a reader uses them.
        selection: The records of an epoch. None selects each record once.

    Attributes:
        users: The counter of the readers of the files.
        runs: The chunks of the split.
        num_examples: The number of records in an epoch.
        selection: The records of an epoch. None selects each record once.
        keys: The key of each record of the split, bytes as objects [n], if batches need keys that the records do not
            contain. Otherwise None.
    """

    def __init__(
        self,
        files: Files,
        shards: Sequence[ShardFile],
        open_index: Callable[[int], ShardIndex],
        run_bytes: int,
        corrupt: CorruptRecords | None = None,
        users: Users | None = None,
        selection: Selection | None = None,
    ) -> None:
        self.keys: np.ndarray | None = None
        self._files = files
        self._shards = shards
        self._index = open_index
        self._corrupt = corrupt
        self.users = Users(files.release) if users is None else users
        self._parse_lock = threading.Lock()
        self._cuts: dict[int, dict[int, int]] = {}  # offsets of the chunks' first records, by shard and record
        self._cut_locks: collections.defaultdict[int, threading.Lock] = collections.defaultdict(threading.Lock)
        self._starts = np.concatenate([[0], np.cumsum([shard.num_examples for shard in shards], dtype=np.int64)])
        self._sizes, self._run_bytes = ([item.num_examples for item in shards], [entry.num_bytes for entry in shards]), run_bytes
        self.runs: ShardRuns = cut_runs(*self._sizes, run_bytes)
        self.selection = selection
        self.num_examples = int(self._starts[-1]) if selection is None else selection.num_examples

    @functools.cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(_NUM_REQUESTS, "tf_input")  # the threads end with this object

    @property
    def first(self) -> int:
        """The index of the epoch's first record in the split."""
        return 0 if self.selection is None else int(self.selection.numbers[0])

    def each_once(self) -> "RecordReader":
        """Returns a reader that reads each record of the split once, without selection or repetition."""
        if self.selection is None:
            return self
        selection = Selection(self.selection.numbers)
        return RecordReader(self._files, self._shards, self._index, self._run_bytes, self._corrupt, self.users, selection)

    def of_epoch(self, epoch: int) -> "RecordReader | SelectedRecords":
        """Returns a reader for the chunks of an epoch."""
        if self.selection is None:
            return self
        numbers = self.selection.of_epoch(epoch)
        return SelectedRecords(self, numbers, cut_selection(numbers, *self._sizes, self._run_bytes))

    def numbers(self, indices: np.ndarray) -> np.ndarray:
        """Converts indices in the concatenated chunks to record indices in the split, int64 [n]."""
        return indices

    def read(self, numbers: np.ndarray) -> np.ndarray:
        """Reads single records.

        Args:
            numbers: The indices of the records in the split, int64 [n].

        Returns:
            An object array [n] with the bytes of the serialized examples, or None for skipped corrupt records.

        Raises:
            OSError, ValueError: As in `read_again`.
        """
        parts = np.array_split(numbers, min(_NUM_REQUESTS, len(numbers))) if len(numbers) > 1 else [numbers]
        tasks = [self._threads.submit(self._read_each, part) for part in parts[1:]]
        try:
            read = [self._read_each(parts[0])]
        finally:
            wait(tasks)  # after an error, waits until all threads have stopped
        records = np.empty(len(numbers), object)
        records[:] = [data for part in [*read, *(task.result() for task in tasks)] for data in part]
        for index in [index for index, record in enumerate(records) if record is None]:
            records[index] = self.read_again(int(numbers[index]))
        return records

    def read_runs(self, parts: Sequence[RunPart], arena: Arena) -> RecordChunk:
        """Reads consecutive records from each of several chunks, with a single request for each chunk.

        Args:
            parts: The records to read from each chunk.
            arena: The buffer to which the records are written. Bytes that cannot be read are replaced with zeros.

        Raises:
            OSError, ValueError: The offsets of the records are unknown, because the index cannot be read.
        """
        # All chunks are processed together, because NumPy calls for each chunk would take longer than reading it.
        shards = self.runs.shards[[part.run for part in parts]].tolist()
        starts = self.runs.firsts[[part.run for part in parts]].tolist()
        extents = [self._extent(shard, start, part) for shard, start, part in zip(shards, starts, parts)]
        offsets = list(itertools.accumulate((end - begin for begin, end in extents), initial=0))
        memory = arena.take(offsets[-1])  # may contain old records
        data = memory.view
        sizes = [
            self._read_extent(self._shards[shard].path, begin, data[first:stop])
            for shard, (begin, _), (first, stop) in zip(shards, extents, itertools.pairwise(offsets))
        ]
        # Only one thread at a time parses records, because threads that compete for the GIL take three times as long.
        with self._parse_lock:
            edges, lost, num_records = [0], [], 0
            for number, (part, size, (first, stop)) in enumerate(zip(parts, sizes, itertools.pairwise(offsets))):
                count = part.stop - part.first
                ends = find_ends(data, first, stop, count) if size == stop - first else None
                if ends is None:
                    lost.append((number, num_records))
                    ends = [stop] * count
                edges += ends
                num_records += count
            begins, ends = np.array(edges[:-1], np.int64), np.array(edges[1:], np.int64)
            for number, row in lost:
                part, first, stop = parts[number], offsets[number], offsets[number + 1]
                rows = slice(row, row + part.stop - part.first)
                extent_bounds = self._look_up(shards[number], starts[number], part, extents[number][0], stop - first)
                begins[rows], ends[rows] = (first + bound for bound in extent_bounds)
            return RecordChunk(memory, begins, ends)

    def _extent(self, shard: int, start: int, part: RunPart) -> tuple[int, int]:
        """Returns the byte range (start, end) in the shard of consecutive records of a chunk. A corrupt index can make
        the range empty.

        Args:
            shard: The index of the shard.
            start: The index of the chunk's first record in the shard.
            part: The records.
        """
        begin = self._offset(shard, start + part.first)
        return begin, max(begin, self._offset(shard, start + part.stop))

    def _read_extent(self, path: str, begin: int, target: memoryview) -> int:
        """Reads a byte range of a shard into `target`, zero-fills the rest, and returns the number of bytes read."""
        try:
            num_bytes = self._files.read_into(path, begin, target)
        except OSError:  # each record is read again later, which reports the error
            num_bytes = 0
        if num_bytes < len(target):
            target[num_bytes:] = bytes(len(target) - num_bytes)
        return num_bytes

    def _look_up(self, shard: int, start: int, part: RunPart, begin: int, num_bytes: int) -> tuple[np.ndarray, np.ndarray]:
        """Looks up the offsets of a chunk's records in the index.

        Returns:
            The start and end offsets of their frames, relative to the first byte that was read, int64 [n] each.
        """
        begins, ends = (extent - begin for extent in self._index(shard).extents(start + part.first, start + part.stop))
        is_there = (begins >= 0) & (ends <= num_bytes)  # all other ranges would overlap the next chunk
        return np.where(is_there, begins, 0), np.where(is_there, ends, 0)

    def read_scattered(self, numbers: np.ndarray, arena: Arena) -> RecordChunk:
        """Reads records anywhere in the split. Records that are close to each other in the shard are read with a single
        request.

        Args:
            numbers: The indices of the records in the split, int64 [n], in any order. Repeated records are read once.
            arena: The buffer to which the records are written. Bytes that cannot be read are replaced with zeros.

        Raises:
            OSError, ValueError: The offsets of the records are unknown, because the index cannot be read.
        """
        wanted, indices = np.unique(numbers, return_inverse=True)
        shards = np.searchsorted(self._starts, wanted, side="right") - 1
        bounds = np.flatnonzero(np.diff(shards, prepend=-1, append=len(self._shards)))  # first record of each shard
        extents = [
            self._index(shard).extents_of(wanted[first:stop] - self._starts[shard])
            for shard, first, stop in zip(shards[bounds[:-1]].tolist(), bounds[:-1].tolist(), bounds[1:].tolist())
        ]
        begins, ends = (np.concatenate(parts) for parts in zip(*extents))
        begins, ends = _in_order(shards, begins, ends)
        is_apart = (np.diff(shards) != 0) | (begins[1:] - ends[:-1] > _NEAR_BYTES) | (np.diff(begins // _TOGETHER_BYTES) != 0)
        chunks = np.concatenate([[0], np.flatnonzero(is_apart) + 1, [len(wanted)]]).tolist()
        edges = np.concatenate([[0], np.cumsum(ends - begins)])
        memory = arena.take(int(edges[-1]))
        data = memory.view
        tasks = [
            self._threads.submit(
                self._read_chunk, int(shards[first]), begins[first:stop], ends[first:stop], data[edges[first] : edges[stop]]
            )
            for first, stop in zip(chunks, chunks[1:])
        ]
        wait(tasks)
        for task in tasks:
            task.result()
        return RecordChunk(memory, edges[:-1][indices], edges[1:][indices])

    def _read_chunk(self, shard: int, begins: np.ndarray, ends: np.ndarray, target: memoryview) -> None:
        """Reads a byte range of a shard with a single request and copies the records from it to `target`.

        Args:
            shard: The index of the shard.
            begins, ends: The start and end offsets of the records in the shard, int64 [n].
            target: The buffer to which the records are written, without gaps between them.
        """
        path, begin, num_bytes, size = self._shards[shard].path, int(begins[0]), int(ends[-1] - begins[0]), 0
        try:
            if num_bytes == len(target):  # no gaps between the records
                size = self._files.read_into(path, begin, target)
            else:
                data = memoryview(self._files.read_range(path, begin, num_bytes))
                for first, stop in zip((begins - begin).tolist(), (ends - begin).tolist()):
                    part = data[first:stop]
                    target[size : size + len(part)] = part
                    size += len(part)
        except OSError:  # each record is read again later, which reports the error
            size = 0
        target[size:] = bytes(len(target) - size)  # the memory may contain old records

    def _offset(self, shard: int, record: int) -> int:
        """Returns the byte offset in the shard at which a chunk starts or ends. The offsets of all chunks in the shard
        are looked up at once.

        Args:
            shard: The index of the shard.
            record: The index of a record in the shard, or the number of records for the end of the last record.
        """
        file = self._shards[shard]
        if not record:
            return 0
        if file.is_complete and record == file.num_examples:
            return file.num_bytes
        with self._cut_locks[shard]:
            if shard not in self._cuts:
                first, stop = np.searchsorted(self.runs.shards, [shard, shard + 1])
                firsts = self.runs.firsts[first + 1 : stop].tolist()
                self._cuts[shard] = dict(zip(firsts, self._index(shard).offsets(firsts).tolist())) if firsts else {}
        offset = self._cuts[shard].get(record)
        return self._index(shard).extent(record - 1)[1] if offset is None else offset

    def read_again(self, number: int) -> bytes | None:
        """Reads a seemingly corrupt record again. It is valid if only the previous record or a cached copy is corrupt.

        Returns:
            The serialized example, or None if the record is corrupt and skipped.

        Raises:
            OSError: The record cannot be read. This error is never skipped, because the record may be valid.
            ValueError: The record or the index is corrupt. The message names the shard, the record and the offset, or
                the index.
        """
        shard, row = self._find(number)
        frame, num_bytes, error = self._read_frame(shard, row)
        if error is None and find_corruption(frame, num_bytes):
            if self._files.discard(self._shards[shard].path, self._index(shard).extent(row)[0], num_bytes):
                frame, num_bytes, error = self._read_frame(shard, row)  # without the corrupt cached copy
        if error is not None and not isinstance(error, FILE_MISSING_ERRORS):
            raise OSError(f"{CorruptRecord(*self.locate(number), f'could not be read: {error}')}") from error
        reason = str(error or find_corruption(frame, num_bytes))
        if not reason:
            return frame[HEADER_BYTES:-CHECKSUM_BYTES]
        self._index(shard).check(row, functools.partial(self._files.read_range, self._shards[shard].path))
        self.reject(number, reason, is_missing=isinstance(error, FILE_MISSING_ERRORS))
        return None

    def reject(self, number: int, reason: str, is_missing: bool = False) -> None:
        """Skips a corrupt record and adds it to the list of skipped records.

        Args:
            number: The index of the record in the split.
            reason: A description of the problem.
            is_missing: Whether the whole shard is missing.

        Raises:
            ValueError: Corrupt records are not skipped. The message names the shard, the record and the offset.
        """
        corrupt = CorruptRecord(*self.locate(number), reason)
        if self._corrupt is None:
            advice = REPAIR if is_missing else SKIP
            raise ValueError(f"{corrupt}; {advice}")
        self._corrupt.add(corrupt)

    def locate(self, number: int) -> tuple[str, int, int]:
        """Returns the shard path, the index in the shard and the byte offset of a record."""
        shard, row = self._find(number)
        return self._shards[shard].path, row, self._index(shard).extent(row)[0]

    def _find(self, number: int) -> tuple[int, int]:
        shard = int(np.searchsorted(self._starts, number, side="right")) - 1
        return shard, number - int(self._starts[shard])

    def _read_each(self, numbers: np.ndarray) -> list[bytes | None]:
        frames = [self._read_frame(*self._find(number)) for number in numbers.tolist()]
        ends = np.array([num_bytes for _, num_bytes, _ in frames], np.int64)
        return unframe([frame for frame, _, _ in frames], np.zeros_like(ends), ends)

    def _read_frame(self, shard: int, row: int) -> tuple[bytes, int, OSError | None]:
        """Reads a record with its frame.

        Returns:
            The bytes of the frame, the size of the frame according to the index, and the error if the record cannot be
            read.
        """
        begin, end = self._index(shard).extent(row)
        try:
            return self._files.read_range(self._shards[shard].path, begin, max(0, end - begin)), end - begin, None
        except OSError as error:
            return b"", end - begin, error


class SelectedRecords:
    """Reads the chunks of an epoch in which records are selected or repeated.

    Indexes refer to the concatenated chunks of the epoch.

    Args:
        reader: The reader of the split.
        numbers: The indices of the epoch's records in the split, int64 [n].
        runs: The chunks of these records.
    """

    def __init__(self, reader: RecordReader, numbers: np.ndarray, runs: Runs) -> None:
        self._reader, self._numbers, self.runs = reader, numbers, runs

    def numbers(self, indices: np.ndarray) -> np.ndarray:
        """Converts indices in the concatenated chunks to record indices in the split, int64 [n]."""
        return self._numbers[indices]

    def read_runs(self, parts: Sequence[RunPart], arena: Arena) -> RecordChunk:
        """Reads consecutive records from each of several chunks, as `RecordReader.read_runs` does."""
        starts = self.runs.starts[[part.run for part in parts]].tolist()
        wanted = [self._numbers[start + part.first : start + part.stop] for start, part in zip(starts, parts)]
        return self._reader.read_scattered(np.concatenate(wanted), arena)


def _in_order(shards: np.ndarray, begins: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Replaces byte ranges with empty ranges if they overlap a preceding range in the same shard.

    Ranges overlap only if the index is corrupt.

    Args:
        shards: The index of each record's shard, int64 [n], in ascending order.
        begins, ends: The start and end offsets of the records in their shards, int64 [n].
    """
    last = np.zeros_like(begins)
    bounds = np.flatnonzero(np.diff(shards, prepend=-1, append=shards[-1] + 1)).tolist()
    for first, stop in zip(bounds, bounds[1:]):
        last[first + 1 : stop] = np.maximum.accumulate(ends[first : stop - 1])
    is_there = (ends > begins) & (begins >= last)
    return np.where(is_there, begins, last), np.where(is_there, ends, last)
