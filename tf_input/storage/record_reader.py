"""Reads and checks the records of a split, one by one or in chunks. In names, a chunk is called a "run"."""

import functools
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, Callable, NamedTuple, Sequence

import numpy as np

from tf_input.epochs.runs import Runs, cut_runs
from tf_input.epochs.selection import Selection, cut_selection
from tf_input.storage.arenas import Arena, borrow_arena, return_arena
from tf_input.storage.corrupt_records import REPAIR, SKIP, CorruptRecord, CorruptRecords
from tf_input.storage.files import FILE_MISSING_ERRORS, Files
from tf_input.storage.frames import CHECKSUM_BYTES, HEADER_BYTES, find_corruption
from tf_input.storage.index import ShardIndex
from tf_input.storage.record_chunks import RecordChunk, RecordChunks

_NUM_REQUESTS = 16  # number of parallel requests
_NEAR_BYTES = 256 << 10  # reading this number of bytes takes as long as another request
_TOGETHER_BYTES = 4 << 20  # largest size of a request that also reads unneeded bytes


class ShardFile(NamedTuple):
    """A shard file, which may be truncated.

    Attributes:
        path: The local path or URL of the shard.
        num_bytes: The size of the file in bytes.
        num_examples: The number of complete records in the file.
    """

    path: str
    num_bytes: int
    num_examples: int


class Users:
    """Counts the readers of files. Each reader uses the object as a context manager while it reads.

    Args:
        release: A function that closes all open files. It is called when the last reader exits. Later reads open files
            again.
    """

    def __init__(self, release: Callable[[], None]) -> None:
        self._release, self._count, self._lock = release, 0, threading.Lock()

    def __enter__(self) -> "Users":
        with self._lock:
            self._count += 1
        return self

    def __exit__(self, *unused: Any) -> None:
        with self._lock:
            self._count -= 1
            is_last = not self._count
        if is_last:
            self._release()


class RecordReader:
    """Reads records of a split by index. Any number of threads may read at the same time.

    Args:
        files: The object that reads the shards.
        shards: The shards of the split.
        open_index: A function that takes the index of a shard in the split and opens the shard's index file.
        run_bytes: The size of the chunks of an epoch, in bytes.
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
        self._starts = np.concatenate([[0], np.cumsum([shard.num_examples for shard in shards], dtype=np.int64)])
        self._sizes, self._run_bytes = ([item.num_examples for item in shards], [entry.num_bytes for entry in shards]), run_bytes
        self.runs = cut_runs(*self._sizes, run_bytes)
        self._mean_bytes = sum(shard.num_bytes for shard in shards) // max(1, int(self._starts[-1])) + 1
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

    def of_epoch(self, epoch: int) -> tuple[Runs, np.ndarray | None]:
        """Returns the chunks of an epoch, and the index in the split of each record in the concatenated chunks, int64
        [n]. The indices are None if the chunks contain each record of the split once."""
        if self.selection is None:
            return self.runs, None
        numbers = self.selection.of_epoch(epoch)
        return cut_selection(numbers, *self._sizes, self._run_bytes), numbers

    def read(self, numbers: np.ndarray) -> np.ndarray:
        """Reads single records.

        Args:
            numbers: The indices of the records in the split, int64 [n].

        Returns:
            An object array [n] with the bytes of the serialized examples, or None for skipped corrupt records.

        Raises:
            OSError, ValueError: As in `read_again`.
        """
        records = np.empty(0, object)
        if len(numbers):
            arena = borrow_arena(len(numbers) * self._mean_bytes)
            records = RecordChunks([self.load(numbers, arena, near_bytes=0)]).take(np.arange(len(numbers)))
            return_arena(arena)
        for index in [index for index, record in enumerate(records.tolist()) if record is None]:
            records[index] = self.read_again(int(numbers[index]))
        return records

    def load(self, numbers: np.ndarray, arena: Arena, near_bytes: int = _NEAR_BYTES, in_parallel: bool = True) -> RecordChunk:
        """Reads records anywhere in the split. Records that are close to each other in the shard are read with a single
        request.

        Args:
            numbers: The indices of the records in the split, int64 [n], in any order. Repeated records are read once.
            arena: The buffer to which the records are written. Bytes that cannot be read are replaced with zeros.
            near_bytes: The number of bytes between two records that are read with the records. Default: 256 KiB.
            in_parallel: Whether to divide the records into requests of at most 4 MiB, and to send the requests in
                parallel. Default: True.

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
        is_apart = (np.diff(shards) != 0) | (begins[1:] - ends[:-1] > near_bytes)
        if in_parallel:
            is_apart |= np.diff(begins // _TOGETHER_BYTES) != 0
        chunks = np.concatenate([[0], np.flatnonzero(is_apart) + 1, [len(wanted)]])
        edges = np.concatenate([[0], np.cumsum(ends - begins)])
        memory = arena.take(int(edges[-1]))
        data = memory.view

        def read(chunks: np.ndarray) -> None:
            for first, stop in itertools.pairwise(chunks.tolist()):
                self._read_chunk(int(shards[first]), begins[first:stop], ends[first:stop], data[edges[first] : edges[stop]])

        num_tasks = min(_NUM_REQUESTS, len(chunks) - 1) if in_parallel else 1
        cuts = np.arange(num_tasks + 1) * (len(chunks) - 1) // num_tasks
        tasks = [self._threads.submit(read, chunks[first : stop + 1]) for first, stop in itertools.pairwise(cuts[1:].tolist())]
        read(chunks[: cuts[1] + 1])
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
