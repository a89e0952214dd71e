"""What travels through the pipeline in an image's place: its reference, packed a thousand to a piece.

A reference has all that a record needs besides its image: the key, where the bytes lie, the split, the class, and the values of other
features, or where they wait if they are large. References are columns, not objects: numbers in a NumPy array, texts as one blob
with their lengths. A piece is compressed and stands for itself, so that pieces can be cut off, sent on and joined like bytes.
"""

import dataclasses
import functools
import json
import struct
import threading
from typing import Any, Iterator, Sequence

import numpy as np

from beam_pipelines.elements.texts import Texts
from beam_pipelines.images.raw_image import RawImage

# One reference. `order` holds the first 8 bytes of the shuffle key; `split` and `raw` are places in tables, `raw` 0 for none.
ROW = np.dtype([("order", "<u8"), ("split", "u1"), ("raw", "<u4"), ("num_bytes", "<u4"), ("spool", "<u8"), ("offset", "<i8")])

# A structured row is copied field by field, and these at once.
_AS_BYTES = np.dtype((np.void, ROW.itemsize))

# References of a piece.
PIECE_REFERENCES = 1024

_LENGTH = np.dtype("<u4")
_TEXTS = ("keys", "paths", "labels", "groups", "values", "strata", "hashes")


@dataclasses.dataclass
class References:
    """Many references, as columns.

    Attributes:
        rows: The numbers of each reference, `ROW` [num_references].
        splits: Names of splits, among which each row has a place. Empty: nobody has said it yet.
        raws: Layouts of pixels without a format, among which each row has a place, counted from 1.
        keys: The keys of the examples, in UTF-8.
        paths: Paths below the source's root, UTF-8; empty where it equals the key.
        labels: Class names of `label`, UTF-8; empty where there is none.
        groups: Names of the groups that stay in one split together, in UTF-8; empty: the key is the group.
        values: The values of other features, as `ValueWriter` encodes them.
        strata: The strata by which splits are stratified, in UTF-8; empty once splits are settled, and where they are not stratified.
        hashes: The hashes of the images, as `image_hashes` packs them; empty where nobody has asked for them.
    """

    rows: np.ndarray
    splits: tuple[str, ...]
    raws: tuple[RawImage, ...]
    keys: Texts
    paths: Texts
    labels: Texts
    groups: Texts
    values: Texts
    strata: Texts
    hashes: Texts

    def __len__(self) -> int:
        return len(self.rows)

    def _texts(self) -> list[Texts]:
        return [getattr(self, name) for name in _TEXTS]

    @property
    def num_bytes(self) -> int:
        """The size in memory, about, in bytes."""
        return self.rows.nbytes + sum(texts.lengths.nbytes + len(texts.blob) for texts in self._texts())

    def take(self, indices: np.ndarray) -> "References":
        """The references at some indices, in their order."""
        return References(
            self.rows.view(_AS_BYTES)[indices].view(ROW), self.splits, self.raws, *(texts.take(indices) for texts in self._texts())
        )

    def slice(self, start: int, stop: int) -> "References":
        """The references from `start` to `stop`."""
        return References(self.rows[start:stop], self.splits, self.raws, *(texts.slice(start, stop) for texts in self._texts()))

    @classmethod
    def concatenate(cls, batches: Sequence["References"]) -> "References":
        """Joins several batches into one, with the splits and layouts of all of them."""
        if not batches:
            return cls(np.zeros(0, ROW), (), (), *(Texts.of([]) for _ in _TEXTS))
        if len(batches) == 1:
            return batches[0]
        splits = tuple(dict.fromkeys(split for batch in batches for split in batch.splits))
        raws = tuple(dict.fromkeys(raw for batch in batches for raw in batch.raws))
        places = {raw: place for place, raw in enumerate(raws, 1)}
        rows = np.concatenate([batch.rows.view(_AS_BYTES) for batch in batches]).view(ROW)
        start = 0
        for batch in batches:
            mine = rows[start : start + len(batch)]
            start += len(batch)
            if batch.splits != splits:
                mine["split"] = np.array([splits.index(split) for split in batch.splits], np.uint8)[mine["split"]]
            if batch.raws != raws and batch.raws:
                mine["raw"] = np.array([0, *(places[raw] for raw in batch.raws)], np.uint32)[mine["raw"]]
        columns = zip(*(batch._texts() for batch in batches))
        return cls(rows, splits, raws, *(Texts.concatenate(parts) for parts in columns))

    def pack(self) -> bytes:
        """Packs the references to bytes; of layouts only those that a row has, since there may be as many as references."""
        rows, raws = self.rows, self.raws
        if len(raws) > 1:
            used, places = np.unique(np.append(rows["raw"], 0), return_inverse=True)  # 0 is for none
            rows, raws = rows.copy(), [raws[place - 1] for place in used[1:].tolist()]
            rows["raw"] = places[:-1]
        header = json.dumps([len(self), self.splits, raws, [len(texts.blob) for texts in self._texts()]]).encode()
        columns = [_encode_columns(rows), *(_encode_columns(texts.lengths) for texts in self._texts() if texts.blob)]
        return _compress(b"".join((len(header).to_bytes(4, "little"), header, *columns, *(texts.blob for texts in self._texts()))))

    @classmethod
    def unpack(cls, packed: bytes) -> "References":
        """Unpacks the references of one `pack`.

        Raises:
            ValueError: The bytes are damaged.
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
            texts.append(Texts(column, data[position : position + size]))
            position += size
        return cls(rows, tuple(splits), tuple(RawImage(*raw) for raw in raws), *texts)

    def pieces(self, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """Packs all references or those from `start` to `stop`, `PIECE_REFERENCES` to a piece.

        Each piece has its length and the number of its references before it.
        """
        stop = len(self) if stop is None else stop
        for first in range(start, stop, PIECE_REFERENCES):
            piece = self.slice(first, min(first + PIECE_REFERENCES, stop))
            packed = piece.pack()
            yield _FRAME.pack(len(packed), len(piece)) + packed


_FRAME = struct.Struct("<II")


def unpack_pieces(data: bytes) -> References:
    """Unpacks the references of several `pieces`, one after the other.

    Raises:
        ValueError: A piece is damaged.
    """
    return unpack_some(data, 0, None)


def unpack_some(data: bytes, start: int, stop: int | None, total: int | None = None) -> References:
    """Unpacks the references from `start` to `stop` out of several `pieces`. No other pieces are unpacked.

    Args:
        data: The pieces, one after the other.
        start: The place of the first reference that is wanted.
        stop: The place behind the last one; None: all are wanted to the end.
        total: The number of references that all pieces hold together; None: any.

    Raises:
        ValueError: A piece is damaged, or there are more or fewer references in all.
    """
    position, num, pieces, first = 0, 0, [], 0
    while position < len(data):
        num_bytes, num_references = _FRAME.unpack(data[position : position + _FRAME.size].ljust(_FRAME.size, b"\xff"))
        position += _FRAME.size
        if position + num_bytes > len(data):
            raise ValueError(f"references end at byte {len(data)}; expected {position + num_bytes}")
        if not num_references:  # it would be passed over
            raise ValueError("0 references in a piece; expected some")
        if num + num_references > start and (stop is None or num < stop):
            first = num if not pieces else first
            pieces.append(References.unpack(data[position : position + num_bytes]))
            if len(pieces[-1]) != num_references:
                raise ValueError(f"{len(pieces[-1])} references in a piece; expected {num_references}")
        position += num_bytes
        num += num_references
    if total is not None and num != total:
        raise ValueError(f"{num} references; expected {total}")
    found = References.concatenate(pieces)
    return found if stop is None else found.slice(start - first, stop - first)


def _encode_columns(rows: np.ndarray) -> bytes:
    """Bytes of like significance side by side: so they compress far better than rows do."""
    return np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), rows.itemsize).T.tobytes()


def _decode_columns(data: bytes, dtype: np.dtype, num_rows: int, position: int) -> tuple[np.ndarray, int]:
    """Decodes what `_encode_columns` has encoded: the rows, and the position where they end."""
    columns = np.frombuffer(data, np.uint8, num_rows * dtype.itemsize, position).reshape(dtype.itemsize, num_rows)
    return np.ascontiguousarray(columns.T).view(dtype).reshape(num_rows), position + columns.nbytes


class _Codec(threading.local):
    """Kept, since making one costs more than a piece does; no two threads may share one."""

    @functools.cached_property
    def compressor(self) -> Any:
        import zstandard  # not where data sets are only read

        return zstandard.ZstdCompressor(level=1, write_checksum=True)

    @functools.cached_property
    def decompressor(self) -> Any:
        import zstandard

        return zstandard.ZstdDecompressor()


_codec = _Codec()


def _compress(data: bytes) -> bytes:
    return _codec.compressor.compress(data)


def _decompress(data: bytes) -> bytes:
    """Decompresses what `_compress` has compressed; ValueError where, as its checksum has it, it is something else."""
    import zstandard

    try:
        return _codec.decompressor.decompress(data, allow_extra_data=False)
    except (zstandard.ZstdError, MemoryError) as error:  # the second of a size that is damaged
        raise ValueError(f"references are damaged: {error}") from error
