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
    """Many references.

    Attributes:
        rows: [num_references] of `ROW`.
        splits: Names of splits; a row has a place among them. Empty: nobody has said it yet.
        raws: Layouts of pixels without a format; a row has a place among them, counted from 1.
        keys: Example keys, UTF-8.
        paths: Paths below the source's root, UTF-8; empty where it equals the key.
        labels: Class names of `label`, UTF-8; empty where there is none.
        groups: What stays in one split together, UTF-8; empty: the key.
        values: Of other features, as `value_bytes` has them.
        strata: What splits are stratified by, UTF-8; empty once they are settled, and where they are not stratified.
        hashes: Of the images: see `image_hashes`; empty where nobody has asked for them.
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
        """In memory, about."""
        return self.rows.nbytes + sum(texts.lengths.nbytes + len(texts.blob) for texts in self._texts())

    def take(self, indices: np.ndarray) -> "References":
        return References(self.rows.view(_AS_BYTES)[indices].view(ROW), self.splits, self.raws, *(texts.take(indices) for texts in self._texts()))

    def slice(self, start: int, stop: int) -> "References":
        return References(self.rows[start:stop], self.splits, self.raws, *(texts.slice(start, stop) for texts in self._texts()))

    @classmethod
    def concatenate(cls, batches: Sequence["References"]) -> "References":
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
        """As bytes; of layouts only with those that a row has, since there may be as many as references."""
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
        """Those of one `pack`; ValueError where it is damaged."""
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
        """All of them or those from `start` to `stop`, packed, `PIECE_REFERENCES` to a piece, each with its length and their number before it."""
        stop = len(self) if stop is None else stop
        for first in range(start, stop, PIECE_REFERENCES):
            piece = self.slice(first, min(first + PIECE_REFERENCES, stop))
            packed = piece.pack()
            yield _FRAME.pack(len(packed), len(piece)) + packed


_FRAME = struct.Struct("<II")


def unpack_pieces(data: bytes) -> References:
    """What several `pieces`, one after the other, hold.

    Raises:
        ValueError: One of them is damaged.
    """
    return unpack_some(data, 0, None)


def unpack_some(data: bytes, start: int, stop: int | None, total: int | None = None) -> References:
    """Of so many references in all those from `start` to `stop`. No other pieces are unpacked.

    Raises:
        ValueError: One of them is damaged, or there are more or fewer in all.
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
    """And where they end."""
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
    """ValueError where it is not, as its checksum has it, what was compressed."""
    import zstandard

    try:
        return _codec.decompressor.decompress(data, allow_extra_data=False)
    except (zstandard.ZstdError, MemoryError) as error:  # the second of a size that is damaged
        raise ValueError(f"references are damaged: {error}") from error
