"""Reads TFRecord files record by record, damaged ones too.

A record is its length (uint64), the length's masked CRC-32C, the data, the data's masked CRC-32C; all little-endian
(tensorflow/core/lib/io/record_writer.h). A whole file may be compressed, as GZIP or as ZLIB.

    what is damaged              what becomes of it
    a record's data              one `BadRecord`; reading goes on behind it
    a record's length            one `BadRecord`; reading goes on at the next header that is sound
    the end is cut off           one `BadRecord`
    there is no sound header     `NoRecordsError`
    a compressed file            one `BadRecord`; what lies behind is lost, for nobody knows where it begins
"""

import functools
import io
import os
import struct
import zlib
from typing import BinaryIO, Iterator, NamedTuple

import google_crc32c
import numpy as np

from beam_pipelines.storage import MAX_FILE_BYTES
from beam_pipelines.tfrecord.record_writer import masked, unmasked

HEADER_BYTES = 12
_FRAME_BYTES = 16  # a header and the checksum behind the data
_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_READ_BYTES = 1 << 20


class Record(NamedTuple):
    """One record of a TFRecord file.

    Attributes:
        offset: The place of its header in bytes, in the file as it is when decompressed; in an ArrayRecord file the number of the record.
        data: The data of the record, such as a serialized example.
        header, footer: The bytes before and behind the data: their length, and checksums; of an ArrayRecord nothing.
    """

    offset: int
    data: bytes
    header: bytes
    footer: bytes

    def data_crc32c(self) -> int:
        """The CRC-32C of the data of a TFRecord, as it was found."""
        return unmasked(_CRC.unpack(self.footer)[0])


class BadRecord(NamedTuple):
    """A stretch of a file that is no record.

    Attributes:
        offset: Where it begins; in an ArrayRecord file the number of the record.
        num_bytes: How much is lost; 0 where the file does not say.
        message: The text of what was found against what was expected.
    """

    offset: int
    num_bytes: int
    message: str


class NoRecordsError(ValueError):
    """A file that has bytes, but no record: it is no TFRecord file."""


def read_records(file: BinaryIO) -> Iterator[Record | BadRecord]:
    """The records of a file that is open at its beginning. Of all of them one at a time is in memory.

    Raises:
        NoRecordsError: The file is no TFRecord file.
        OSError: It could not be read.
    """
    return _read_compressed(inflate(file)) if is_compressed(file) else _read_plain(file)


def is_compressed(file: BinaryIO) -> bool:
    """Whether the file is GZIP or ZLIB as a whole; leaves it at its beginning."""
    start = file.read(HEADER_BYTES)
    file.seek(0)
    if len(start) < 2 or _length(start) is not None:  # a record of 376 bytes begins like ZLIB
        return False
    return start.startswith(b"\x1f\x8b") or (start[0] == 0x78 and (start[0] << 8 | start[1]) % 31 == 0)


def inflate(file: BinaryIO) -> BinaryIO:
    """What is compressed in a file, to be read from its beginning to its end; zlib.error or EOFError where it is damaged."""
    return io.BufferedReader(_Inflated(file), _READ_BYTES)


def _read_plain(file: BinaryIO) -> Iterator[Record | BadRecord]:
    size = file.seek(0, os.SEEK_END)
    offset = file.seek(0)
    while offset < size:
        length = _length(header := file.read(HEADER_BYTES))
        if length is None or length > size - offset - _FRAME_BYTES:
            found = _find_header(file, offset + 1, size)
            if length is None and found - offset == size:
                raise NoRecordsError(f"no TFRecord file: none of its {size} bytes begins a record")
            yield BadRecord(offset, found - offset, _describe_header(length, size - offset, found - offset))
            offset = file.seek(found)
            continue
        if length > MAX_FILE_BYTES:
            yield BadRecord(offset, length + _FRAME_BYTES, _describe_size(length))
            offset = file.seek(offset + length + _FRAME_BYTES)
            continue
        yield _check_data(offset, length, header, file.read(length), file.read(_CRC.size))
        offset += length + _FRAME_BYTES


def _read_compressed(stream: BinaryIO) -> Iterator[Record | BadRecord]:
    offset = 0
    try:
        while header := stream.read(HEADER_BYTES):
            length = _length(header)
            if length is None and not offset:
                raise NoRecordsError("no TFRecord file: what is compressed in it does not begin with a record")
            if length is None or length > MAX_FILE_BYTES:
                found = "the checksum of its length is wrong" if length is None else _describe_size(length)
                yield BadRecord(offset, 0, f"{found}; the rest of the compressed file is lost")
                return
            yield _check_data(offset, length, header, read_up_to(stream, length), stream.read(_CRC.size))
            offset += length + _FRAME_BYTES
    except (zlib.error, EOFError) as error:
        yield BadRecord(offset, 0, f"the compressed file is damaged ({error}); what lies behind is lost")


