"""Records in the order of an epoch, read a window at a time, and ahead of who asks for them."""

import functools
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Callable

import numpy as np

from tf_input.epochs.runs import Runs
from tf_input.epochs.windows import Window, WindowOrder
from tf_input.storage.arenas import Arena, borrow_arena, return_arena
from tf_input.storage.record_reader import RecordReader, RunPart, SelectedRecords
from tf_input.storage.stretches import Stretches

_SLACK_BYTES = 4 << 20  # of an arena: how long runs are is known about, and what is not touched takes no memory
_NUM_REQUESTS = 16  # at a time: where each takes a moment, so many runs come at the speed of the network
_TOGETHER_BYTES = 1 << 20  # of runs that one thread reads one after the other


class WindowReader:
    """Reads the records at places of epochs.

    The windows in which the last batch lay are held, and those that come next are read while they are used up. `close` lets go of
    them, and of the threads.

    Args:
        reader: The reader of the split.
        make_order: A function from the index of an epoch and the runs of its records to their order.
        hosts: The (number of hosts, this one's index): of each window only what this host needs is read.
        num_bytes: The number of bytes that may be held of what is read ahead; the next window is held in any case.
    """

    def __init__(
        self, reader: RecordReader, make_order: Callable[[int, Runs], WindowOrder], hosts: tuple[int, int], num_bytes: int
    ) -> None:
        self._reader = reader
        self._make_order = make_order
        self._hosts = hosts
        self._num_bytes = num_bytes
        self._epoch, self._order = -1, None
        self._records: RecordReader | SelectedRecords = reader  # of the epoch
        self._held: dict[int, _Loading] = {}  # by the index of the window in the epoch
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(_NUM_REQUESTS, "tf_input")

    def close(self) -> None:
        """Lets go of all; what is being read is not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._lock.acquire(blocking=False):  # else somebody still takes records out of what is held
            self._let_go_of_all()
            self._lock.release()

    def read(self, epoch: int, places: np.ndarray) -> np.ndarray:
        """The records at some places of an epoch, which lie in one window or in few that follow each other.

        Args:
            epoch: The index of the epoch.
            places: The places of records that this host reads, int64 [n].

        Returns:
            Serialized examples, bytes as objects [n]; None for those that are damaged, if these are left out.

        Raises:
            OSError, ValueError: As in `RecordReader.check`.
        """
        with self._lock:
            order = self._order_of(epoch)
            windows = order.windows_of(places)
            if len(indexes := sorted(set(windows.tolist()))) == 1:
                found = self._hold(order, indexes[0]).take(places)
            else:
                found = np.empty(len(places), object)
                for index in indexes:
                    is_here = windows == index
                    found[is_here] = self._hold(order, index).take(places[is_here])
        if damaged := [place for place, record in enumerate(found.tolist()) if record is None]:
            for place, number in zip(damaged, self.numbers(epoch, places[damaged]).tolist()):
                found[place] = self._reader.look_again(number)
        return found

    def numbers(self, epoch: int, places: np.ndarray) -> np.ndarray:
        """The records at places of an epoch, by their numbers in the split: int64 [n] of int64 [n]. Nothing is read."""
        with self._lock:
            order, selected = self._order_of(epoch), self._records
        found, windows = np.empty_like(places), order.windows_of(places)
        for index in np.unique(windows).tolist():
            window, is_here = order.window(index), windows == index
            records = order.mix(window)[places[is_here] - window.start]
            runs = np.searchsorted(window.run_starts, records, side="right") - 1
            found[is_here] = selected.runs.starts[window.runs[runs]] + records - window.run_starts[runs]
        return selected.numbers(found)

    def _order_of(self, epoch: int) -> WindowOrder:
        if epoch != self._epoch:
            self._let_go_of_all()
            self._records = self._reader.of_epoch(epoch)
            self._epoch, self._order = epoch, self._make_order(epoch, self._records.runs)
        return self._order

    def _hold(self, order: WindowOrder, index: int) -> "_Loading":
        """A window; those before it are let go of, and those after it are begun with."""
        if next(iter(self._held), None) == index:
            return self._held[index]
        loading = self._held.get(index) or self._load(order, index)
        for other in [other for other in self._held if other < index]:
            self._let_go(self._held.pop(other))
        self._held = {index: loading, **self._held}
        for after in range(index + 1, order.num_windows):
            if after in self._held:
                continue
            window = order.window(after)
            held = sum(one.num_bytes for one in self._held.values())
            if after > index + 1 and held + self._length(order, window) > self._num_bytes:
                break
            self._held[after] = self._load(order, after)
        return loading

    def _length(self, order: WindowOrder, window: Window) -> int:
        """About how many bytes this host reads of a window."""
        records = sum(stop - first for first, stop in order.slices(window, self._hosts))
        return int(self._records.runs.num_bytes[window.runs].sum()) * records // max(1, window.count)

    def _load(self, order: WindowOrder, index: int) -> "_Loading":
        window = order.window(index)
        slices, num_bytes = order.slices(window, self._hosts), self._length(order, window)
        arena = borrow_arena(num_bytes + num_bytes // 4 + _SLACK_BYTES)
        parts = []
        for first, stop in slices:
            begin = int(np.searchsorted(window.run_starts, first, side="right")) - 1
            end = int(np.searchsorted(window.run_starts, stop, side="left"))
            for run, start, limit in zip(window.runs[begin:end].tolist(), *_bounds(window, begin, end)):
                parts.append(RunPart(run, max(first, start) - start, min(stop, limit) - start))
        # Short runs are read several at a time, as far as each thread has some all the same.
        together = max(1, min(-(-len(parts) // _NUM_REQUESTS), _TOGETHER_BYTES * len(parts) // max(1, num_bytes)))
        stretches = [
            self._threads.submit(self._records.read_runs, parts[place : place + together], arena)
            for place in range(0, len(parts), together)
        ]
        mixed = self._threads.submit(order.mix, window)
        return _Loading(window, slices, stretches, mixed, num_bytes, arena)

    def _let_go_of_all(self) -> None:
        while self._held:
            self._let_go(self._held.popitem()[1])

    def _let_go(self, loading: "_Loading") -> None:
        if loading.is_read:  # into any other somebody may still read
            return_arena(loading.arena)


def _bounds(window: Window, begin: int, end: int) -> tuple[list[int], list[int]]:
    return window.run_starts[begin:end].tolist(), window.run_starts[begin + 1 : end + 1].tolist()


class _Loading:
    """A window, or a host's part of one, that is being read, or has been.

    Attributes:
        num_bytes: The length of the window, about, in bytes.
        arena: The memory that it is read into.
        is_read: Whether nobody reads into the arena any more.
    """

    def __init__(
        self,
        window: Window,
        slices: list[tuple[int, int]],
        stretches: list[Future],
        mixed: Future,
        num_bytes: int,
        arena: Arena,
    ) -> None:
        self.num_bytes, self.arena, self.is_read = num_bytes, arena, False
        self._start, self._futures, self._mixed = window.start, stretches, mixed
        self._firsts = np.array([first for first, _ in slices])
        counts = np.array([stop - first for first, stop in slices])
        self._shifts = self._firsts - (np.cumsum(counts) - counts)  # what is not read before each slice

    def take(self, places: np.ndarray) -> np.ndarray:
        """The records at places of the epoch, None for what seems to be damaged; waits until all are read."""
        records = self._order[places - self._start]
        return self._stretches.take(records - self._shifts[np.searchsorted(self._firsts, records, side="right") - 1])

    @functools.cached_property
    def _order(self) -> np.ndarray:
        return self._mixed.result()

    @functools.cached_property
    def _stretches(self) -> Stretches:
        wait(self._futures)
        self.is_read = True
        return Stretches([one.result() for one in self._futures])
