"""Index files: where each record of a shard lies."""

import mmap
import os
from typing import Callable

import numpy as np

from tf_input.dataset_format import INDEX_HEADER, INDEX_ROW, IndexRow, ShardInfo, check_index_header
from tf_input.file_errors import NOT_THERE
from tf_input.frames import FRAME_BYTES, HEADER_BYTES, frame_bytes

_ROW = np.dtype({"names": IndexRow._fields, "formats": ["<u8", "<u8", "<u4", "<i4"], "itemsize": INDEX_ROW.size})

_MAX_STEPS_BACK = 256  # over records whose frames do not say where they end, to one that does
_ADVICE = "copy both anew from where they were made, or prepare the data set again: the same command writes the same bytes"


class DamagedIndexError(ValueError):
    """An index says otherwise than its shard: not a record is damaged, but what says where records lie."""


class ShardIndex:
    """The rows of one index file. Of a local file, only what is looked up is read.

    Nothing checks it as a whole; where a record is not where it says, `check` tells whose fault that is.

    Args:
        path: Of the index file, for messages.
        shard: The shard that it belongs to.
        data: What the file holds; None: it is a local file, and is mapped.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is damaged, of another format version, or of another shard.
    """

    def __init__(self, path: str, shard: ShardInfo, data: bytes | None = None) -> None:
        try:
            data = _map(path) if data is None else data
            num_rows = check_index_header(data[: INDEX_HEADER.size], len(data))
            if num_rows != shard.num_examples:
                raise ValueError(f"{num_rows} rows; the shard has {shard.num_examples} records")
        except FileNotFoundError:
            raise FileNotFoundError(f"index {path} is missing") from None
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        self.rows = np.frombuffer(data, _ROW, num_rows, INDEX_HEADER.size) if num_rows else np.zeros(0, _ROW)
        self._path, self._shard_name = path, shard.name
        self._offsets = self.rows["record_offset"]
        self._num_bytes = shard.num_bytes

    def extents(self, first: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Where some records begin in the shard, and end: int64 [stop - first] each.

        Both are within the shard; of a damaged index, a record may end before it begins.
        """
        bounds = np.minimum(self._offsets[first : stop + 1], np.uint64(self._num_bytes)).astype(np.int64)
        if stop == len(self.rows):
            bounds = np.append(bounds, self._num_bytes)
        return bounds[:-1], bounds[1:]

    def extent(self, record: int) -> tuple[int, int]:
        """The same of one record."""
        end = self.offset(record + 1) if record + 1 < len(self.rows) else self._num_bytes
        return min(self.offset(record), self._num_bytes), min(end, self._num_bytes)

    def num_whole(self, num_bytes: int) -> int:
        """Records that are whole in the first so many bytes of the shard.

        Raises:
            DamagedIndexError: Offsets are not in order.
        """
        if num_bytes >= self._num_bytes:
            return len(self.rows)
        for record in np.flatnonzero(np.diff(self._offsets.astype(np.int64), prepend=-FRAME_BYTES) < FRAME_BYTES)[:1].tolist():
            raise self._damaged(f"record {record} begins at byte {self.offset(record)}, before the one in front of it ends")
        return max(0, int(np.searchsorted(self._offsets, num_bytes, side="right")) - 1)

    def offset(self, record: int) -> int:
        """Where a record begins."""
        return self._offsets.item(record)

    def check(self, record: int, read: Callable[[int, int], bytes]) -> None:
        """Whether the index is to blame where a record seems to be damaged: its shard may say otherwise where records lie.

        Args:
            record: It.
            read: From an offset in the shard and a number of bytes to these, or fewer where the shard ends.

        Raises:
            DamagedIndexError: It is.
            OSError: What the shard says can't be read.
        """
        for one in range(record, max(-1, record - _MAX_STEPS_BACK), -1):
            begin, end = self.offset(one), self.offset(one + 1) if one + 1 < len(self.rows) else self._num_bytes
            if max(begin, end) > self._num_bytes or end < begin + FRAME_BYTES or bool(one) != bool(begin):
                raise self._damaged(f"record {one} lies from byte {begin} to byte {end} of {self._num_bytes}")
            try:
                num_bytes = frame_bytes(read(begin, HEADER_BYTES))
            except NOT_THERE:  # which says nothing of the index
                return
            if num_bytes is not None:
                if begin + num_bytes != end:
                    raise self._damaged(f"record {one} ends at byte {end}, and by the shard at {begin + num_bytes}")
                return

    def _damaged(self, found: str) -> DamagedIndexError:
        return DamagedIndexError(
            f"{self._path}: the index is damaged, or {self._shard_name} is not the shard that it was made for: by it, {found}; {_ADVICE}"
        )


def _map(path: str) -> mmap.mmap | bytes:
    with open(path, "rb", buffering=0) as file:
        is_empty = not os.fstat(file.fileno()).st_size  # which can't be mapped
        return b"" if is_empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
