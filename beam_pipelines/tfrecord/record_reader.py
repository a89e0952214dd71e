"""Reads TFRecord files record by record, even if a file is corrupt.

A TFRecord consists of the length (uint64), its masked CRC-32C, the data, and the masked CRC-32C of the data. All
numbers are little-endian (tensorflow/core/lib/io/record_writer.h). A whole file can be compressed with GZIP or ZLIB.

    corrupt part           effect
    data of a record       one `BadRecord`; reading continues at the next record
    length of a record     one `BadRecord`; reading continues at the next valid header
    truncated end          one `BadRecord`
    no valid header        `NoRecordsError`
    compressed file        one `BadRecord`; the rest of the file is lost, because its records cannot be located
"""

import functools
import io
import os
import struct
import zlib
from typing import BinaryIO, Iterator, NamedTuple, Sequence

import google_crc32c
import numpy as np

from beam_pipelines.storage import MAX_FILE_BYTES
from beam_pipelines.tfrecord.record_writer import frame_header, masked

HEADER_BYTES = 12
FRAME_BYTES = 16  # The size of the header and of the checksum after the data.
_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_READ_BYTES = 1 << 20


class Record(NamedTuple):
    """A valid record of a TFRecord or ArrayRecord file.

    Attributes:
        offset: The byte offset of the record in the decompressed file; in an ArrayRecord file, the record number.
        data: The data of the record, such as a serialized example.
        header, footer: The bytes before and after the data, which contain the length and the checksums. Empty in an
            ArrayRecord file.
    """

    offset: int
    data: bytes
    header: bytes
    footer: bytes


class BadRecord(NamedTuple):
    """A byte range that contains no valid record.

    Attributes:
        offset: The start of the range in bytes. The record number in an ArrayRecord file.
        num_bytes: The number of lost bytes. 0 if unknown.
        message: The value that was found, and the expected value.
    """

    offset: int
    num_bytes: int
    message: str


class NoRecordsError(ValueError):
    """Raised if a nonempty file contains no record, probably because it has an unexpected format."""


def read_records(file: BinaryIO) -> Iterator[Record | BadRecord]:
    """Yields the records of an open file. Only one record is in memory at a time.

    Raises:
        NoRecordsError: The file is not a TFRecord file.
        OSError: The file could not be read.
    """
    return _read_compressed(inflate(file)) if is_compressed(file) else _read_plain(file)


def is_compressed(file: BinaryIO) -> bool:
    """Returns whether the whole file is compressed with GZIP or ZLIB. Rewinds the file."""
    start = file.read(HEADER_BYTES)
    file.seek(0)
    if len(start) < 2 or _length(start) is not None:  # The header of a record of 376 bytes looks like a ZLIB header.
        return False
    return start.startswith(b"\x1f\x8b") or (start[0] == 0x78 and (start[0] << 8 | start[1]) % 31 == 0)


def inflate(file: BinaryIO) -> BinaryIO:
    """Returns a sequential reader of a compressed file. It raises zlib.error or EOFError if the file is corrupt."""
    return io.BufferedReader(_Inflated(file), _READ_BYTES)


def _read_plain(file: BinaryIO) -> Iterator[Record | BadRecord]:
    size = file.seek(0, os.SEEK_END)
    offset, block, position = file.seek(0), b"", 0
    while offset < size:
        block, position = block[position:] + file.read(_READ_BYTES), 0
        while (length := _length(header := block[position : position + HEADER_BYTES])) is not None:
            end = position + length + FRAME_BYTES
            if end > len(block) or length > MAX_FILE_BYTES:
                break
            yield _check_data(offset, length, header, block[position + HEADER_BYTES : end - _CRC.size], block[end - _CRC.size : end])
            offset += end - position
            position = end
        if not position:  # The block begins with a corrupt header, or with a record that does not fit into the block.
            record, offset = _read_one(file, offset, size)
            yield record
            block, _ = b"", file.seek(offset)


def _read_one(file: BinaryIO, offset: int, size: int) -> tuple[Record | BadRecord, int]:
    """Reads the record at an offset. Returns the record, and the offset of the next record."""
    file.seek(offset)
    length = _length(header := file.read(HEADER_BYTES))
    if length is None or length > size - offset - FRAME_BYTES:
        next_offset = _find_header(file, offset + 1, size)
        if length is None and next_offset - offset == size:
            raise NoRecordsError(f"not a TFRecord file: no record begins in its {size} bytes")
        message = _describe_header(length, size - offset, next_offset - offset)
        return BadRecord(offset, next_offset - offset, message), next_offset
    next_offset = offset + length + FRAME_BYTES
    if length > MAX_FILE_BYTES:
        return BadRecord(offset, length + FRAME_BYTES, _describe_size(length)), next_offset
    return _check_data(offset, length, header, file.read(length), file.read(_CRC.size)), next_offset


