"""Reads records in the order of an epoch and prefetches the next windows."""

import functools
import itertools
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Callable

import numpy as np

from tf_input.epochs.runs import Runs
from tf_input.epochs.windows import Window, WindowOrder
from tf_input.storage.arenas import Arena, borrow_arena, return_arena
from tf_input.storage.record_reader import RecordReader
from tf_input.storage.record_chunks import RecordChunk, RecordChunks

_SLACK_BYTES = 4 << 20  # spare bytes of an arena, because the sizes of chunks are approximate
_NUM_REQUESTS = 16  # number of parallel requests, which use the full bandwidth in spite of their latency
_TOGETHER_BYTES = 1 << 20  # total size of the chunks that a thread reads in a task


class WindowReader:
    """Reads the records at the given indices of an epoch.

    The windows of the latest batch stay in memory while the next windows are prefetched. `close` releases the windows
    and the threads.

    Args:
        reader: The reader of the split.
        make_order: A function that returns the order of an epoch's records, given the index of the epoch and the chunks
            that contain the records.
        hosts: The number of hosts and the index of this host. Only the records of this host are read from each window.
        num_bytes: The maximum number of bytes to read ahead. The next window is always read ahead.
    """

    def __init__(
        self, reader: RecordReader, make_order: Callable[[int, Runs], WindowOrder], hosts: tuple[int, int], num_bytes: int
    ) -> None:
        self._reader = reader
        self._make_order = make_order
        self._hosts = hosts
        self._num_bytes = num_bytes
        self._epoch, self._order = -1, None
        self._runs, self._numbers = reader.runs, None  # of the current epoch
        self._cached: dict[int, _Loading] = {}  # by the index of the window in the epoch
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(_NUM_REQUESTS, "tf_input")

    def close(self) -> None:
        """Releases all windows and threads without waiting for reads in progress."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._lock.acquire(blocking=False):  # otherwise, another thread still copies records
            self._release_all()
            self._lock.release()

    def read(self, epoch: int, indices: np.ndarray) -> np.ndarray:
        """Reads the records at the given indices of an epoch.

        For fast reading, all requested records should be in one window or in a few consecutive windows.

        Args:
            epoch: The index of the epoch.
            indices: The indices in the epoch of records that this host reads, int64 [n].

        Returns:
            An object array [n] with the bytes of the serialized examples, or None for skipped corrupt records.

        Raises:
            OSError, ValueError: See `RecordReader.read_again`.
        """
        with self._lock:
            order = self._order_of(epoch)
            windows = order.windows_of(indices)
            if len(indexes := sorted(set(windows.tolist()))) == 1:
                records = self._cache(order, indexes[0]).take(indices)
            else:
                records = np.empty(len(indices), object)
                for index in indexes:
                    is_here = windows == index
                    records[is_here] = self._cache(order, index).take(indices[is_here])
        if corrupt := [index for index, data in enumerate(records.tolist()) if data is None]:
            for slot, number in zip(corrupt, self.numbers(epoch, indices[corrupt]).tolist()):
                records[slot] = self._reader.read_again(number)
        return records

    def numbers(self, epoch: int, indices: np.ndarray) -> np.ndarray:
        """Converts indices in an epoch to indices of records in the split, int64 [n].

        No file is read.
        """
        with self._lock:
            order, all_runs, selected = self._order_of(epoch), self._runs, self._numbers
        numbers, windows = np.empty_like(indices), order.windows_of(indices)
        for index in np.unique(windows).tolist():
            window, is_here = order.window(index), windows == index
            records = order.mix(window)[indices[is_here] - window.start]
            runs = np.searchsorted(window.run_starts, records, side="right") - 1
            numbers[is_here] = all_runs.starts[window.runs[runs]] + records - window.run_starts[runs]
        return numbers if selected is None else selected[numbers]

    def _order_of(self, epoch: int) -> WindowOrder:
        if epoch != self._epoch:
            self._release_all()
            self._runs, self._numbers = self._reader.of_epoch(epoch)
            self._epoch, self._order = epoch, self._make_order(epoch, self._runs)
        return self._order

    def _cache(self, order: WindowOrder, index: int) -> "_Loading":
        """Returns a window. Releases the windows before it and starts reading the windows after it."""
        if next(iter(self._cached), None) == index:
            return self._cached[index]
        loading = self._cached.get(index) or self._load(order, index)
        for other in [other for other in self._cached if other < index]:
            self._release(self._cached.pop(other))
        self._cached = {index: loading, **self._cached}
        for after in range(index + 1, order.num_windows):
            if after in self._cached:
                continue
            window = order.window(after)
            num_cached_bytes = sum(cached_window.num_bytes for cached_window in self._cached.values())
            if after > index + 1 and num_cached_bytes + self._length(order, window) > self._num_bytes:
                break
            self._cached[after] = self._load(order, after)
        return loading

    def _length(self, order: WindowOrder, window: Window) -> int:
        """Returns the approximate number of bytes that this host reads from a window."""
        records = sum(stop - first for first, stop in order.slices(window, self._hosts))
        return int(self._runs.num_bytes[window.runs].sum()) * records // max(1, window.count)

    def _load(self, order: WindowOrder, index: int) -> "_Loading":
        window = order.window(index)
        slices, num_bytes = order.slices(window, self._hosts), self._length(order, window)
        arena = borrow_arena(num_bytes + num_bytes // 4 + _SLACK_BYTES)
        parts = []  # the first record of each chunk, and the record after its last record
        for first, stop in slices:
            begin = int(np.searchsorted(window.run_starts, first, side="right")) - 1
            end = int(np.searchsorted(window.run_starts, stop, side="left"))
            shifts = (self._runs.starts[window.runs[begin:end]] - window.run_starts[begin:end]).tolist()
            for shift, (start, limit) in zip(shifts, itertools.pairwise(window.run_starts[begin : end + 1].tolist())):
                parts.append((shift + max(first, start), shift + min(stop, limit)))
        # A task reads several short chunks, if there are enough tasks for all threads.
        together = max(1, min(-(-len(parts) // _NUM_REQUESTS), _TOGETHER_BYTES * len(parts) // max(1, num_bytes)))
        chunks = [
            self._threads.submit(self._read, parts[first_part : first_part + together], self._numbers, arena)
            for first_part in range(0, len(parts), together)
        ]
        mixed = self._threads.submit(order.mix, window)
        return _Loading(window, slices, chunks, mixed, num_bytes, arena)

    def _read(self, parts: list[tuple[int, int]], selected: np.ndarray | None, arena: Arena) -> RecordChunk:
        """Reads consecutive records of each of several chunks."""
        numbers = np.concatenate([np.arange(first, stop) for first, stop in parts])
        if selected is not None:
            return self._reader.load(selected[numbers], arena)
        return self._reader.load(numbers, arena, in_parallel=False)

    def _release_all(self) -> None:
        while self._cached:
            self._release(self._cached.popitem()[1])

    def _release(self, loading: "_Loading") -> None:
        if loading.is_read:  # otherwise, a thread may still write to the arena
            return_arena(loading.arena)


class _Loading:
    """The records that this host reads from a window. Reading may still be in progress.

    Attributes:
        num_bytes: The approximate size of the records in bytes.
        arena: The buffer to which the records are written.
        is_read: Whether all reads into the arena are complete.
    """

    def __init__(
        self,
        window: Window,
        slices: list[tuple[int, int]],
        chunks: list[Future],
        mixed: Future,
        num_bytes: int,
        arena: Arena,
    ) -> None:
        self.num_bytes, self.arena, self.is_read = num_bytes, arena, False
        self._start, self._futures, self._mixed = window.start, chunks, mixed
        self._firsts = np.array([first for first, _ in slices])
        counts = np.array([stop - first for first, stop in slices])
        self._shifts = self._firsts - (np.cumsum(counts) - counts)  # records of other hosts before each slice

    def take(self, indices: np.ndarray) -> np.ndarray:
        """Waits until the window is read, and returns the records at the given indices, or None if they are corrupt."""
        records = self._order[indices - self._start]
        return self._chunks.take(records - self._shifts[np.searchsorted(self._firsts, records, side="right") - 1])

    @functools.cached_property
    def _order(self) -> np.ndarray:
        return self._mixed.result()

    @functools.cached_property
    def _chunks(self) -> RecordChunks:
        wait(self._futures)
        self.is_read = True
        return RecordChunks([future.result() for future in self._futures])
