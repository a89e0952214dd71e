"""Records of a split: some that lie together, or single ones by their numbers; read where the index says, and checked."""

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
from tf_input.storage.damaged import REPAIR, DamagedRecord, DamagedRecords
from tf_input.storage.files import NOT_THERE, Files
from tf_input.storage.frames import CHECKSUM_BYTES, HEADER_BYTES, find_damage, unframe
from tf_input.storage.index import ShardIndex
from tf_input.storage.stretches import RecordStretch, find_ends
from tf_input.storage.users import Users

_NUM_REQUESTS = 16  # at a time, where each takes a moment
_NEAR_BYTES = 256 << 10  # a request more takes about as long
_TOGETHER_BYTES = 4 << 20  # that lie beside what was asked for are held at most, for each request


class RunPart(NamedTuple):
    """Records of a run.

    Attributes:
        run: The place of the run among all runs.
        first: The first of the records, counted through the run.
        stop: The place behind the last of the records.
    """

    run: int
    first: int
    stop: int


@dataclasses.dataclass(frozen=True)
class ShardFile:
    """A shard, where it lies.

    Attributes:
        path: The path of the shard, local or a URL.
        num_bytes: The length of the shard in bytes, or that of what is there of it.
        num_examples: The number of records that are there: the first so many.
        is_whole: Whether these are all that it should have.
    """

    path: str
    num_bytes: int
    num_examples: int
    is_whole: bool = True


