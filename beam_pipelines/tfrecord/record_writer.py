"""Writes TFRecord files, without TensorFlow."""

import functools
import struct
from typing import BinaryIO

import google_crc32c

_WRITE_BYTES = 1 << 20
_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")


class RecordWriter:
    """Frames records as TFRecord and writes them in large pieces.

    A record is its length (uint64), the length's masked CRC-32C, the data, the data's masked CRC-32C; all little-endian.

    Attributes:
        num_bytes: The number of bytes that were written so far, with what is still buffered.
        crc32c: The CRC-32C of all bytes that have been flushed.
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
        """The stored data checksums of the first and the last record; (0, 0) before the first record."""
        return _CRC.unpack(self._first)[0], _CRC.unpack(self._last)[0]

    def write(self, *data: bytes) -> int:
        """Writes one record, given in pieces, and returns its offset."""
        offset = self.num_bytes
        record = frame(*data)
        self._last = record[-1]
        if not offset:
            self._first = record[-1]
        num_bytes = sum(map(len, record))
        self._parts += record
        self.num_bytes += num_bytes
        self._buffered += num_bytes
        if self._buffered >= _WRITE_BYTES:
            self.flush()
        return offset

    def flush(self) -> None:
        """Writes to the file what is still buffered."""
        block = b"".join(self._parts)
        self.crc32c = google_crc32c.extend(self.crc32c, block)
        view = memoryview(block)
        while view:
            view = view[self._file.write(view) :]
        self._parts.clear()
        self._buffered = 0


def frame(*data: bytes) -> tuple[bytes, ...]:
    """A record whose data come in pieces, as it lies in a file: also in pieces."""
    num_bytes = crc = 0
    for piece in data:
        num_bytes += len(piece)
        crc = google_crc32c.extend(crc, piece)
    return _header(num_bytes), *data, _CRC.pack(masked(crc))


@functools.lru_cache(maxsize=1 << 14)  # small records have the same lengths again and again
def _header(num_bytes: int) -> bytes:
    length = _LENGTH.pack(num_bytes)
    return length + _CRC.pack(masked(google_crc32c.value(length)))


def masked(crc: int) -> int:
    """TFRecord's rotation of a CRC, which keeps a CRC of data with CRCs in it sound."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def unmasked(crc: int) -> int:
    """What `masked` made a CRC of."""
    crc = (crc - 0xA282EAD8) & 0xFFFFFFFF
    return (crc >> 17 | crc << 15) & 0xFFFFFFFF
