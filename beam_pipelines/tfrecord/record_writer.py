"""Writes TFRecord files without TensorFlow."""

import functools
import struct
from typing import BinaryIO, Sequence

import google_crc32c

_WRITE_BYTES = 1 << 20
_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")


class RecordWriter:
    """Writes TFRecord files in large blocks.

    A TFRecord consists of the length (uint64), its masked CRC-32C, the data, and the masked CRC-32C of the data. All
    numbers are little-endian.

    Attributes:
        num_bytes: The number of bytes written so far, including buffered bytes.
        crc32c: The CRC-32C of all flushed bytes.
    """

    HEADER_BYTES = 12

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._parts: list[bytes] = []
        self._buffered = 0
        self.num_bytes = 0
        self.crc32c = 0
        self._first = self._last = bytes(_CRC.size)

    @property
    def fingerprint(self) -> tuple[int, int]:
        """The data checksums of the first and the last record. (0, 0) before the first record is written."""
        return _CRC.unpack(self._first)[0], _CRC.unpack(self._last)[0]

    def write(self, *data: bytes) -> int:
        """Writes a record, given as one or more byte strings, and returns its offset."""
        offset = self.num_bytes
        record = frame(*data)
        self._write(record, record[-1], record[-1])
        return offset

    def write_frames(self, frames: Sequence[bytes]) -> None:
        """Writes one or more records, each with its header and its footer."""
        self._write(frames, frames[0][-_CRC.size :], frames[-1][-_CRC.size :])

    def _write(self, parts: Sequence[bytes], first: bytes, last: bytes) -> None:
        self._first, self._last = self._first if self.num_bytes else first, last
        num_bytes = sum(map(len, parts))
        self._parts += parts
        self.num_bytes += num_bytes
        self._buffered += num_bytes
        if self._buffered >= _WRITE_BYTES:
            self.flush()

    def flush(self) -> None:
        """Writes the buffered bytes to the file."""
        block = b"".join(self._parts)
        self.crc32c = google_crc32c.extend(self.crc32c, block)
        self._file.write(block)
        self._parts.clear()
        self._buffered = 0


def frame(*data: bytes) -> tuple[bytes, ...]:
    """Returns the byte strings of a record, preceded by TFRecord's header and followed by its footer."""
    num_bytes, crc = len(data[0]), google_crc32c.value(data[0])
    for chunk in data[1:]:
        num_bytes += len(chunk)
        crc = google_crc32c.extend(crc, chunk)
    return frame_header(num_bytes), *data, _CRC.pack(masked(crc))


@functools.lru_cache(maxsize=1 << 14)  # Small records often have the same lengths.
def frame_header(num_bytes: int) -> bytes:
    """Returns the bytes before the data of a record: the length and its checksum."""
    length = _LENGTH.pack(num_bytes)
    return length + _CRC.pack(masked(google_crc32c.value(length)))


def masked(crc: int) -> int:
    """Applies TFRecord's CRC mask. Without the mask, the CRC of data that contains CRCs can be a weak checksum."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