class RecordReader:
    """Reads records of a split; their numbers count through its shards. Any number of threads may read at a time.

    Args:
        files: The files, which the shards are read from.
        shards: The shards of the split.
        open_index: A function that opens the index of a shard, by the shard's place in the split.
        run_bytes: The length of the runs that `read_runs` knows, in bytes.
        damaged: The place where damaged records are noted; None: they are errors.
        users: The users of the files, one of whom is who reads and wants them to stay open.
        selection: The selection of the records that an epoch has; None: each of them once.

    Attributes:
        users: The users of the files.
        runs: The runs of the split.
        num_examples: The number of records of an epoch.
        selection: The selection of the records that an epoch has; None: each of them once.
    """

    def __init__(
        self,
        files: Files,
        shards: Sequence[ShardFile],
        open_index: Callable[[int], ShardIndex],
        run_bytes: int,
        damaged: DamagedRecords | None = None,
        users: Users | None = None,
        selection: Selection | None = None,
    ) -> None:
        self._files = files
        self._shards = shards
        self._index = open_index
        self._damaged = damaged
        self.users = Users(files.release) if users is None else users
        self._looking = threading.Lock()
        self._cuts: dict[int, dict[int, int]] = {}  # of shards that are more than one run: where runs begin
        self._cut_locks: collections.defaultdict[int, threading.Lock] = collections.defaultdict(threading.Lock)
        self._starts = np.concatenate([[0], np.cumsum([shard.num_examples for shard in shards], dtype=np.int64)])
        self._sizes, self._run_bytes = ([one.num_examples for one in shards], [one.num_bytes for one in shards]), run_bytes
        self.runs: ShardRuns = cut_runs(*self._sizes, run_bytes)
        self.selection = selection
        self.num_examples = int(self._starts[-1]) if selection is None else selection.num_examples

    @functools.cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(_NUM_REQUESTS, "tf_input")  # which end with this object

    @property
    def first(self) -> int:
        """The number in the split of the first record that is read."""
        return 0 if self.selection is None else int(self.selection.numbers[0])

    def each_once(self) -> "RecordReader":
        """One of the same records, of which an epoch has each once."""
        if self.selection is None:
            return self
        selection = Selection(self.selection.numbers)
        return RecordReader(self._files, self._shards, self._index, self._run_bytes, self._damaged, self.users, selection)

    def of_epoch(self, epoch: int) -> "RecordReader | SelectedRecords":
        """Who reads the records of an epoch, in runs."""
        if self.selection is None:
            return self
        numbers = self.selection.of_epoch(epoch)
        return SelectedRecords(self, numbers, cut_selection(numbers, *self._sizes, self._run_bytes))

    def numbers(self, places: np.ndarray) -> np.ndarray:
        """The records at places of its runs, counted through them, by their numbers in the split: int64 [n] of int64 [n]."""
        return places

    def read(self, numbers: np.ndarray) -> np.ndarray:
        """Reads records one by one.

        Args:
            numbers: The numbers of the records in the split, int64 [n].

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

    def read_runs(self, parts: Sequence[RunPart], arena: Arena) -> RecordStretch:
        """Records of some runs, one run after the other; of each what is wanted is read at once.

        Args:
            parts: The records of each run that are wanted.
            arena: The memory where what is read is put. Of what could not be read zeros are there.

        Raises:
            OSError, ValueError: Where records lie is not known, and the index can't be read.
        """
        # Of many short runs all is looked at once: for each, the calls to NumPy would take longer than its records.
        shards = self.runs.shards[[part.run for part in parts]].tolist()
        starts = self.runs.firsts[[part.run for part in parts]].tolist()
        extents = [self._extent(shard, start, part) for shard, start, part in zip(shards, starts, parts)]
        places = list(itertools.accumulate((end - begin for begin, end in extents), initial=0))
        piece = arena.take(places[-1])  # with what it held before, which may be records as well
        data = piece.view
        sizes = [
            self._read_extent(self._shards[shard].path, begin, data[first:stop])
            for shard, (begin, _), (first, stop) in zip(shards, extents, itertools.pairwise(places))
        ]
        # One thread at a time: several that look through records by turns take three times as long together.
        with self._looking:
            edges, lost, num_records = [0], [], 0
            for number, (part, size, (first, stop)) in enumerate(zip(parts, sizes, itertools.pairwise(places))):
                count = part.stop - part.first
                ends = find_ends(data, first, stop, count) if size == stop - first else None
                if ends is None:
                    lost.append((number, num_records))
                    ends = [stop] * count
                edges += ends
                num_records += count
            begins, ends = np.array(edges[:-1], np.int64), np.array(edges[1:], np.int64)
            for number, row in lost:
                part, first, stop = parts[number], places[number], places[number + 1]
                rows = slice(row, row + part.stop - part.first)
                found = self._look_up(shards[number], starts[number], part, extents[number][0], stop - first)
                begins[rows], ends[rows] = (first + one for one in found)
            return RecordStretch(piece, begins, ends)

    def _extent(self, shard: int, start: int, part: RunPart) -> tuple[int, int]:
        """Where the records of a run that begins with a record of a shard lie there; of a damaged index, nowhere."""
        begin = self._offset(shard, start + part.first)
        return begin, max(begin, self._offset(shard, start + part.stop))

    def _read_extent(self, path: str, begin: int, target: memoryview) -> int:
        """Reads what lies from a byte of a shard on, and returns how much there was; the rest of the target is zeros."""
        try:
            num_bytes = self._files.read_into(path, begin, target)
        except OSError:  # each record is read again, and says what is wrong
            num_bytes = 0
        if num_bytes < len(target):
            target[num_bytes:] = bytes(len(target) - num_bytes)
        return num_bytes

    def _look_up(self, shard: int, start: int, part: RunPart, begin: int, num_bytes: int) -> tuple[np.ndarray, np.ndarray]:
        """Where the records of a run are by the index: where the frame of each begins and ends behind the first byte that was read, int64 [n]
        each."""
        begins, ends = (places - begin for places in self._index(shard).extents(start + part.first, start + part.stop))
        is_there = (begins >= 0) & (ends <= num_bytes)  # others would be looked for among those of the next run
        return np.where(is_there, begins, 0), np.where(is_there, ends, 0)

    def read_scattered(self, numbers: np.ndarray, arena: Arena) -> RecordStretch:
        """Records anywhere in the split. Those that lie near each other are read together, and what lies between them is let go of.

        Args:
            numbers: int64 [n], in any order; what is there several times is read once.
            arena: Where to put them. Of what could not be read nothing is there.

        Raises:
            OSError, ValueError: Where records lie is not known, and the index can't be read.
        """
        wanted, places = np.unique(numbers, return_inverse=True)
        shards = np.searchsorted(self._starts, wanted, side="right") - 1
        bounds = np.flatnonzero(np.diff(shards, prepend=-1, append=len(self._shards)))  # where another shard begins
        extents = [
            self._index(shard).extents_of(wanted[first:stop] - self._starts[shard])
            for shard, first, stop in zip(shards[bounds[:-1]].tolist(), bounds[:-1].tolist(), bounds[1:].tolist())
        ]
        begins, ends = (np.concatenate(parts) for parts in zip(*extents))
        begins, ends = _in_order(shards, begins, ends)
        is_apart = (np.diff(shards) != 0) | (begins[1:] - ends[:-1] > _NEAR_BYTES) | (np.diff(begins // _TOGETHER_BYTES) != 0)
        pieces = np.concatenate([[0], np.flatnonzero(is_apart) + 1, [len(wanted)]]).tolist()
        edges = np.concatenate([[0], np.cumsum(ends - begins)])
        piece = arena.take(int(edges[-1]))
        data = piece.view
        tasks = [
            self._threads.submit(
                self._read_piece, int(shards[first]), begins[first:stop], ends[first:stop], data[edges[first] : edges[stop]]
            )
            for first, stop in zip(pieces, pieces[1:])
        ]
        wait(tasks)
        for task in tasks:
            task.result()
        return RecordStretch(piece, edges[:-1][places], edges[1:][places])

    def _read_piece(self, shard: int, begins: np.ndarray, ends: np.ndarray, target: memoryview) -> None:
        """Reads from the first byte to the last at once, and puts what lies at these places there, one after the other."""
        path, begin, num_bytes, size = self._shards[shard].path, int(begins[0]), int(ends[-1] - begins[0]), 0
        try:
            if num_bytes == len(target):  # nothing lies between
                size = self._files.read_into(path, begin, target)
            else:
                data = memoryview(self._files.read_range(path, begin, num_bytes))
                for first, stop in zip((begins - begin).tolist(), (ends - begin).tolist()):
                    part = data[first:stop]
                    target[size : size + len(part)] = part
                    size += len(part)
        except OSError:  # each record is read again, and says what is wrong
            size = 0
        target[size:] = bytes(len(target) - size)  # not what was there before, which may be records as well

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
        self.refuse(number, reason, is_gone=isinstance(error, NOT_THERE))
        return None

    def refuse(self, number: int, reason: str, is_gone: bool = False) -> None:
        """Notes a damaged record as left out.

        Args:
            number: The number of the record in the split.
            reason: The text that says what was found.
            is_gone: Whether the whole shard is missing.

        Raises:
            ValueError: Damaged records are not left out; the message names shard, record and offset.
        """
        damaged = DamagedRecord(*self.place(number), reason)
        if self._damaged is None:
            advice = REPAIR if is_gone else "batches(..., on_error='skip') leaves such records out"
            raise ValueError(f"{damaged}; {advice}")
        self._damaged.add(damaged)

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


class SelectedRecords:
    """Records of an epoch that has not each record of the split once, in runs: counted through these, not through the split.

    Args:
        reader: The reader of the split.
        numbers: The numbers of the epoch's records in the split, int64 [n].
        runs: The runs of these records.
    """

    def __init__(self, reader: RecordReader, numbers: np.ndarray, runs: Runs) -> None:
        self._reader, self._numbers, self.runs = reader, numbers, runs

    def numbers(self, places: np.ndarray) -> np.ndarray:
        """The numbers in the split of records at these places, as `RecordReader.numbers` gives them."""
        return self._numbers[places]

    def read_runs(self, parts: Sequence[RunPart], arena: Arena) -> RecordStretch:
        """Reads records of some runs, as `RecordReader.read_runs` does."""
        starts = self.runs.starts[[part.run for part in parts]].tolist()
        wanted = [self._numbers[start + part.first : start + part.stop] for start, part in zip(starts, parts)]
        return self._reader.read_scattered(np.concatenate(wanted), arena)


def _in_order(shards: np.ndarray, begins: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where records begin and end: nothing in the place of each that, by a damaged index, begins before all in front of it have ended."""
    last = np.zeros_like(begins)
    bounds = np.flatnonzero(np.diff(shards, prepend=-1, append=shards[-1] + 1)).tolist()
    for first, stop in zip(bounds, bounds[1:]):
        last[first + 1 : stop] = np.maximum.accumulate(ends[first : stop - 1])
    is_there = (ends > begins) & (begins >= last)
    return np.where(is_there, begins, last), np.where(is_there, ends, last)
