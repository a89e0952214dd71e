"""Records of a split: some that lie together, or single ones by their numbers; read where the index says, and checked."""

import collections
import dataclasses
import functools
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Callable, Sequence

import numpy as np

from tf_input.epochs.runs import Runs, cut_runs
from tf_input.storage.arenas import Arena
from tf_input.storage.damaged import DamagedRecord, DamagedRecords
from tf_input.storage.files import NOT_THERE, Files
from tf_input.storage.frames import CHECKSUM_BYTES, HEADER_BYTES, find_damage, unframe
from tf_input.storage.index import ShardIndex
from tf_input.storage.stretches import Stretch, find_stretch, make_stretch

_NUM_REQUESTS = 16  # at a time, where each takes a moment


@dataclasses.dataclass(frozen=True)
class ShardFile:
    """A shard, where it lies.

    Attributes:
        path: Its path or URL.
        num_bytes: Its length, or that of what is there of it.
        num_examples: Records that are there: the first so many.
        is_whole: Whether these are all that it should have.
    """

    path: str
    num_bytes: int
    num_examples: int
    is_whole: bool = True


class RecordReader:
    """Reads records of a split; their numbers count through its shards. Any number of threads may read at a time.

    Args:
        files: Where the shards lie.
        shards: The split's.
        open_index: Opens the index of a shard, by the shard's place in the split.
        run_bytes: How long the runs are that `read_stretch` knows.
        damaged: Where to put damaged records; None: they are errors.
        release: Closes what is open of files and indexes; who reads on opens it again.

    Attributes:
        runs: The runs of the split.
        num_examples: Its records.
    """

    def __init__(
        self,
        files: Files,
        shards: Sequence[ShardFile],
        open_index: Callable[[int], ShardIndex],
        run_bytes: int,
        damaged: DamagedRecords | None = None,
        release: Callable[[], None] = lambda: None,
    ) -> None:
        self._files = files
        self._shards = shards
        self._index = open_index
        self._damaged = damaged
        self.release = release
        self._cuts: dict[int, dict[int, int]] = {}  # of shards that are more than one run: where runs begin
        self._cut_locks: collections.defaultdict[int, threading.Lock] = collections.defaultdict(threading.Lock)
        self._starts = np.concatenate([[0], np.cumsum([shard.num_examples for shard in shards], dtype=np.int64)])
        self.runs: Runs = cut_runs([one.num_examples for one in shards], [one.num_bytes for one in shards], run_bytes)
        self.num_examples = int(self._starts[-1])

    @functools.cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(_NUM_REQUESTS, "tf_input")  # which end with this object

    def read(self, numbers: np.ndarray) -> np.ndarray:
        """Reads records one by one.

        Args:
            numbers: int64 [n].

        Returns:
            Serialized examples, bytes as objects [n]; None for those that are damaged, if these are left out.

        Raises:
            OSError, ValueError: As in `look_again`.
        """
        parts = np.array_split(numbers, min(_NUM_REQUESTS, len(numbers))) if len(numbers) > 1 else [numbers]
        tasks = [self._threads.submit(self._read_each, part) for part in parts[1:]]
        try:
            read = [self._read_each(parts[0])]
        finally:
            wait(tasks)  # whatever happens: nothing goes on behind an error
        found = np.empty(len(numbers), object)
        found[:] = [record for part in [*read, *(task.result() for task in tasks)] for record in part]
        for place in [place for place, record in enumerate(found) if record is None]:
            found[place] = self.look_again(int(numbers[place]))
        return found

    def read_stretch(self, run: int, first: int, stop: int, arena: Arena) -> Stretch:
        """Records of a run that lie together, read at once.

        Args:
            run: Its place in `runs`.
            first, stop: Which of its records.
            arena: Where to put what is read. Of what could not be read nothing is there.

        Raises:
            OSError, ValueError: Where records lie is not known, and the index can't be read.
        """
        shard, start = int(self.runs.shards[run]), int(self.runs.firsts[run])
        file, first, stop = self._shards[shard], start + first, start + stop
        data, begin = memoryview(b""), 0
        try:
            begin, end = self._offset(shard, first), self._offset(shard, stop)
            taken = arena.take(max(0, end - begin))  # with what it held before, which may be records as well
            data = taken[: self._files.read_into(file.path, begin, taken)]
        except OSError:  # each record is read again, and says what is wrong
            pass
        if (stretch := find_stretch(data, stop - first)) is not None:
            return stretch
        begins, ends = self._index(shard).extents(first, stop)
        return make_stretch(data, begins - begin, ends - begin)

    def _offset(self, shard: int, record: int) -> int:
        """Where a record begins, or the one before it ends; of all runs of a shard looked up at once."""
        file = self._shards[shard]
        if not record:
            return 0
        if file.is_whole and record == file.num_examples:
            return file.num_bytes
        with self._cut_locks[shard]:
            if shard not in self._cuts:
                first, stop = np.searchsorted(self.runs.shards, [shard, shard + 1])
                firsts = self.runs.firsts[first + 1 : stop].tolist()
                self._cuts[shard] = dict(zip(firsts, self._index(shard).offsets(firsts).tolist())) if firsts else {}
        found = self._cuts[shard].get(record)
        return self._index(shard).extent(record - 1)[1] if found is None else found

    def look_again(self, number: int) -> bytes | None:
        """Reads by itself a record that seems to be damaged: what lies around it may be, and what could not be read may be readable.

        Returns:
            None where it is damaged, and damaged records are left out.

        Raises:
            OSError: It could not be read, and is never left out: whether it is damaged nobody knows.
            ValueError: It is damaged; the message names shard, record and offset. Or its index is, which it names.
        """
        shard, row = self._find(number)
        frame, num_bytes, error = self._read_frame(shard, row)
        if error is None and find_damage(frame, num_bytes):
            if self._files.discard(self._shards[shard].path, self._index(shard).extent(row)[0], num_bytes):
                frame, num_bytes, error = self._read_frame(shard, row)  # not the copy of it
        if error is not None and not isinstance(error, NOT_THERE):
            raise OSError(f"{DamagedRecord(*self.place(number), f'could not be read: {error}')}") from error
        reason = str(error or find_damage(frame, num_bytes))
        if not reason:
            return frame[HEADER_BYTES:-CHECKSUM_BYTES]
        self._index(shard).check(row, functools.partial(self._files.read_range, self._shards[shard].path))
        damaged = DamagedRecord(*self.place(number), reason)
        if self._damaged is None:
            raise ValueError(f"{damaged}; on_error='skip' leaves such records out")
        self._damaged.add(damaged)
        return None

    def place(self, number: int) -> tuple[str, int, int]:
        """The shard of a record, which of the shard's it is, and its offset there."""
        shard, row = self._find(number)
        return self._shards[shard].path, row, self._index(shard).extent(row)[0]

    def _find(self, number: int) -> tuple[int, int]:
        shard = int(np.searchsorted(self._starts, number, side="right")) - 1
        return shard, number - int(self._starts[shard])

    def _read_each(self, numbers: np.ndarray) -> list[bytes | None]:
        found = [self._read_frame(*self._find(number)) for number in numbers.tolist()]
        ends = np.array([num_bytes for _, num_bytes, _ in found], np.int64)
        return unframe([frame for frame, _, _ in found], np.zeros_like(ends), ends)

    def _read_frame(self, shard: int, row: int) -> tuple[bytes, int, OSError | None]:
        """A record as it lies in its shard, how many bytes it should have, and why it could not be read."""
        begin, end = self._index(shard).extent(row)
        try:
            return self._files.read_range(self._shards[shard].path, begin, max(0, end - begin)), end - begin, None
        except OSError as error:
            return b"", end - begin, error