def _length(header: bytes) -> int | None:
    """What a header says, if its checksum is right."""
    if len(header) < HEADER_BYTES:
        return None
    if _CRC.unpack_from(header, _LENGTH.size)[0] != masked(google_crc32c.value(header[: _LENGTH.size])):
        return None
    return _LENGTH.unpack_from(header)[0]


def _check_data(offset: int, length: int, header: bytes, data: bytes, footer: bytes) -> Record | BadRecord:
    if len(data) < length or len(footer) < _CRC.size:
        return BadRecord(offset, HEADER_BYTES + len(data), f"cut off: {len(data)} of its {length} bytes are there")
    crc, stated = masked(google_crc32c.value(data)), _CRC.unpack(footer)[0]
    if crc != stated:
        message = f"checksum {crc:08x} of its {length} bytes; expected {stated:08x}"
        return BadRecord(offset, length + _FRAME_BYTES, message)
    return Record(offset, data, header, footer)


def _describe_header(length: int | None, num_left: int, num_lost: int) -> str:
    if length is None:
        return f"the checksum of its length is wrong; {num_lost} bytes are lost"
    return f"a record of {length} bytes where the file has {num_left} more; {num_lost} bytes are lost"


def _describe_size(length: int) -> str:
    return f"a record of {length} bytes; expected at most {MAX_FILE_BYTES}"


def read_up_to(stream: BinaryIO, length: int) -> bytes:
    """So many bytes, or all that are left; in pieces, so that what a header claims is not reserved before it is there."""
    if length <= _READ_BYTES:
        return stream.read(length)
    pieces = []
    while length and (piece := stream.read(min(length, _READ_BYTES))):
        pieces.append(piece)
        length -= len(piece)
    return b"".join(pieces)


def _find_header(file: BinaryIO, offset: int, size: int) -> int:
    """Where the next sound header begins whose record fits into the file; `size`, if none does."""
    while offset + _FRAME_BYTES <= size:
        file.seek(offset)
        block = file.read(_READ_BYTES)
        if len(block) < _FRAME_BYTES:
            break
        for position in _sound_headers(block):
            length = _LENGTH.unpack_from(block, position)[0]
            if length <= size - offset - position - _FRAME_BYTES:
                return offset + position
        offset += len(block) - HEADER_BYTES + 1
    return size


def _sound_headers(block: bytes) -> list[int]:
    """Positions in a block where a length is followed by its checksum: all at once, for a damaged file may be large."""
    data = np.frombuffer(block, np.uint8)
    num_positions = len(data) - HEADER_BYTES + 1
    zeros, tables = _crc_tables()
    crc = np.full(num_positions, zeros, np.uint32)
    stated = np.zeros(num_positions, np.uint32)
    for index, table in enumerate(tables):
        crc ^= table[data[index : index + num_positions]]
    for index in range(_CRC.size):
        stated |= data[_LENGTH.size + index :][:num_positions].astype(np.uint32) << np.uint32(8 * index)
    rotated = (crc >> np.uint32(15) | crc << np.uint32(17)) + np.uint32(masked(0))
    return np.flatnonzero(rotated == stated).tolist()


@functools.cache
def _crc_tables() -> tuple[int, list[np.ndarray]]:
    """The CRC of eight zeros, and what each value of each of eight bytes changes in it: a CRC is linear."""
    zeros = google_crc32c.value(bytes(_LENGTH.size))
    tables = [
        np.array([google_crc32c.value(_LENGTH.pack(value << 8 * index)) ^ zeros for value in range(256)], np.uint32)
        for index in range(_LENGTH.size)
    ]
    return zeros, tables


class _Inflated(io.RawIOBase):
    """What is compressed in a file, as GZIP (one member behind the other, and zeros that fill it up) or as ZLIB."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._inflate = self._make()
        self._pending = b""

    @staticmethod
    def _make() -> "zlib._Decompress":
        return zlib.decompressobj(zlib.MAX_WBITS | 32)  # 32: either format, by its magic number

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:
        while True:
            data = self._inflate.decompress(self._pending, len(buffer))
            self._pending = self._inflate.unconsumed_tail
            if data:
                buffer[: len(data)] = data
                return len(data)
            if self._inflate.eof:
                self._pending = self._inflate.unused_data.lstrip(b"\0")
                while not self._pending:
                    data = self._file.read(_READ_BYTES)
                    if not data:
                        return 0
                    self._pending = data.lstrip(b"\0")
                self._inflate = self._make()
            elif not self._pending:
                self._pending = self._file.read(_READ_BYTES)
                if not self._pending:
                    raise EOFError("it is cut off")