def _read_compressed(stream: BinaryIO) -> Iterator[Record | BadRecord]:
    offset = 0
    try:
        while header := stream.read(HEADER_BYTES):
            length = _length(header)
            if length is None and not offset:
                raise NoRecordsError("not a TFRecord file: the decompressed data does not begin with a record")
            if length is None or length > MAX_FILE_BYTES:
                problem = "the checksum of its length is wrong" if length is None else _describe_size(length)
                yield BadRecord(offset, 0, f"{problem}; the rest of the compressed file is lost")
                return
            yield _check_data(offset, length, header, read_up_to(stream, length), stream.read(_CRC.size))
            offset += length + FRAME_BYTES
    except (zlib.error, EOFError) as error:
        yield BadRecord(offset, 0, f"the compressed file is corrupt ({error}); the rest of it is lost")


def _length(header: bytes) -> int | None:
    """Returns the length in a record header, or None if the header's checksum is wrong."""
    if len(header) < HEADER_BYTES:
        return None
    length = _LENGTH.unpack_from(header)[0]
    return length if header == frame_header(length) else None


def _check_data(offset: int, length: int, header: bytes, data: bytes, footer: bytes) -> Record | BadRecord:
    if len(data) < length or len(footer) < _CRC.size:
        return BadRecord(offset, HEADER_BYTES + len(data), f"cut off: only {len(data)} of its {length} bytes exist")
    if (crc := _CRC.pack(masked(google_crc32c.value(data)))) != footer:
        message = f"checksum {crc[::-1].hex()} of its {length} bytes instead of {footer[::-1].hex()}"
        return BadRecord(offset, length + FRAME_BYTES, message)
    return Record(offset, data, header, footer)


def check_frames(frames: Sequence[bytes]) -> np.ndarray | None:
    """Returns the CRC-32C of the data of each record, uint32 [num_records], given records with their headers and footers.
    Returns None if a header or a footer is wrong."""
    crcs = np.array([google_crc32c.value(frame[HEADER_BYTES : -_CRC.size]) for frame in frames], np.uint32)
    stated = np.frombuffer(b"".join([frame[-_CRC.size :] for frame in frames]), "<u4")
    headers_fit = all(frame.startswith(frame_header(len(frame) - FRAME_BYTES)) for frame in frames)
    return crcs if headers_fit and (masked(crcs) == stated).all() else None


def _describe_header(length: int | None, num_left: int, num_lost: int) -> str:
    if length is None:
        return f"the checksum of its length is wrong; {num_lost} bytes are lost"
    return f"a record of {length} bytes, but only {num_left} are left in the file; {num_lost} bytes are lost"


def _describe_size(length: int) -> str:
    return f"a record of {length} bytes; the limit is {MAX_FILE_BYTES}"


def read_up_to(stream: BinaryIO, length: int) -> bytes:
    """Reads up to `length` bytes in chunks, so that a corrupt length does not allocate much memory."""
    if length <= _READ_BYTES:
        return stream.read(length)
    chunks = []
    while length and (chunk := stream.read(min(length, _READ_BYTES))):
        chunks.append(chunk)
        length -= len(chunk)
    return b"".join(chunks)


def _find_header(file: BinaryIO, offset: int, size: int) -> int:
    """Returns the offset of the next valid header whose record fits into the file. Returns `size` if there is none."""
    while offset + FRAME_BYTES <= size:
        file.seek(offset)
        block = file.read(_READ_BYTES)
        if len(block) < FRAME_BYTES:
            break
        for position in _sound_headers(block):
            length = _LENGTH.unpack_from(block, position)[0]
            if length <= size - offset - position - FRAME_BYTES:
                return offset + position
        offset += len(block) - HEADER_BYTES + 1
    return size


def _sound_headers(block: bytes) -> list[int]:
    """Returns the positions of all valid record headers in a block. Vectorized for large files."""
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
    """Returns the CRC of eight zero bytes, and a table for each byte that maps its value to the change in the CRC."""
    zeros = google_crc32c.value(bytes(_LENGTH.size))
    tables = [
        np.array([google_crc32c.value(_LENGTH.pack(value << 8 * index)) ^ zeros for value in range(256)], np.uint32)
        for index in range(_LENGTH.size)
    ]
    return zeros, tables


class _Inflated(io.RawIOBase):
    """A stream that decompresses a ZLIB file, or a GZIP file with any number of members."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._inflate = self._make()
        self._pending = b""

    @staticmethod
    def _make() -> "zlib._Decompress":
        return zlib.decompressobj(zlib.MAX_WBITS | 32)  # 32 detects either format by its magic number.

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
                    raise EOFError("it ends too early")
