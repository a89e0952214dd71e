"""Parses and checks many frames of TFRecord files at once.

The frame of a record consists of a header, the data, and the checksum of the data (uint32). The header contains the
length of the data (uint64) and the checksum of the length (uint32). All numbers are little-endian.
"""

from typing import Sequence

import google_crc32c
import numpy as np

LENGTH_BYTES, CHECKSUM_BYTES = 8, 4
HEADER_BYTES = LENGTH_BYTES + CHECKSUM_BYTES
FRAME_BYTES = HEADER_BYTES + CHECKSUM_BYTES


def frame_bytes(header: bytes) -> int | None:
    """Returns the size of a frame in bytes, according to the frame's header; None if the header is corrupt."""
    length, checksum = header[:LENGTH_BYTES], header[LENGTH_BYTES:HEADER_BYTES]
    if len(checksum) < CHECKSUM_BYTES or int(_checksums([length])[0]) != int.from_bytes(checksum, "little"):
        return None
    return FRAME_BYTES + int.from_bytes(length, "little")


def find_corruption(frame: bytes, num_bytes: int) -> str:
    """Describes the corruption of a record. Returns "" for a valid record.

    Args:
        frame: The bytes of the frame.
        num_bytes: The size of the frame in bytes, according to the index.
    """
    if len(frame) < num_bytes:
        return f"the shard ends after {len(frame)} of its {num_bytes} bytes"
    if num_bytes < FRAME_BYTES:
        return f"its length in the index is {num_bytes} bytes, less than the minimum of {FRAME_BYTES}"
    length, length_checksum = frame[:LENGTH_BYTES], frame[LENGTH_BYTES:HEADER_BYTES]
    data, checksum = frame[HEADER_BYTES:-CHECKSUM_BYTES], frame[-CHECKSUM_BYTES:]
    stated = int.from_bytes(length, "little")
    if stated != len(data):
        return f"its length is {stated}, but {len(data)} in the index"
    for name, part, stored in (("length", length, length_checksum), ("data", data, checksum)):
        actual, expected = int(_checksums([part])[0]), int.from_bytes(stored, "little")
        if actual != expected:
            return f"the checksum of its {name} is {actual:08x} instead of {expected:08x}"
    return ""


def _checksums(data: Sequence[bytes]) -> np.ndarray:
    """Returns the masked CRC-32C checksum of each item, uint32 [n]."""
    return mask_checksums(np.array([google_crc32c.value(item) for item in data], np.uint32))


def mask_checksums(checksums: np.ndarray) -> np.ndarray:
    """Applies the TFRecord masking to CRC-32C checksums, uint32 [n]."""
    return (checksums >> 15 | checksums << 17) + np.uint32(0xA282EAD8)
