"""Records that lie together in memory: found by their frames, and checked as they are taken out.

The frame of a record is the length of its data (uint64), that length's checksum (uint32), the data, and their checksum.
"""

import itertools
import mmap
import struct
from typing import NamedTuple, Sequence

import google_crc32c
import numpy as np

from tf_input.storage.arenas import Piece
from tf_input.storage.frames import CHECKSUM_BYTES, FRAME_BYTES, HEADER_BYTES, LENGTH_BYTES, mask_checksums

_read_length = struct.Struct("<Q").unpack_from


class RecordStretch(NamedTuple):
    """Some records that lie together in memory.

    Attributes:
        piece: The piece of memory that the records lie in.
        begins, ends: The places in it where each frame begins and ends, int64 [num_records]; it may be outside, or end before it begins.
    """

    piece: Piece
    begins: np.ndarray
    ends: np.ndarray


def find_ends(data: memoryview, begin: int, end: int, num_records: int) -> list[int] | None:
    """Finds records that lie one after the other, by the lengths in their frames.

    Args:
        data: The bytes among which they are.
        begin: The place where the first of them begins.
        end: The place where the last of them should end.
        num_records: The number of records there.

    Returns:
        The place where each ends. None if they are not so many, or end elsewhere: a length is damaged, or the place is wrong, so that it is
        not known where they begin.
    """
    ends, at = [], begin
    try:
        for _ in range(num_records):
            at += _read_length(data, at)[0] + FRAME_BYTES
            ends.append(at)
    except (struct.error, OverflowError):
        return None
    return ends if at == end else None


class Stretches:
    """The records of some stretches, counted through them. What their frames say is looked at once, as each step of NumPy's takes a while.

    Args:
        stretches: The stretches, one or more.
    """

    def __init__(self, stretches: Sequence[RecordStretch]) -> None:
        counts = [len(one.begins) for one in stretches]
        firsts, lengths = (
            np.repeat(np.array(each), counts) for each in zip(*((one.piece.begin, one.piece.num_bytes) for one in stretches))
        )
        begins, ends = (np.concatenate(each) for each in zip(*((one.begins, one.ends) for one in stretches)))
        is_there = (begins >= 0) & (ends - begins >= FRAME_BYTES) & (ends <= lengths)
        begins, ends = np.where(is_there, firsts + begins, 0), np.where(is_there, firsts + ends, FRAME_BYTES)
        memories = [one.piece.memory for one in stretches]
        if all(one is memories[0] for one in memories):  # as a rule
            memories, counts = memories[:1], [len(begins)]
        edges = np.cumsum([0, *counts])
        frames = [
            _read_frames(memory, begins[first:stop], ends[first:stop], is_there[first:stop])
            for memory, first, stop in zip(memories, edges, edges[1:])
        ]
        self._memories, self._which = memories, np.repeat(np.arange(len(memories)), counts)
        self._begins, self._ends = begins + HEADER_BYTES, ends - CHECKSUM_BYTES
        self._is_whole, self._checksums = (np.concatenate(each) for each in zip(*frames))

    def take(self, records: np.ndarray) -> np.ndarray:
        """Copies records, and checks them.

        Args:
            records: The numbers of the records, int64 [n], counted through the stretches.

        Returns:
            Serialized examples, bytes as objects [n]; None for each that is damaged.
        """
        taken, copies, checksums = np.empty(len(records), object), [], []
        begins, ends = self._begins[records].tolist(), self._ends[records].tolist()
        if len(self._memories) == 1:
            memories = itertools.repeat(self._memories[0])
        else:
            memories = map(self._memories.__getitem__, self._which[records].tolist())
        for memory, begin, end in zip(memories, begins, ends):
            copy = memory[begin:end]
            checksums.append(google_crc32c.value(copy))  # now, as it is still in the processor's cache
            copies.append(copy)
        taken[:] = copies
        is_whole = self._is_whole[records] & (mask_checksums(np.array(checksums, np.uint32)) == self._checksums[records])
        taken[~is_whole] = None
        return taken


def _read_frames(memory: mmap.mmap | bytes, begins: np.ndarray, ends: np.ndarray, is_there: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Whether frames are whole, but for the checksum of their data, bool [n], and what that should be, uint32 [n]; by where frames begin
    and end in memory, and which are there.
    """
    if not is_there.any():
        return is_there, np.zeros(len(begins), np.uint32)
    lengths = _integers(memory, "<u8", begins)
    is_whole = is_there & (_integers(memory, "<u4", begins + LENGTH_BYTES) == _length_checksums(lengths))
    is_whole &= lengths == (ends - begins - FRAME_BYTES).astype(np.uint64)
    return is_whole, _integers(memory, "<u4", ends - CHECKSUM_BYTES)


def _integers(memory: mmap.mmap | bytes, dtype: str, begins: np.ndarray) -> np.ndarray:
    """The numbers at each place, wherever that is: [n]."""
    return np.ndarray(len(memory) - np.dtype(dtype).itemsize + 1, dtype, memory, strides=1)[begins]


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
    """The masked CRC-32C of each number as 8 bytes, the lowest first: uint32 [n], of uint64 [n]; all at once, which takes less time."""
    values = np.full(len(lengths), _OF_NOTHING)
    longest = int(lengths.max(initial=0))
    for place in range(-(-longest.bit_length() // 8)):  # zeros change nothing
        values ^= _TABLES[place, lengths >> np.uint64(8 * place) & np.uint64(0xFF)]
    return mask_checksums(values)
