"""Many short strings of bytes as one column."""

import functools
import itertools
from typing import Any, Iterator, Sequence

import numpy as np

_CUT_AT_ONCE = 1024


def digests(hasher: Any, texts: Sequence[bytes]) -> bytes:
    """The digests of texts, one after the other.

    Args:
        hasher: A hasher of `hashlib`'s, which has taken nothing in yet: a copy of it costs less than another one with the same parameters.
        texts: The texts, each of which has a digest of its own.
    """
    copy, found = hasher.copy, []
    for text in texts:
        own = copy()
        own.update(text)
        found.append(own.digest())
    return b"".join(found)


class Texts:
    """Many strings of bytes, one after the other.

    Attributes:
        lengths: The length of each text in bytes, uint32 [num_texts].
        blob: The bytes of all texts, one after the other.
    """

    def __init__(self, lengths: np.ndarray, blob: bytes) -> None:
        self.lengths = lengths
        self.blob = blob

    @functools.cached_property
    def _offsets(self) -> np.ndarray:
        """The offset in the blob at which each text begins, and the end: int64 [num_texts + 1]."""
        return np.concatenate([[0], np.cumsum(self.lengths, dtype=np.int64)])

    @classmethod
    def of(cls, texts: Sequence[bytes]) -> "Texts":
        """Makes a column of texts."""
        return cls(np.fromiter(map(len, texts), np.uint32, len(texts)), b"".join(texts))

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[bytes]:
        if not self.blob:
            return itertools.repeat(b"", len(self))
        return itertools.chain.from_iterable(map(self._cut, range(0, len(self), _CUT_AT_ONCE)))

    def _cut(self, first: int) -> list[bytes]:
        """Cuts some texts, from one on: as objects all would take many times as much memory."""
        blob, offsets = self.blob, self._offsets[first : first + _CUT_AT_ONCE + 1].tolist()
        return [blob[start:end] for start, end in itertools.pairwise(offsets)]

    def to_arrow(self) -> Any:
        """The texts as an array of pyarrow's, of large_binary."""
        import pyarrow  # where many are sorted; not where records are written

        buffers = [None, pyarrow.py_buffer(self._offsets), pyarrow.py_buffer(self.blob)]
        return pyarrow.Array.from_buffers(pyarrow.large_binary(), len(self), buffers)

    def take(self, indices: np.ndarray) -> "Texts":
        """The texts at some indices, in their order."""
        if not self.blob:
            return Texts(self.lengths[indices], b"")
        taken = self.to_arrow().take(indices)
        return Texts(self.lengths[indices], taken.buffers()[2].to_pybytes() if len(indices) else b"")

    def slice(self, start: int, stop: int) -> "Texts":
        """The texts from `start` to `stop`."""
        if not self.blob:
            return Texts(self.lengths[start:stop], b"")
        begin, end = self._offsets[[start, min(stop, len(self))]].tolist()
        return Texts(self.lengths[start:stop], self.blob[begin:end])

    @classmethod
    def concatenate(cls, parts: Sequence["Texts"]) -> "Texts":
        """Joins several columns into one."""
        return cls(np.concatenate([part.lengths for part in parts]), b"".join([part.blob for part in parts]))


def no_texts(num: int) -> Texts:
    """A column of as many empty texts as are asked for."""
    return Texts(np.zeros(num, np.uint32), b"")
