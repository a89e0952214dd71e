"""A column of many short byte strings."""

import functools
import itertools
from typing import Any, Iterator, Sequence

import numpy as np

_CUT_AT_ONCE = 1024
# Above this number of strings, pyarrow selects strings faster than NumPy, including the time for importing pyarrow.
_MANY = 1 << 18


def digests(hasher: Any, texts: Sequence[bytes]) -> bytes:
    """Returns the concatenated digests of byte strings.

    Args:
        hasher: A new `hashlib` object. It is copied for each byte string, which is faster than creating an object.
        texts: The byte strings to hash.
    """
    copy, parts = hasher.copy, []
    for text in texts:
        own = copy()
        own.update(text)
        parts.append(own.digest())
    return b"".join(parts)


class BinaryColumn:
    """A column of byte strings, stored as their concatenation and the length of each string.

    Attributes:
        lengths: The length of each byte string, uint32 [num_strings].
        blob: All byte strings, concatenated.
    """

    def __init__(self, lengths: np.ndarray, blob: bytes) -> None:
        self.lengths = lengths
        self.blob = blob

    @functools.cached_property
    def _offsets(self) -> np.ndarray:
        """The start offset of each byte string in `blob`, and the size of `blob`, int64 [num_strings + 1]."""
        return np.concatenate([[0], np.cumsum(self.lengths, dtype=np.int64)])

    @classmethod
    def of(cls, texts: Sequence[bytes]) -> "BinaryColumn":
        """Creates a column from a sequence of byte strings."""
        return cls(np.fromiter(map(len, texts), np.uint32, len(texts)), b"".join(texts))

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[bytes]:
        if not self.blob:
            return itertools.repeat(b"", len(self))
        return itertools.chain.from_iterable(map(self._cut, range(0, len(self), _CUT_AT_ONCE)))

    def _cut(self, first: int) -> list[bytes]:
        """Returns up to `_CUT_AT_ONCE` consecutive byte strings, starting at index `first`."""
        blob, offsets = self.blob, self._offsets[first : first + _CUT_AT_ONCE + 1].tolist()
        return [blob[start:end] for start, end in itertools.pairwise(offsets)]

    def to_arrow(self) -> Any:
        """Returns the column as a pyarrow array of type large_binary."""
        import pyarrow  # Imported here, because the record writer does not need it.

        buffers = [None, pyarrow.py_buffer(self._offsets), pyarrow.py_buffer(self.blob)]
        return pyarrow.Array.from_buffers(pyarrow.large_binary(), len(self), buffers)

    def take(self, indices: np.ndarray) -> "BinaryColumn":
        """Returns the byte strings at the given indices, in the given order."""
        lengths, data = self.lengths[indices], np.frombuffer(self.blob, np.uint8)
        if not len(data) or not len(indices):
            return BinaryColumn(lengths, b"")
        if (self.lengths == self.lengths[0]).all():
            return BinaryColumn(lengths, data.reshape(len(self), -1)[indices].tobytes())
        if len(indices) > _MANY:
            return BinaryColumn(lengths, self.to_arrow().take(indices).buffers()[2].to_pybytes())
        starts, parts = self._offsets[indices], []
        for first in range(0, len(indices), _CUT_AT_ONCE):
            sizes = lengths[first : first + _CUT_AT_ONCE].astype(np.int64)
            ends = sizes.cumsum()
            positions = np.repeat(starts[first : first + _CUT_AT_ONCE] - (ends - sizes), sizes) + np.arange(ends[-1])
            parts.append(data[positions].tobytes())
        return BinaryColumn(lengths, b"".join(parts))

    def slice(self, start: int, stop: int) -> "BinaryColumn":
        """Returns the byte strings with indices from `start` to `stop - 1`."""
        if not self.blob:
            return BinaryColumn(self.lengths[start:stop], b"")
        begin, end = self._offsets[[start, min(stop, len(self))]].tolist()
        return BinaryColumn(self.lengths[start:stop], self.blob[begin:end])

    @classmethod
    def concatenate(cls, parts: Sequence["BinaryColumn"]) -> "BinaryColumn":
        """Concatenates several columns."""
        return cls(np.concatenate([part.lengths for part in parts]), b"".join([part.blob for part in parts]))


def no_texts(num: int) -> BinaryColumn:
    """Returns a column of `num` empty byte strings."""
    return BinaryColumn(np.zeros(num, np.uint32), b"")
