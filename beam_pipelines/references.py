"""What travels through the pipeline in an image's place: its reference, packed a few thousand to an element.

A runner's shuffle costs by the element and, on the local runner, about four times an element's bytes in memory. So
references travel as columns: fixed-size fields in a NumPy array, names as one blob, both compressed.
"""

import dataclasses
import pickle
from typing import Any, Iterable, Mapping, NamedTuple, Sequence

import numpy as np


# The offset of an image that is a file of its own.
WHOLE_FILE = -1


class RawImage(NamedTuple):
    """Pixels without a format: uint8, row by row.

    Attributes:
        height: In pixels.
        width: Likewise.
        num_channels: 1 or 3.
        is_planar: Whether a channel comes after the other; else a pixel's channels lie together.
    """

    height: int
    width: int
    num_channels: int
    is_planar: bool = False


class FilePart(NamedTuple):
    """Where bytes lie that belong to an image: its mask, its target.

    Attributes:
        path: A file, relative to the source's root.
        offset: Of the first byte; `WHOLE_FILE`: all of the file.
        num_bytes: How many, of a part.
    """

    path: str
    offset: int = WHOLE_FILE
    num_bytes: int = 0


class ArrayPart(NamedTuple):
    """Where an array's numbers lie, one after the other and without a header.

    Attributes:
        path: The file, relative to the source's root.
        offset: Of the first byte.
        num_bytes: How many.
        dtype: Of a number, as NumPy writes it: `<f4`.
        shape: Of the array.
        spool: The spool file where the bytes lie instead, because the source's own file is compressed; 0: none.
    """

    path: str
    offset: int
    num_bytes: int
    dtype: str
    shape: tuple[int, ...]
    spool: int = 0


class LabeledImage(NamedTuple):
    """One input, as a source lists it.

    Attributes:
        key: The example's stable id within its source, in Unicode's NFC form so that it is the same on every system.
        path: The file where the bytes lie, relative to the source's root.
        label: Class name, where the data set has the feature `label` of that kind; else empty.
        split: The split that the source puts it in; None: by its group.
        num_bytes: Size of the image; 0 where the listing did not say, because that would have cost a look at each file.
        group: What stays in one split together; empty: the key.
        offset: Where in the file the image begins; `WHOLE_FILE`: it is the file.
        raw: How to read pixels that have no format; None: the bytes are an image file's.
        spool: The spool file where the bytes lie instead, because the source's own file is compressed; 0: none.
        values: Name of each other feature -> its value; see `sources`. None: there are none.
    """

    key: str
    path: str
    label: str
    split: str | None
    num_bytes: int = 0
    group: str = ""
    offset: int = WHOLE_FILE
    raw: RawImage | None = None
    spool: int = 0
    values: Mapping[str, Any] | None = None


# Spools that are none: the image is the original file, or a part of it.
SOURCE_FILE, SOURCE_PART = 0, 1

# One reference. `order` holds the first 8 bytes of the shuffle key. The pointer is (spool, offset, num_bytes).
ROW = np.dtype(
    [
        ("order", "<u8"),
        ("split", "u1"),
        ("label", "<u4"),
        ("num_bytes", "<u4"),
        ("crc32c", "<u4"),
        ("height", "<u4"),
        ("width", "<u4"),
        ("spool", "<u8"),
        ("offset", "<u8"),
    ]
)


# Where those features of an example wait that have no column here: see `examples.encode_extras`.
EXTRAS = np.dtype([("num_bytes", "<u4"), ("spool", "<u8"), ("offset", "<u8")])


