"""Records that lie together in memory: found by their frames, and checked as they are taken out.

The frame of a record is the length of its data (uint64), that length's checksum (uint32), the data, and their checksum.
"""

import dataclasses
import itertools
import mmap
import struct
from typing import Sequence

import google_crc32c
import numpy as np

from tf_input.storage.arenas import Piece
from tf_input.storage.frames import CHECKSUM_BYTES, FRAME_BYTES, HEADER_BYTES, LENGTH_BYTES, mask_checksums

_read_length = struct.Struct("<Q").unpack_from


@dataclasses.dataclass(frozen=True)
class Stretch:
    """Some records that lie together in memory.

    Attributes:
        memory: Where they lie.
        begins, ends: int64 [num_records], where in it each serialized example lies.
        checksums: uint32 [num_records], what is stored as its checksum.
        is_whole: bool [num_records], whether the rest of its frame is as it should be.
    """

    memory: mmap.mmap | bytes
    begins: np.ndarray
    ends: np.ndarray
    checksums: np.ndarray
    is_whole: np.ndarray


def make_stretch(piece: Piece, begins: np.ndarray, ends: np.ndarray) -> Stretch:
    """Records whose places are known.

    Args:
        piece: Of memory, with what lies there.
        begins, ends: int64 [num_records], where in it each frame begins and ends; it may be outside, or end before it begins.
    """
    is_there = (begins >= 0) & (ends - begins >= FRAME_BYTES) & (ends <= piece.num_bytes)
    data = piece.view if is_there.any() else memoryview(bytes(FRAME_BYTES))
    begins, ends = np.where(is_there, begins, 0), np.where(is_there, ends, FRAME_BYTES)
    lengths = _integers(data, "<u8", begins)
    is_whole = is_there & (_integers(data, "<u4", begins + LENGTH_BYTES) == _length_checksums(lengths))
    is_whole &= lengths == (ends - begins - FRAME_BYTES).astype(np.uint64)
    checksums = _integers(data, "<u4", ends - CHECKSUM_BYTES)
    return Stretch(piece.memory, piece.begin + begins + HEADER_BYTES, piece.begin + ends - CHECKSUM_BYTES, checksums, is_whole)


def find_edges(data: memoryview, num_records: int) -> np.ndarray | None:
    """Finds records by the lengths in their frames.

    Args:
        data: What lies from the first record to the end of the last.
        num_records: How many these are.

    Returns:
        int64 [num_records + 1], where each begins, and where the last ends. None if they are not so many, or end elsewhere: a length is
        damaged, or the place is wrong, so that it is not known where they begin.
    """
    edges, at = [0], 0
    try:
        for _ in range(num_records):
            at += _read_length(data, at)[0] + FRAME_BYTES
            edges.append(at)
    except (struct.error, OverflowError):
        return None
    return np.array(edges, np.int64) if at == len(data) else None


class Stretches:
    """The records of some stretches, counted through them.

    Args:
        stretches: One or more.
    """

    def __init__(self, stretches: Sequence[Stretch]) -> None:
        memories = [one.memory for one in stretches]
        self._memories = memories[:1] if all(one is memories[0] for one in memories) else memories
        self._which = np.repeat(np.arange(len(stretches)), [len(one.begins) for one in stretches])
        self._begins, self._ends, self._checksums, self._is_whole = (
            np.concatenate([getattr(one, name) for one in stretches]) for name in ("begins", "ends", "checksums", "is_whole")
        )

    def take(self, records: np.ndarray) -> np.ndarray:
        """Copies records, and checks them.

        Args:
            records: int64 [n], which.

        Returns:
            Serialized examples, bytes as objects [n]; None for each that is damaged.
        """
        begins, ends = self._begins[records].tolist(), self._ends[records].tolist()
        if len(self._memories) == 1:
            memories = itertools.repeat(self._memories[0])
        else:
            memories = map(self._memories.__getitem__, self._which[records].tolist())
        taken, copies, checksums = np.empty(len(records), object), [], []
        for memory, begin, end in zip(memories, begins, ends):
            copy = memory[begin:end]
            checksums.append(google_crc32c.value(copy))  # now, as it is still in the processor's cache
            copies.append(copy)
        taken[:] = copies
        is_whole = self._is_whole[records] & (mask_checksums(np.array(checksums, np.uint32)) == self._checksums[records])
        taken[~is_whole] = None
        return taken


def _integers(data: memoryview, dtype: str, begins: np.ndarray) -> np.ndarray:
    """The numbers at each place, wherever that is: [n]."""
    return np.ndarray(len(data) - np.dtype(dtype).itemsize + 1, dtype, data, strides=1)[begins]


def _make_tables() -> np.ndarray:
    """CRC-32C, without what it begins and ends with, of a byte with so many zeros behind it: uint32 [8, 256].

    https://datatracker.ietf.org/doc/html/rfc3720#appendix-B.4
    """
    values = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        values = np.where(values & 1, values >> np.uint32(1) ^ np.uint32(0x82F63B78), values >> np.uint32(1))
    tables = [values]
    for _ in range(LENGTH_BYTES - 1):
        tables.append(values[tables[-1] & np.uint32(0xFF)] ^ tables[-1] >> np.uint32(8))
    return np.stack(tables[::-1])


_TABLES = _make_tables()
_OF_NOTHING = np.uint32(google_crc32c.value(bytes(LENGTH_BYTES)))


def _length_checksums(lengths: np.ndarray) -> np.ndarray:
    """The masked CRC-32C of each as 8 bytes, the lowest first: uint32 [n], of uint64 [n]. All at once, as a call for each takes longer than all else
    of a small record."""
    values = np.full(len(lengths), _OF_NOTHING)
    longest = int(lengths.max(initial=0))
    for place in range(-(-longest.bit_length() // 8)):  # zeros change nothing
        values ^= _TABLES[place, lengths >> np.uint64(8 * place) & np.uint64(0xFF)]
    return mask_checksums(values)
