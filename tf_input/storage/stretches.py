"""Records that lie together, read at once: found by their frames, each checked when it is asked for."""

import struct
from typing import Sequence

import google_crc32c
import numpy as np

from tf_input.frames import CHECKSUM_BYTES, FRAME_BYTES, HEADER_BYTES, LENGTH_BYTES, mask_checksums

_read_length = struct.Struct("<Q").unpack_from


class Stretch:
    """Some records of a shard that lie together.

    Args:
        data: The bytes from the first of them to the end of the last.
        begins: int64 [num_records], where in `data` each frame begins.
        ends: int64 [num_records], where it ends; it may be outside of `data`, or before it begins.

    Attributes:
        data: What lies there.
        begins, ends: int64 [num_records], where in it each serialized example lies.
        checksums: uint32 [num_records], what is stored as its checksum.
        is_whole: bool [num_records], whether its frame is as it should be; the example itself is not looked at yet.
    """

    def __init__(self, data: bytes, begins: np.ndarray, ends: np.ndarray) -> None:
        self.data = data
        is_there = (begins >= 0) & (ends - begins >= FRAME_BYTES) & (ends <= len(data))
        self.begins = np.where(is_there, begins, 0) + HEADER_BYTES
        self.ends = np.where(is_there, ends, FRAME_BYTES) - CHECKSUM_BYTES
        padded = np.frombuffer(data if len(data) >= FRAME_BYTES else bytes(FRAME_BYTES), np.uint8)
        self.checksums = _integers(padded, self.ends, CHECKSUM_BYTES)
        lengths = _bytes_at(padded, self.begins - HEADER_BYTES, LENGTH_BYTES)
        self.is_whole = is_there & (_integers(padded, self.begins - CHECKSUM_BYTES, CHECKSUM_BYTES) == _length_checksums(lengths))
        self.is_whole &= np.ascontiguousarray(lengths).view("<u8")[:, 0] == (self.ends - self.begins).astype(np.uint64)


def find_stretch(data: bytes, num_records: int) -> Stretch | None:
    """Finds records by the lengths in their frames.

    Args:
        data: What lies from the first record to the end of the last.
        num_records: How many these are.

    Returns:
        None if there are not so many, or they end elsewhere: a length is damaged, or the place is wrong.
    """
    begins, at = [], 0
    try:
        for _ in range(num_records):
            begins.append(at)
            at += _read_length(data, at)[0] + FRAME_BYTES
    except (struct.error, OverflowError):
        return None
    if at != len(data):
        return None
    return Stretch(data, np.array(begins, np.int64), np.array([*begins[1:], at], np.int64))


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

    def take(self, records: np.ndarray) -> list[bytes | None]:
        """Copies records, and checks them.

        Args:
            records: int64 [n], which.

        Returns:
            The serialized examples; None for each that is damaged.
        """
        data, begins, ends = self._data, self._begins[records].tolist(), self._ends[records].tolist()
        taken = [data[which][begin:end] for which, begin, end in zip(self._which[records].tolist(), begins, ends)]
        checksums = np.fromiter(map(google_crc32c.value, taken), np.uint32, len(taken))
        is_whole = self._is_whole[records] & (mask_checksums(checksums) == self._checksums[records])
        return taken if is_whole.all() else [one if whole else None for one, whole in zip(taken, is_whole.tolist())]


def _bytes_at(data: np.ndarray, begins: np.ndarray, count: int) -> np.ndarray:
    """uint8 [n, count], so many bytes from each place on."""
    return data[begins[:, np.newaxis] + np.arange(count)]


def _integers(data: np.ndarray, begins: np.ndarray, num_bytes: int) -> np.ndarray:
    """Little-endian integers of so many bytes at each place: [n]."""
    return np.ascontiguousarray(_bytes_at(data, begins, num_bytes)).view(f"<u{num_bytes}")[:, 0]


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
