"""Writes TFRecord files, without TensorFlow."""

import struct
from typing import BinaryIO

import google_crc32c

_WRITE_BYTES = 1 << 20
_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_FRAME_BYTES = 16  # around a record's data


class RecordWriter:
    """Frames records as TFRecord and writes them in large pieces.

    A record is its length (uint64), the length's masked CRC-32C, the data, the data's masked CRC-32C; all little-endian.

    Attributes:
        num_bytes: Written so far, with what is still buffered.
        crc32c: Of what has been flushed.
    """

    HEADER_BYTES = 12

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._parts: list[bytes] = []
        self._buffered = 0
        self.num_bytes = 0
        self.crc32c = 0

    def write(self, *data: bytes) -> int:
        """Writes one record, given in pieces, and returns its offset."""
        offset = self.num_bytes
        length = sum(map(len, data)) + _FRAME_BYTES
        self._parts += frame(*data)
        self.num_bytes += length
        self._buffered += length
        if self._buffered >= _WRITE_BYTES:
            self.flush()
        return offset

    def flush(self) -> None:
        block = b"".join(self._parts)
        self.crc32c = google_crc32c.extend(self.crc32c, block)
        view = memoryview(block)
        while view:
            view = view[self._file.write(view) :]
        self._parts.clear()
        self._buffered = 0


def frame(*data: bytes) -> tuple[bytes, ...]:
    """A record whose data come in pieces, as it lies in a file: also in pieces."""
    header = _LENGTH.pack(sum(map(len, data)))
    crc = 0
    for piece in data:
        crc = google_crc32c.extend(crc, piece)
    return header, _CRC.pack(masked(google_crc32c.value(header))), *data, _CRC.pack(masked(crc))


def masked(crc: int) -> int:
    """TFRecord's rotation of a CRC, which keeps a CRC of data with CRCs in it sound."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def unmasked(crc: int) -> int:
    """What `masked` made a CRC of."""
    crc = (crc - 0xA282EAD8) & 0xFFFFFFFF
    return (crc >> 17 | crc << 15) & 0xFFFFFFFF
