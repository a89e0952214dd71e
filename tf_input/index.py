"""Index files: where each record of a shard lies."""

import mmap
import os

import numpy as np

from tf_input.dataset_format import INDEX_HEADER, INDEX_ROW, IndexRow, ShardInfo, check_index_header

_ROW = np.dtype({"names": IndexRow._fields, "formats": ["<u8", "<u8", "<u4", "<i4"], "itemsize": INDEX_ROW.size})


class ShardIndex:
    """The rows of one index file. Of a local file, only what is looked up is read.

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
        """Records that are whole in the first so many bytes of the shard."""
        if num_bytes >= self._num_bytes:
            return len(self.rows)
        return max(0, int(np.searchsorted(self._offsets, num_bytes, side="right")) - 1)

    def offset(self, record: int) -> int:
        """Where a record begins."""
        return self._offsets.item(record)


def _map(path: str) -> mmap.mmap | bytes:
    with open(path, "rb", buffering=0) as file:
        is_empty = not os.fstat(file.fileno()).st_size  # which can't be mapped
        return b"" if is_empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
