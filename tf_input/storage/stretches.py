"""Records that lie together in memory: found by their frames, and checked as they are taken out.

The frame of a record is the length of its data (uint64), that length's checksum (uint32), the data, and their checksum.
"""

import dataclasses
import struct
from typing import Sequence

import google_crc32c
import numpy as np

from tf_input.storage.frames import CHECKSUM_BYTES, FRAME_BYTES, HEADER_BYTES, LENGTH_BYTES, mask_checksums

_read_length = struct.Struct("<Q").unpack_from


@dataclasses.dataclass(frozen=True)
class Stretch:
    """Some records that lie together in memory.

    Attributes:
        data: What lies there.
        begins, ends: int64 [num_records], where in it each serialized example lies.
        checksums: uint32 [num_records], what is stored as its checksum.
        is_whole: bool [num_records], whether the rest of its frame is as it should be.
    """

    data: memoryview
    begins: np.ndarray
    ends: np.ndarray
    checksums: np.ndarray
    is_whole: np.ndarray


def make_stretch(data: memoryview, begins: np.ndarray, ends: np.ndarray) -> Stretch:
    """Records whose places are known.

    Args:
        data: What lies there.
        begins, ends: int64 [num_records], where each frame begins and ends; it may be outside of `data`, or end before it begins.
    """
    is_there = (begins >= 0) & (ends - begins >= FRAME_BYTES) & (ends <= len(data))
    values = np.frombuffer(data if is_there.any() else bytes(FRAME_BYTES), np.uint8)
    begins, ends = np.where(is_there, begins, 0), np.where(is_there, ends, FRAME_BYTES)
    lengths = _bytes_at(values, begins, LENGTH_BYTES)
    is_whole = is_there & (_integers(values, begins + LENGTH_BYTES) == _length_checksums(lengths))
    is_whole &= np.ascontiguousarray(lengths).view("<u8")[:, 0] == (ends - begins - FRAME_BYTES).astype(np.uint64)
    checksums = _integers(values, ends - CHECKSUM_BYTES)
    return Stretch(data, begins + HEADER_BYTES, ends - CHECKSUM_BYTES, checksums, is_whole)


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
        self._data = [one.data for one in stretches]
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
        data, places = self._data, (one[records].tolist() for one in (self._which, self._begins, self._ends))
        taken, copies, checksums = np.empty(len(records), object), [], []
        for which, begin, end in zip(*places):
            copy = data[which][begin:end].tobytes()
            checksums.append(google_crc32c.value(copy))  # now, as it is still in the processor's cache
            copies.append(copy)
        taken[:] = copies
        is_whole = self._is_whole[records] & (mask_checksums(np.array(checksums, np.uint32)) == self._checksums[records])
        taken[~is_whole] = None
        return taken


def _bytes_at(data: np.ndarray, begins: np.ndarray, count: int) -> np.ndarray:
    """uint8 [n, count], so many bytes from each place on."""
    return data[begins[:, np.newaxis] + np.arange(count)]


def _integers(data: np.ndarray, begins: np.ndarray) -> np.ndarray:
    """The checksums that are stored at each place: uint32 [n]."""
    return np.ascontiguousarray(_bytes_at(data, begins, CHECKSUM_BYTES)).view("<u4")[:, 0]


def _make_table() -> np.ndarray:
    """CRC-32C of each byte, uint32 [256]; https://datatracker.ietf.org/doc/html/rfc3720#appendix-B.4."""
    values = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        values = np.where(values & 1, values >> np.uint32(1) ^ np.uint32(0x82F63B78), values >> np.uint32(1))
    return values


_TABLE = _make_table()


def _length_checksums(lengths: np.ndarray) -> np.ndarray:
    """The masked CRC-32C of each row of bytes: uint32 [n]. All at once, as a call for each takes longer than all else of a small record."""
    values = np.full(len(lengths), 0xFFFFFFFF, np.uint32)
    for column in range(lengths.shape[1]):
        values = _TABLE[(values ^ lengths[:, column]) & np.uint32(0xFF)] ^ values >> np.uint32(8)
    return mask_checksums(~values)
