"""References to inputs. The pipeline shuffles small references instead of image bytes.

A reference contains the location of the image bytes, and values such as the key, split and class. To save memory,
references are stored in columns: a NumPy array for the numbers, and one byte string per column for the strings.
References are compressed in chunks of 1024. Chunks can be concatenated and separated without decompression.
"""

import dataclasses
import functools
import json
import struct
import threading
from typing import Any, Iterator, Sequence

import numpy as np

from beam_pipelines.elements.binary_column import BinaryColumn
from beam_pipelines.images.raw_image import RawImage

# The numbers of one reference. `order` is the first 8 bytes of the shuffle key. `split` is an index into `splits`.
# `raw` is an index into `raws`, counted from 1, or 0 without a layout.
ROW = np.dtype([("order", "<u8"), ("split", "u1"), ("raw", "<u4"), ("num_bytes", "<u4"), ("spool", "<u8"), ("offset", "<i8")])

# Copying all fields of a row at once is faster than copying field by field.
_AS_BYTES = np.dtype((np.void, ROW.itemsize))

# The number of references in a chunk.
CHUNK_REFERENCES = 1024

_LENGTH = np.dtype("<u4")
_TEXTS = ("keys", "paths", "labels", "groups", "values", "strata", "hashes")


@dataclasses.dataclass
class References:
    """References, stored in columns.

    Attributes:
        rows: The numbers of each reference, `ROW` [num_references].
        splits: The names of the splits that `rows` refers to. An empty name means that the split is not yet known.
        raws: The layouts of raw pixels that `rows` refers to, counted from 1.
        keys: The keys of the examples, in UTF-8.
        paths: The paths relative to the source's root, in UTF-8. Empty if the path equals the key.
        labels: The class names of `label`, in UTF-8. Empty if there is no class.
        groups: The names of the groups, whose examples stay in one split, in UTF-8. If empty, the key is the group.
        values: The values of other features, encoded by `ValueWriter`.
        strata: The strata for stratified splits, in UTF-8. Empty if splits are not stratified, and after splits are
            assigned.
        hashes: The image hashes, packed by `image_hashes`. Empty if hashes are not needed.
    """

    rows: np.ndarray
    splits: tuple[str, ...]
    raws: tuple[RawImage, ...]
    keys: BinaryColumn
    paths: BinaryColumn
    labels: BinaryColumn
    groups: BinaryColumn
    values: BinaryColumn
    strata: BinaryColumn
    hashes: BinaryColumn

    def __len__(self) -> int:
        return len(self.rows)

    def _texts(self) -> list[BinaryColumn]:
        return [getattr(self, name) for name in _TEXTS]

    @property
    def num_bytes(self) -> int:
        """The approximate size in memory, in bytes."""
        return self.rows.nbytes + sum(texts.lengths.nbytes + len(texts.blob) for texts in self._texts())

    def take(self, indices: np.ndarray) -> "References":
        """Returns the references at the given indices, in the given order."""
        return References(
            self.rows.view(_AS_BYTES)[indices].view(ROW), self.splits, self.raws, *(texts.take(indices) for texts in self._texts())
        )

    def slice(self, start: int, stop: int) -> "References":
        """Returns the references with indices from `start` to `stop - 1`."""
        return References(self.rows[start:stop], self.splits, self.raws, *(texts.slice(start, stop) for texts in self._texts()))

    @classmethod
    def concatenate(cls, batches: Sequence["References"]) -> "References":
        """Concatenates batches of references and merges their tables of splits and layouts."""
        if not batches:
            return cls(np.zeros(0, ROW), (), (), *(BinaryColumn.of([]) for _ in _TEXTS))
        if len(batches) == 1:
            return batches[0]
        splits = tuple(dict.fromkeys(split for batch in batches for split in batch.splits))
        raws = tuple(dict.fromkeys(raw for batch in batches for raw in batch.raws))
        indices = {raw: number for number, raw in enumerate(raws, 1)}
        rows = np.concatenate([batch.rows.view(_AS_BYTES) for batch in batches]).view(ROW)
        start = 0
        for batch in batches:
            mine = rows[start : start + len(batch)]
            start += len(batch)
            if batch.splits != splits:
                mine["split"] = np.array([splits.index(split) for split in batch.splits], np.uint8)[mine["split"]]
            if batch.raws != raws and batch.raws:
                mine["raw"] = np.array([0, *(indices[raw] for raw in batch.raws)], np.uint32)[mine["raw"]]
        columns = zip(*(batch._texts() for batch in batches))
        return cls(rows, splits, raws, *(BinaryColumn.concatenate(parts) for parts in columns))

    def pack(self) -> bytes:
        """Packs the references, and the layouts that they use, into bytes."""
        rows, raws = self.rows, self.raws
        if len(raws) > 1:
            used, numbers = np.unique(np.append(rows["raw"], 0), return_inverse=True)  # 0 means no layout.
            rows, raws = rows.copy(), [raws[index - 1] for index in used[1:].tolist()]
            rows["raw"] = numbers[:-1]
        header = json.dumps([len(self), self.splits, raws, [len(texts.blob) for texts in self._texts()]]).encode()
        columns = [_encode_columns(rows), *(_encode_columns(texts.lengths) for texts in self._texts() if texts.blob)]
        return _compress(b"".join((len(header).to_bytes(4, "little"), header, *columns, *(texts.blob for texts in self._texts()))))

    @classmethod
    def unpack(cls, packed: bytes) -> "References":
        """Unpacks references from `pack`.

        Raises:
            ValueError: The bytes are corrupt.
        """
        data = _decompress(packed)
        position = 4 + int.from_bytes(data[:4], "little")
        num, splits, raws, blob_sizes = json.loads(data[4:position])
        rows, position = _decode_columns(data, ROW, num, position)
        lengths = []
        for size in blob_sizes:
            column, position = _decode_columns(data, _LENGTH, num, position) if size else (np.zeros(num, _LENGTH), position)
            lengths.append(column)
        texts = []
        for column, size in zip(lengths, blob_sizes):
            texts.append(BinaryColumn(column, data[position : position + size]))
            position += size
        return cls(rows, tuple(splits), tuple(RawImage(*raw) for raw in raws), *texts)

    def chunks(self, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """Yields packed chunks of `CHUNK_REFERENCES`, each preceded by its size and its number of references."""
        stop = len(self) if stop is None else stop
        for first in range(start, stop, CHUNK_REFERENCES):
            chunk = self.slice(first, min(first + CHUNK_REFERENCES, stop))
            packed = chunk.pack()
            yield _FRAME.pack(len(packed), len(chunk)) + packed


_FRAME = struct.Struct("<II")


def unpack_chunks(data: bytes) -> References:
    """Returns the references in concatenated chunks from `References.chunks`.

    Raises:
        ValueError: A chunk is corrupt.
    """
    return unpack_some(data, 0, None)


def unpack_some(data: bytes, start: int, stop: int | None, total: int | None = None) -> References:
    """Returns the references with indices from `start` to `stop - 1` in concatenated chunks.

    Args:
        data: The concatenated chunks.
        start: The index of the first reference.
        stop: The index after the last reference. None means the end.
        total: The expected number of references in all chunks. None accepts any number.

    Raises:
        ValueError: A chunk is corrupt, or the number of references differs from `total`.
    """
    position, num, chunks, first = 0, 0, [], 0
    while position < len(data):
        num_bytes, num_references = _FRAME.unpack(data[position : position + _FRAME.size].ljust(_FRAME.size, b"\xff"))
        position += _FRAME.size
        if position + num_bytes > len(data):
            raise ValueError(f"references end at byte {len(data)} instead of {position + num_bytes}")
        if not num_references:  # An empty chunk would be skipped silently.
            raise ValueError("a chunk has no references")
        if num + num_references > start and (stop is None or num < stop):
            first = num if not chunks else first
            chunks.append(References.unpack(data[position : position + num_bytes]))
            if len(chunks[-1]) != num_references:
                raise ValueError(f"a chunk has {len(chunks[-1])} references instead of {num_references}")
        position += num_bytes
        num += num_references
    if total is not None and num != total:
        raise ValueError(f"{num} references instead of {total}")
    references = References.concatenate(chunks)
    return references if stop is None else references.slice(start - first, stop - first)


def _encode_columns(rows: np.ndarray) -> bytes:
    """Places bytes of equal significance side by side, which improves the compression."""
    return np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), rows.itemsize).T.tobytes()


