"""Finds records in a memory buffer by their TFRecord frames and checks the records when they are copied.

The frame of a record consists of the length of its data (uint64), the checksum of the length (uint32), the data, and
the checksum of the data (uint32).
"""

import itertools
import mmap
from typing import NamedTuple, Sequence

import google_crc32c
import numpy as np

from tf_input.storage.arenas import ArenaSlice
from tf_input.storage.frames import CHECKSUM_BYTES, FRAME_BYTES, HEADER_BYTES, LENGTH_BYTES, mask_checksums


class RecordChunk(NamedTuple):
    """Records in a part of an arena.

    Attributes:
        slice: The part of the arena.
        begins, ends: The start and end offsets of the records' frames in the part, int64 [num_records]. If the index is
            corrupt, offsets may be out of bounds or in the wrong order.
    """

    slice: ArenaSlice
    begins: np.ndarray
    ends: np.ndarray


class RecordChunks:
    """Copies and checks records from one or more `RecordChunk` objects, which are indexed like one concatenated
    sequence.

    The headers of all frames are parsed together on construction, because each NumPy call has a fixed cost.
    """

    def __init__(self, chunks: Sequence[RecordChunk]) -> None:
        counts = [len(entry.begins) for entry in chunks]
        firsts, lengths = (
            np.repeat(np.array(each), counts) for each in zip(*((chunk.slice.begin, chunk.slice.num_bytes) for chunk in chunks))
        )
        begins, ends = (np.concatenate(each) for each in zip(*((chunk.begins, chunk.ends) for chunk in chunks)))
        is_there = (begins >= 0) & (ends - begins >= FRAME_BYTES) & (ends <= lengths)
        begins, ends = np.where(is_there, firsts + begins, 0), np.where(is_there, firsts + ends, FRAME_BYTES)
        memories = [chunk.slice.memory for chunk in chunks]
        if all(memory is memories[0] for memory in memories):  # the usual case
            memories, counts = memories[:1], [len(begins)]
        edges = np.cumsum([0, *counts])
        frames = [
            _read_frames(memory, begins[first:stop], ends[first:stop], is_there[first:stop])
            for memory, first, stop in zip(memories, edges, edges[1:])
        ]
        self._memories, self._which = memories, np.repeat(np.arange(len(memories)), counts)
        self._begins, self._ends = begins + HEADER_BYTES, ends - CHECKSUM_BYTES
        self._is_complete, self._checksums = (np.concatenate(each) for each in zip(*frames))

    def take(self, records: np.ndarray) -> np.ndarray:
        """Copies records and checks them.

        Args:
            records: The indices of the records, int64 [n].

        Returns:
            An object array [n] with the bytes of the serialized examples, or None for corrupt records.
        """
        taken, copies, checksums = np.empty(len(records), object), [], []
        begins, ends = self._begins[records].tolist(), self._ends[records].tolist()
        if len(self._memories) == 1:
            memories = itertools.repeat(self._memories[0])
        else:
            memories = map(self._memories.__getitem__, self._which[records].tolist())
        for memory, begin, end in zip(memories, begins, ends):
            copy = memory[begin:end]
            checksums.append(google_crc32c.value(copy))  # while the copy is in the CPU cache
            copies.append(copy)
        taken[:] = copies
        is_complete = self._is_complete[records] & (mask_checksums(np.array(checksums, np.uint32)) == self._checksums[records])
        taken[~is_complete] = None
        return taken


def _read_frames(memory: mmap.mmap | bytes, begins: np.ndarray, ends: np.ndarray, is_there: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Checks the lengths and the length checksums of frames in memory.

    Args:
        memory: The memory.
        begins, ends: The start and end offsets of the frames in the memory, int64 [n].
        is_there: Whether each frame is within bounds, bool [n].

    Returns:
        Whether each frame is valid except for its data, bool [n], and the expected data checksums, uint32 [n].
    """
    if not is_there.any():
        return is_there, np.zeros(len(begins), np.uint32)
    lengths = _integers(memory, "<u8", begins)
    is_complete = is_there & (_integers(memory, "<u4", begins + LENGTH_BYTES) == _length_checksums(lengths))
    is_complete &= lengths == (ends - begins - FRAME_BYTES).astype(np.uint64)
    return is_complete, _integers(memory, "<u4", ends - CHECKSUM_BYTES)


def _integers(memory: mmap.mmap | bytes, dtype: str, begins: np.ndarray) -> np.ndarray:
    """Returns the numbers at the given byte offsets of a memory buffer, [n]. Offsets need not be aligned."""
    return np.ndarray(len(memory) - np.dtype(dtype).itemsize + 1, dtype, memory, strides=1)[begins]


def _make_tables() -> np.ndarray:
    """Returns a table whose entry [i, value] is the CRC-32C of a byte followed by 7 - i zero bytes, uint32 [8, 256].

    The values omit the bit inversions that CRC-32C usually applies at the start and the end. See
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
_CRC_OF_ZERO_LENGTH = np.uint32(google_crc32c.value(bytes(LENGTH_BYTES)))


def _length_checksums(lengths: np.ndarray) -> np.ndarray:
    """Returns the masked CRC-32C of the 8 little-endian bytes of each number, uint32 [n].

    This vectorized computation is faster than calling `google_crc32c` for each number.
    """
    values = np.full(len(lengths), _CRC_OF_ZERO_LENGTH)
    longest = int(lengths.max(initial=0))
    for index in range(-(-longest.bit_length() // 8)):  # zero bytes contribute nothing
        values ^= _TABLES[index, lengths >> np.uint64(8 * index) & np.uint64(0xFF)]
    return mask_checksums(values)
