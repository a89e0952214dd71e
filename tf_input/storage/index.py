"""Reads index files, which contain the offset of each record in its shard."""

from typing import Callable, Sequence

import google_crc32c
import numpy as np

from tf_input.dataset_format import INDEX_HEADER, INDEX_ROW, MANIFEST, IndexRow, ShardInfo, read_index_header
from tf_input.storage.files import FILE_MISSING_ERRORS, Files
from tf_input.storage.frames import FRAME_BYTES, HEADER_BYTES, frame_bytes

MAX_CACHED_INDEX_BYTES = 1 << 20  # size limit of remote indexes that are read into memory as a whole

_ROW = np.dtype({"names": IndexRow._fields, "formats": ["<u8", "<u8", "<u4", "<i4"], "itemsize": INDEX_ROW.size})

_NONE = np.zeros(0, np.uint64)
_NEAR_ROWS = (1 << 20) // INDEX_ROW.size  # reading this number of rows takes as long as another request
_TOGETHER_ROWS = (8 << 20) // INDEX_ROW.size  # largest number of rows in a request

_MAX_STEPS_BACK = 256  # number of preceding records that `check` searches for a valid frame
_ADVICE = "Copy the shard and its index again, or repeat `recordmill prepare`, which writes the same bytes."


class CorruptIndexError(ValueError):
    """Raised if an index contradicts its shard. In this case, the index is corrupt, but the records may be intact."""