def _decode_columns(data: bytes, dtype: np.dtype, num_rows: int, position: int) -> tuple[np.ndarray, int]:
    """Decodes rows from `_encode_columns`. Returns the rows and the end position."""
    columns = np.frombuffer(data, np.uint8, num_rows * dtype.itemsize, position).reshape(dtype.itemsize, num_rows)
    return np.ascontiguousarray(columns.T).view(dtype).reshape(num_rows), position + columns.nbytes


class _Codec(threading.local):
    """Thread-local compressors."""

    @functools.cached_property
    def compressor(self) -> Any:
        import zstandard  # Imported here, because programs that only read datasets do not need it.

        return zstandard.ZstdCompressor(level=1, write_checksum=True)

    @functools.cached_property
    def decompressor(self) -> Any:
        import zstandard

        return zstandard.ZstdDecompressor()


_codec = _Codec()


def _compress(data: bytes) -> bytes:
    return _codec.compressor.compress(data)


def _decompress(data: bytes) -> bytes:
    """Decompresses data from `_compress`. Raises `ValueError` if the data is corrupt."""
    import zstandard

    try:
        return _codec.decompressor.decompress(data, allow_extra_data=False)
    except (zstandard.ZstdError, MemoryError) as error:  # A corrupt size raises MemoryError.
        raise ValueError(f"references are corrupt: {error}") from error
