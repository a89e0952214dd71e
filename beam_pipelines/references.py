"""What travels through the pipeline in an image's place: its reference, packed a few thousand to an element.

A runner's shuffle costs by the element and, on the local runner, about four times an element's bytes in memory. So
references travel as columns: fixed-size fields in a NumPy array, names as one blob, both compressed.
"""

import dataclasses
import pickle
from typing import Iterable, NamedTuple, Sequence

import numpy as np
import zstandard


class LabeledImage(NamedTuple):
    """One input, as a source lists it.

    Attributes:
        key: The example's stable id within its source, in Unicode's NFC form so that it is the same on every system.
        path: Where the bytes lie, relative to the source's root.
        label: Class name.
        split: The split that the source puts it in; None: by its key.
        num_bytes: Size of the file; 0 where the listing did not say, because that would have cost a look at each file.
    """

    key: str
    path: str
    label: str
    split: str | None
    num_bytes: int = 0


# One reference. `order` holds the first 8 bytes of the shuffle key. The pointer is (spool, offset, num_bytes); spool 0
# is the original file.
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


@dataclasses.dataclass
class References:
    """Many references.

    Attributes:
        rows: [num_references] of `ROW`.
        keys: Example keys, UTF-8.
        paths: Paths below the source's root, UTF-8; empty where it equals the key.
    """

    rows: np.ndarray
    keys: list[bytes]
    paths: list[bytes]

    def __len__(self) -> int:
        return len(self.rows)

    def path(self, index: int) -> str:
        return (self.paths[index] or self.keys[index]).decode()

    def take(self, indices: np.ndarray) -> "References":
        positions = indices.tolist()
        return References(
            self.rows[indices], list(map(self.keys.__getitem__, positions)), list(map(self.paths.__getitem__, positions))
        )

    def pack(self) -> bytes:
        # Bytes of like significance side by side compress far better than rows do.
        columns = np.ascontiguousarray(self.rows).view(np.uint8).reshape(len(self.rows), ROW.itemsize).T.tobytes()
        names = b"\0".join(self.keys) + b"\0" + b"\0".join(self.paths)
        header = len(self.rows).to_bytes(_HEADER_BYTES, "little")
        return zstandard.ZstdCompressor(level=1).compress(header + columns + names)

    @classmethod
    def unpack(cls, packed: bytes) -> "References":
        data = zstandard.ZstdDecompressor().decompress(packed)
        rows = _decode_rows(data)
        names = data[_HEADER_BYTES + rows.nbytes :].split(b"\0") if len(rows) else []
        return cls(rows, names[: len(rows)], names[len(rows) :])

    @staticmethod
    def unpack_rows(packed: bytes) -> np.ndarray:
        """The rows alone."""
        return _decode_rows(zstandard.ZstdDecompressor().decompress(packed))

    @classmethod
    def concatenate(cls, batches: Sequence["References"]) -> "References":
        if len(batches) == 1:
            return batches[0]
        keys = [key for batch in batches for key in batch.keys]
        paths = [path for batch in batches for path in batch.paths]
        return cls(np.concatenate([batch.rows for batch in batches] or [np.zeros(0, ROW)]), keys, paths)


_HEADER_BYTES = 8


def _decode_rows(data: bytes) -> np.ndarray:
    num_rows = int.from_bytes(data[:_HEADER_BYTES], "little")
    columns = np.frombuffer(data, np.uint8, num_rows * ROW.itemsize, _HEADER_BYTES).reshape(ROW.itemsize, num_rows)
    return np.ascontiguousarray(columns.T).view(ROW).reshape(num_rows)


def pack_images(images: Iterable[LabeledImage]) -> bytes:
    """A listing's batch, small: columns of names, most of which repeat."""
    return zstandard.ZstdCompressor(level=1).compress(pickle.dumps(tuple(zip(*images)), protocol=5))


class LabeledImages(NamedTuple):
    """A batch, with a column for each of the fields."""

    keys: tuple[str, ...]
    paths: tuple[str, ...]
    labels: tuple[str, ...]
    splits: tuple[str | None, ...]
    num_bytes: tuple[int, ...]


def unpack_images(packed: bytes) -> LabeledImages:
    return LabeledImages(*pickle.loads(zstandard.ZstdDecompressor().decompress(packed)))
