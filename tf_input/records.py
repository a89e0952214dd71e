"""Records by their numbers: read through the index, and checked."""

import collections
import functools
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Iterable, Sequence

import numpy as np
import tensorflow as tf

from tf_input.damaged import DamagedRecord, DamagedRecords
from tf_input.frames import CHECKSUM_BYTES, HEADER_BYTES, find_damage, unframe
from tf_input.index import ShardIndex
from tf_input.storage.files import NOT_THERE, Files

__all__ = ["DamagedRecord", "DamagedRecords", "RecordReader"]

_NUM_REQUESTS = 16  # at a time, where each takes a moment

_Block = list[bytes | None]  # records; None for what seems to be damaged, or could not be read


class RecordReader:
    """Reads records of a split; their numbers count through its shards.

    Any number of threads may read at a time.

    Args:
        paths: The shards' files.
        open_index: Opens the index of a shard, by its number, or has it open.
        counts: Records of each that are there: the first so many.
        files: They are read from.
        block: Records that are read at a time, and kept for who wants others of them; 1: each alone.
        num_blocks: How many such blocks are kept.
        damaged: Where to put damaged records; None: they are errors.
    """

    def __init__(
        self,
        paths: Sequence[str],
        open_index: Callable[[int], ShardIndex],
        counts: Sequence[int],
        files: Files,
        *,
        block: int = 1,
        num_blocks: int = 0,
        damaged: DamagedRecords | None = None,
    ) -> None:
        self._make_another = functools.partial(
            RecordReader, paths, open_index, counts, files, block=block, num_blocks=num_blocks, damaged=damaged
        )
        self._paths = paths
        self._starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        self._block = block
        self._damaged = damaged
        self._indexes = open_index
        self._files = files
        self._read_range = files.read_range
        self._kept = _Blocks(self._load, num_blocks)
        self._threads = ThreadPoolExecutor(_NUM_REQUESTS) if not files.is_local else None

    @property
    def num_examples(self) -> int:
        return int(self._starts[-1])

    def read(self, numbers: np.ndarray, *, may_be_empty: bool = False) -> np.ndarray:
        """Records, each a serialized example.

        Args:
            numbers: int64 [n].
            may_be_empty: Whether damaged records may all be left out.

        Returns:
            bytes as objects, [n]; or fewer, where damaged ones are left out.

        Raises:
            OSError: A record could not be read, which is never left out: whether it is damaged nobody knows.
            ValueError: A record is damaged, or all are; the message names shard, record and offset. Or an index is, which it names.
        """
        found = self._read_each(numbers) if self._block == 1 else self._read_blocks(numbers)
        if None in found:
            found = [self._look_again(number) if one is None else one for number, one in zip(numbers.tolist(), found)]
            found = [one for one in found if one is not None]
        if not found and len(numbers) and not may_be_empty:
            # A step without images makes the loss NaN, and one step less than was promised stops other hosts.
            shard, record, offset = self.place(int(numbers[0]))
            count = len(numbers)
            raise ValueError(f"all {count} records of a batch are damaged: {shard}: record {record}, at byte {offset}, ...")
        records = np.empty(len(found), object)
        records[:] = found
        return records

    def read_batch(self, numbers: tf.Tensor, *, may_be_empty: bool = False) -> tf.Tensor:
        """`read` as an operation of a graph: string [n], or fewer, of int64 [n].

        Args:
            numbers, may_be_empty: As in `read`.

        Raises:
            tf.errors.InvalidArgumentError: A record is damaged, or all are, or one could not be read. Raised when the tensor is
                computed.
        """
        find_reader = self._found_weakly()

        def read(numbers: np.ndarray) -> tuple[np.ndarray, bytes]:
            try:
                return find_reader().read(numbers, may_be_empty=may_be_empty), b""
            except (OSError, ValueError) as error:
                return np.empty(0, object), str(error).encode()

        records, error = tf.numpy_function(read, [numbers], (tf.string, tf.string))
        # An exception would come with the traceback of this function.
        with tf.control_dependencies([tf.debugging.Assert(tf.equal(error, ""), [error])]):
            records = tf.identity(records)
        records.set_shape([None])
        return records

    def place(self, number: int) -> tuple[str, int, int]:
        """The shard of a record, which of the shard's it is, and its offset there."""
        shard, row = self._find(number)
        return self._paths[shard], row, self._indexes(shard).extent(row)[0]

    def _found_weakly(self) -> Callable[[], "RecordReader"]:
        """For TensorFlow, which never lets go of a Python function: it is not to keep files open, and blocks in memory, with it.

        Data sets hold the map functions that hold this reader; should one be read that does not, another reader takes its place.
        """
        reader, make_another = weakref.ref(self), functools.cache(self._make_another)
        return lambda: reader() or make_another()

    def _find(self, number: int) -> tuple[int, int]:
        shard = int(np.searchsorted(self._starts, number, side="right")) - 1
        return shard, number - int(self._starts[shard])

    def _read_each(self, numbers: np.ndarray) -> _Block:
        """Records one by one."""
        shards = np.searchsorted(self._starts, numbers, side="right") - 1
        rows = numbers - self._starts[shards]
        found = list(self._map(self._read_frame, zip(shards.tolist(), rows.tolist())))
        ends = np.array([num_bytes for _, num_bytes, _ in found], np.int64)
        return unframe([frame for frame, _, _ in found], np.zeros_like(ends), ends)

    def _read_frame(self, place: tuple[int, int]) -> tuple[bytes, int, OSError | None]:
        """A record as it lies in its shard, how many bytes it should have, and why it could not be read."""
        shard, row = place
        begin, end = self._indexes(shard).extent(row)
        try:
            return self._read_range(self._paths[shard], begin, max(0, end - begin)), end - begin, None
        except OSError as error:
            return b"", end - begin, error

    def _read_blocks(self, numbers: np.ndarray) -> _Block:
        """Records out of the blocks that they lie in."""
        shards = np.searchsorted(self._starts, numbers, side="right") - 1
        firsts = np.maximum(
            numbers // self._block * self._block, self._starts[shards]
        )  # a block ends where its shard does
        unique, places = np.unique(firsts, return_inverse=True)
        blocks = list(self._map(self._kept.get, unique.tolist()))
        return [blocks[place][row] for place, row in zip(places.tolist(), (numbers - firsts).tolist())]

    def _load(self, first: int) -> _Block:
        """The block that begins with this record."""
        shard, row = self._find(first)
        stop = min((first // self._block + 1) * self._block, int(self._starts[shard + 1]))
        begins, ends = self._indexes(shard).extents(row, row + stop - first)
        if (begins >= ends).any():  # a damaged index does not say where the block ends
            return [None] * len(begins)
        origin = int(begins[0])
        try:
            data = self._read_range(self._paths[shard], origin, int(ends[-1]) - origin)
        except OSError:
            return [None] * len(begins)
        return unframe([data] * len(begins), begins - origin, ends - origin)

    def _look_again(self, number: int, is_cached: bool = True) -> bytes | None:
        """Reads by itself a record that seems to be damaged; None where it is, and is left out.

        Its block may be damaged elsewhere, or only in a cache, and what could not be read may be readable now.
        """
        frame, num_bytes, error = self._read_frame(self._find(number))
        if error is not None and not isinstance(error, NOT_THERE):
            raise OSError(f"{DamagedRecord(*self.place(number), f'could not be read: {error}')}") from error
        shard, row = self._find(number)
        reason = str(error or find_damage(frame, num_bytes))
        if reason and is_cached and self._files.discard(self._paths[shard], self._indexes(shard).extent(row)[0], num_bytes):
            return self._look_again(number, is_cached=False)
        if not reason:
            return frame[HEADER_BYTES:-CHECKSUM_BYTES]
        self._indexes(shard).check(row, functools.partial(self._read_range, self._paths[shard]))
        damaged = DamagedRecord(*self.place(number), reason)
        if self._damaged is None:
            raise ValueError(f"{damaged}; on_error='skip' leaves such records out")
        self._damaged.add(damaged)
        return None

    def _map(self, function: Callable, values: Iterable) -> Iterable[Any]:
        return map(function, values) if self._threads is None else self._threads.map(function, values)


class _Blocks:
    """The last used of what is loaded; who wants what another is loading waits for it."""

    def __init__(self, load: Callable[[int], _Block], size: int) -> None:
        self._load = load
        self._size = size
        self._kept: collections.OrderedDict[int, _Loading] = collections.OrderedDict()
        self._lock = threading.Lock()

    def get(self, first: int) -> _Block:
        with self._lock:
            loading = self._kept.pop(first, None) or _Loading()
            self._kept[first] = loading
            while len(self._kept) > self._size:
                self._kept.popitem(last=False)
        if loading.block is None:
            with loading.lock:
                if loading.block is None:
                    loading.block = self._load(first)
        return loading.block


class _Loading:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.block: _Block | None = None