class ShardIndex:
    """The rows of an index file, which are either cached in memory or read from the file on each lookup.

    If the index is cached in memory, its checksum is compared with the manifest. Otherwise only the header is checked.
    If a record is not found at its offset, `check` detects whether the index is corrupt.

    Args:
        path: The path of the index file.
        shard: The shard of the index.
        data: The bytes of the file, or None if `files` is given.
        files: The object that reads a few rows at a time, or None if `data` is given.

    Raises:
        FileNotFoundError: The file does not exist.
        OSError: The file cannot be read.
        ValueError: The index is corrupt, has another format version, or belongs to another shard.
    """

    def __init__(self, path: str, shard: ShardInfo, data: bytes | None = None, files: Files | None = None) -> None:
        self._path, self._shard_name, self._files = path, shard.name, files
        self._num_rows, self._num_bytes = shard.num_examples, shard.num_bytes
        try:
            if files is None:
                num_bytes = len(data)
            else:
                data = files.read_range(path, 0, INDEX_HEADER.size)
                num_bytes = _header_bytes(data)
            num_rows, fingerprint = read_index_header(data[: INDEX_HEADER.size], num_bytes)
            if num_rows != shard.num_examples:
                raise ValueError(
                    f"the index has {num_rows} rows, and the shard {shard.num_examples} records. {_ADVICE}"
                )
            if fingerprint != shard.fingerprint:
                raise ValueError(f"the index does not belong to shard {shard.name}. {_ADVICE}")
            if files is None and (crc := google_crc32c.value(data)) != shard.index_crc32c:
                raise ValueError(f"the index is corrupt: it has CRC-32C {crc:08x}; {MANIFEST} says {shard.index_crc32c:08x}")
        except FileNotFoundError:
            raise FileNotFoundError(f"index {path} is missing") from None
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        self._table = np.frombuffer(data, _ROW, num_rows if files is None else 0, INDEX_HEADER.size) if num_rows else np.zeros(0, _ROW)
        self._cached = self._table["record_offset"]

    @classmethod
    def read(cls, path: str, shard: ShardInfo, files: Files) -> "ShardIndex":
        """Opens an index. An index that is local or small is read into memory with a single request."""
        try:
            is_cached = files.is_local or shard.index_bytes <= MAX_CACHED_INDEX_BYTES
            return cls(path, shard, files.read(path)) if is_cached else cls(path, shard, files=files)
        except FileNotFoundError:
            raise FileNotFoundError(f"index {path} is missing") from None

    def extents(self, first: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the start and end offsets of records `first` to `stop - 1` in bytes: two arrays, int64 [stop - first].

        All offsets are within the shard. If the index is corrupt, the end offset of a record may be less than its start
        offset.
        """
        bounds = np.minimum(self._rows(first, min(stop + 1, self._num_rows)), np.uint64(self._num_bytes)).astype(np.int64)
        if stop == self._num_rows:
            bounds = np.append(bounds, self._num_bytes)
        return bounds[:-1], bounds[1:]

    def extent(self, record: int) -> tuple[int, int]:
        """Returns the start and end offset of a record in the shard, in bytes."""
        begins, ends = self.extents(record, record + 1)
        return int(begins[0]), int(ends[0])

    def extents_of(self, records: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the start and end offsets of the given records in bytes: two arrays, int64 [n].

        Args:
            records: The indices of the records in the shard, int64 [n], at least one, in ascending order without
                repetitions.
        """
        first, stop = int(records[0]), int(records[-1]) + 1
        if stop - first == len(records):
            return self.extents(first, stop)
        edges = np.union1d(records, records + 1)
        offsets = self.offsets(edges[edges < self._num_rows])
        offsets = np.append(offsets, np.full(len(edges) - len(offsets), self._num_bytes))
        indices = np.searchsorted(edges, records)
        return offsets[indices], offsets[indices + 1]

    def labels(self) -> np.ndarray:
        """Returns the labels of all records, int32 [n]. Records that do not have exactly one class get `NO_LABEL`."""
        if self._files is None:
            return self._table["label"].copy()
        parts = [self._read_rows(first, min(first + _TOGETHER_ROWS, self._num_rows)) for first in range(0, self._num_rows, _TOGETHER_ROWS)]
        return np.concatenate([np.zeros(0, np.int32), *(part["label"] for part in parts)])

    def num_complete(self, num_bytes: int) -> int:
        """Returns the number of complete records in the first `num_bytes` bytes of the shard.

        Raises:
            CorruptIndexError: The offsets in the index are not in ascending order.
        """
        if num_bytes >= self._num_bytes:
            return self._num_rows
        offsets = self._rows(0, self._num_rows)
        for record in np.flatnonzero(np.diff(offsets.astype(np.int64), prepend=-FRAME_BYTES) < FRAME_BYTES)[:1].tolist():
            raise self._corrupt(f"record {record} begins at byte {offsets[record]}, before the previous record ends")
        return max(0, int(np.searchsorted(offsets, num_bytes, side="right")) - 1)

    def offset(self, record: int) -> int:
        """Returns the offset of a record in its shard, in bytes."""
        return self._cached.item(record) if self._files is None else self._rows(record, record + 1).item()

    def offsets(self, records: Sequence[int]) -> np.ndarray:
        """Returns the offsets of records in the shard, in bytes: int64 [n].

        Index rows that are close to each other are read with one request, including the rows between them.

        Args:
            records: The indices of the records in the shard, in ascending order.
        """
        offsets = []
        wanted = np.asarray(records, np.int64)
        while len(wanted):
            is_near = (np.diff(wanted, prepend=wanted[0]) <= _NEAR_ROWS) & (wanted < wanted[0] + _TOGETHER_ROWS)
            count = len(wanted) if is_near.all() else int(np.argmin(is_near))
            offsets.append(self._rows(int(wanted[0]), int(wanted[count - 1]) + 1)[wanted[:count] - wanted[0]])
            wanted = wanted[count:]
        return np.minimum(np.concatenate([_NONE, *offsets]), np.uint64(self._num_bytes)).astype(np.int64)

    def _rows(self, first: int, stop: int) -> np.ndarray:
        """Returns the record offsets in consecutive index rows, uint64 [stop - first].

        Raises:
            OSError: The rows cannot be read.
            CorruptIndexError: The index file is too short.
        """
        return self._cached[first:stop] if self._files is None else self._read_rows(first, stop)["record_offset"]

    def _read_rows(self, first: int, stop: int) -> np.ndarray:
        num_bytes = (stop - first) * INDEX_ROW.size
        data = self._files.read_range(self._path, INDEX_HEADER.size + first * INDEX_ROW.size, num_bytes)
        if len(data) != num_bytes:
            raise self._corrupt(f"the file ends in row {first + len(data) // INDEX_ROW.size} of {self._num_rows}")
        return np.frombuffer(data, _ROW)

    def check(self, record: int, read: Callable[[int, int], bytes]) -> None:
        """Raises an error if the index is corrupt. A corrupt index can make intact records seem corrupt.

        The method compares the offsets in the index with the record lengths that are stored in the shard.

        Args:
            record: The index of the record in the shard.
            read: A function that takes an offset in the shard and a number of bytes and returns these bytes, or fewer
                bytes at the end of the shard.

        Raises:
            CorruptIndexError: The index is corrupt.
            OSError: The shard cannot be read.
        """
        for number in range(record, max(-1, record - _MAX_STEPS_BACK), -1):
            begin, end = self.offset(number), self.offset(number + 1) if number + 1 < self._num_rows else self._num_bytes
            if max(begin, end) > self._num_bytes or end < begin + FRAME_BYTES or bool(number) != bool(begin):
                raise self._corrupt(f"record {number} is stored from byte {begin} to byte {end} of {self._num_bytes}")
            try:
                num_bytes = frame_bytes(read(begin, HEADER_BYTES))
            except FILE_MISSING_ERRORS:  # the index may still be valid
                return
            if num_bytes is not None:
                if begin + num_bytes != end:
                    raise self._corrupt(
                        f"record {number} ends at byte {end}, but at {begin + num_bytes} according to the shard"
                    )
                return

    def _corrupt(self, problem: str) -> CorruptIndexError:
        return CorruptIndexError(
            f"{self._path} is corrupt, or does not belong to {self._shard_name}: according to it, {problem}. {_ADVICE}"
        )


def _header_bytes(header: bytes) -> int:
    """Computes the size of an index in bytes from the header of the index. Missing rows are detected on lookup."""
    if len(header) < INDEX_HEADER.size:
        return len(header)
    return INDEX_HEADER.size + INDEX_HEADER.unpack(header)[3] * INDEX_ROW.size
