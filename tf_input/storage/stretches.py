"""Records that lie together, read at once: found by their frames, taken out, and checked.

The frame of a record is the length of its data (uint64), that length's checksum (uint32), the data, and their checksum.
"""

import struct

import google_crc32c
import numpy as np

from tf_input.frames import CHECKSUM_BYTES, HEADER_BYTES, LENGTH_BYTES, mask_checksums

_read_length = struct.Struct("<Q").unpack_from


def cut_stretch(data: bytes, num_records: int) -> list[bytes | None] | None:
    """Takes records out of what was read of a shard, by the lengths in their frames.

    Args:
        data: What lies from the first record to the end of the last.
        num_records: How many these are.

    Returns:
        The serialized examples; None for each that is damaged. None in place of all if they are not so many, or end elsewhere: a
        length is damaged, or the place is wrong, so that it is not known where they begin.
    """
    ends, records, at = [], [], 0
    try:
        for _ in range(num_records):
            begin = at + HEADER_BYTES
            end = begin + _read_length(data, at)[0]
            records.append(data[begin:end])
            ends.append(end)
            at = end + CHECKSUM_BYTES
    except (struct.error, OverflowError):
        return None
    if at != len(data) or not records:
        return None if data or num_records else []
    stops = np.array(ends, np.int64)
    begins = np.concatenate([[0], stops[:-1] + CHECKSUM_BYTES])
    checksums = np.fromiter(map(google_crc32c.value, records), np.uint32, num_records)
    values = np.frombuffer(data, np.uint8)
    is_whole = mask_checksums(checksums) == _integers(values, stops)
    is_whole &= _integers(values, begins + LENGTH_BYTES) == _length_checksums(_bytes_at(values, begins, LENGTH_BYTES))
    return records if is_whole.all() else [one if whole else None for one, whole in zip(records, is_whole.tolist())]


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