@dataclasses.dataclass
class References:
    """Many references.

    Attributes:
        rows: [num_references] of `ROW`.
        keys: Example keys, UTF-8.
        paths: Paths below the source's root, UTF-8; empty where it equals the key.
        extras: [num_references] of `EXTRAS`; None where the schema has no such features.
    """

    rows: np.ndarray
    keys: list[bytes]
    paths: list[bytes]
    extras: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def path(self, index: int) -> str:
        return (self.paths[index] or self.keys[index]).decode()

    def take(self, indices: np.ndarray) -> "References":
        positions = indices.tolist()
        return References(
            self.rows[indices],
            list(map(self.keys.__getitem__, positions)),
            list(map(self.paths.__getitem__, positions)),
            None if self.extras is None else self.extras[indices],
        )

    def pack(self) -> bytes:
        header = len(self.rows).to_bytes(_HEADER_BYTES, "little")
        extras = b"" if self.extras is None else _encode_columns(self.extras)
        names = b"\0".join(self.keys) + b"\0" + b"\0".join(self.paths)
        flag = bytes([self.extras is not None])
        return _compress(header + _encode_columns(self.rows) + flag + extras + names)

    @classmethod
    def unpack(cls, packed: bytes) -> "References":
        data = _decompress(packed)
        rows = _decode_rows(data)
        position = _HEADER_BYTES + rows.nbytes + 1
        extras = _decode_columns(data, EXTRAS, len(rows), position) if data[position - 1] else None
        position += 0 if extras is None else extras.nbytes
        names = data[position:].split(b"\0") if len(rows) else []
        return cls(rows, names[: len(rows)], names[len(rows) :], extras)

    @staticmethod
    def unpack_rows(packed: bytes) -> np.ndarray:
        """The rows alone."""
        return _decode_rows(_decompress(packed))

    @classmethod
    def concatenate(cls, batches: Sequence["References"]) -> "References":
        """Of one schema: all have extras, or none has."""
        if len(batches) == 1:
            return batches[0]
        keys = [key for batch in batches for key in batch.keys]
        paths = [path for batch in batches for path in batch.paths]
        extras = [batch.extras for batch in batches if batch.extras is not None]
        rows = np.concatenate([batch.rows for batch in batches] or [np.zeros(0, ROW)])
        return cls(rows, keys, paths, np.concatenate(extras) if extras else None)


_HEADER_BYTES = 8


def _encode_columns(rows: np.ndarray) -> bytes:
    """Bytes of like significance side by side: so they compress far better than rows do."""
    return np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), rows.itemsize).T.tobytes()


def _decode_columns(data: bytes, dtype: np.dtype, num_rows: int, position: int) -> np.ndarray:
    columns = np.frombuffer(data, np.uint8, num_rows * dtype.itemsize, position).reshape(dtype.itemsize, num_rows)
    return np.ascontiguousarray(columns.T).view(dtype).reshape(num_rows)


def _decode_rows(data: bytes) -> np.ndarray:
    return _decode_columns(data, ROW, int.from_bytes(data[:_HEADER_BYTES], "little"), _HEADER_BYTES)


def pack_images(images: Iterable[LabeledImage]) -> bytes:
    """A listing's batch, small: columns of names, most of which repeat."""
    return _compress(pickle.dumps(tuple(zip(*images)), protocol=5))


class LabeledImages(NamedTuple):
    """A batch, with a column for each of the fields."""

    keys: tuple[str, ...]
    paths: tuple[str, ...]
    labels: tuple[str, ...]
    splits: tuple[str | None, ...]
    num_bytes: tuple[int, ...]
    groups: tuple[str, ...]
    offsets: tuple[int, ...]
    raws: tuple[RawImage | None, ...]
    spools: tuple[int, ...]
    values: tuple[Mapping[str, Any] | None, ...]


def unpack_images(packed: bytes) -> LabeledImages:
    return LabeledImages(*pickle.loads(_decompress(packed)))


def _compress(data: bytes) -> bytes:
    import zstandard  # not where data sets are only read

    return zstandard.ZstdCompressor(level=1).compress(data)


def _decompress(data: bytes) -> bytes:
    import zstandard

    return zstandard.ZstdDecompressor().decompress(data)
