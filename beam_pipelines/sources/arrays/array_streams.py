"""Reads fixed-length records from a file, a gzip file, or a member of a zip archive.

NumPy arrays, IDX files and CIFAR's batches consist of records with a fixed length. They differ only in how the length
and the number of records are stored. Sizes in a file header are checked before memory is allocated.
"""

import contextlib
import gzip
import math
import zipfile
import zlib
from typing import Any, BinaryIO, Iterator, Mapping, NamedTuple

import numpy as np

from beam_pipelines.errors import UserError, printable
from beam_pipelines.storage import MAX_FILE_BYTES
from beam_pipelines.storage.files import open_file
from beam_pipelines.storage.spool import SpoolWriter
from beam_pipelines.tfrecord.record_reader import read_up_to

# The maximum compression ratio of DEFLATE.
_MAX_INFLATION = 1032

_CHUNK_BYTES = 1 << 20
AGAIN = "Download or create the file again."


class Stream(NamedTuple):
    """A sequence of uncompressed bytes.

    Attributes:
        path: The path of the file, relative to the source's root.
        packing: The compression: empty, `gzip`, or `zip` for a compressed member of an archive.
        member: The name of the archive member, for `zip`.
    """

    path: str
    packing: str = ""
    member: str = ""

    @property
    def name(self) -> str:
        """The path of the file, followed by the name of the archive member if there is one, for messages."""
        return printable(f"{self.path}/{self.member}" if self.member else self.path)


class Records(NamedTuple):
    """A sequence of records in a stream.

    Attributes:
        stream: The stream that contains the records.
        dtype: The structured dtype of one record.
        num: The number of records.
        offset: The offset of the first record in the stream, in bytes.
        num_bytes: The size of the stream in bytes, including data before and after the records.
    """

    stream: Stream
    dtype: np.dtype
    num: int
    offset: int
    num_bytes: int


class Field(NamedTuple):
    """A field of records, which contains one value per record."""

    records: Records
    name: str

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the numbers or the text in the field."""
        return self.records.dtype[self.name].base

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one record's value."""
        return self.records.dtype[self.name].shape

    @property
    def num_values(self) -> int:
        """How many numbers or strings one record's value contains."""
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """The size of one record's value, in bytes."""
        return self.num_values * self.dtype.itemsize

    def offset(self, index: int) -> int:
        """Returns the offset of the value of the record `index` in the stream, in bytes."""
        return self.records.offset + self.records.dtype.fields[self.name][1] + index * self.records.dtype.itemsize


def make_field(
    stream: Stream,
    dtype: np.dtype,
    shape: tuple[int, ...],
    header_bytes: int,
    num_bytes: int | None,
    *,
    num_packed: int | None = None,
    start: int = 0,
    name: str = "",
) -> Field:
    """Returns the field of an array, whose first dimension is the number of records.

    Args:
        stream: The stream that contains the array.
        dtype, shape, header_bytes: The dtype and the shape in the header of the array, and the header's size.
        num_bytes: The size of the header and the array in bytes, or None if it is unknown.
        num_packed: The compressed size in bytes, or None if the array is not compressed.
        start: The offset of the header in the stream.
        name: The name of the array for messages, if it is not the name of the stream.

    Raises:
        UserError: The array is empty, its values are too large, or the sizes are inconsistent.
    """
    name, found = name or stream.name, f"an array of {dtype.name}{list(shape)}"
    if not shape or 0 in shape or not dtype.itemsize:
        raise UserError(f"{name}: {found}. It must have one or more values for each image.")
    record_bytes = math.prod(shape[1:]) * dtype.itemsize
    if record_bytes > MAX_FILE_BYTES:
        raise UserError(f"{name}: {found}. It must have at most {MAX_FILE_BYTES} bytes for each image.")
    expected = header_bytes + shape[0] * record_bytes
    if num_packed is not None and expected > num_packed * _MAX_INFLATION:
        most = num_packed * _MAX_INFLATION
        raise UserError(f"{name}: states {expected} bytes, but {num_packed} compressed bytes contain at most {most}. {AGAIN}")
    if num_bytes not in (None, expected):
        raise UserError(f"{name}: has {num_bytes} bytes, but its header states {expected}. {AGAIN}")
    record = np.dtype([("value", dtype, shape[1:])])
    return Field(Records(stream, record, shape[0], start + header_bytes, start + expected), "value")


@contextlib.contextmanager
def open_stream(root: str, stream: Stream) -> Iterator[BinaryIO]:
    """Opens a stream for reading and decompresses it if necessary. Raises `UserError` if the stream is corrupt."""
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(open_file(f"{root}/{stream.path}"))
        with unpacking(stream):
            if stream.packing == "gzip":
                file = stack.enter_context(gzip.GzipFile(fileobj=file))
            elif stream.packing == "zip":
                archive = stack.enter_context(zipfile.ZipFile(file))
                file = stack.enter_context(archive.open(stream.member))
        yield file


@contextlib.contextmanager
def unpacking(stream: Stream) -> Iterator[None]:
    """Context manager that converts errors about corrupt compressed data into `UserError`."""
    try:
        yield
    except (gzip.BadGzipFile, zipfile.BadZipFile, zlib.error, EOFError, UnicodeDecodeError) as error:
        raise UserError(f"{stream.name}: corrupt, cannot be decompressed ({printable(str(error))}). {AGAIN}") from error


def read_exactly(file: BinaryIO, stream: Stream, num_bytes: int) -> bytes:
    """Reads exactly `num_bytes` bytes. Raises `UserError` if the stream ends early."""
    with unpacking(stream):
        data = read_up_to(file, num_bytes)
    if len(data) < num_bytes:
        raise UserError(f"{stream.name}: ends {num_bytes - len(data)} bytes too early. {AGAIN}")
    return data


def read_rows(root: str, fields: Mapping[str, Field], bounds: range) -> Iterator[dict[str, Any]]:
    """Yields the values of fields in each record in `bounds`, as Python values. All fields must have the same number of
    records."""
    sources = list(dict.fromkeys(field.records for field in fields.values()))
    num_rows = max(_CHUNK_BYTES // max((records.dtype.itemsize for records in sources), default=1), 1)
    with contextlib.ExitStack() as stack:
        files = {records: stack.enter_context(open_stream(root, records.stream)) for records in sources}
        for records, file in files.items():
            with unpacking(records.stream):
                file.seek(records.offset + bounds.start * records.dtype.itemsize)
        for first in range(bounds.start, bounds.stop, num_rows):
            count = min(num_rows, bounds.stop - first)
            chunks = {records: _read_records(file, records, count) for records, file in files.items()}
            columns = [to_python(chunks[field.records][field.name]) for field in fields.values()]
            yield from (dict(zip(fields, row)) for row in (zip(*columns) if columns else [()] * count))
        for records, file in files.items():
            if bounds.stop == records.num and records.stream.packing:
                read_exactly(file, records.stream, records.num_bytes - records.offset - records.num * records.dtype.itemsize)
                if _read_some(file, records.stream, 1):  # gzip and zip check the checksum when a read reaches the end
                    raise _too_long(records.stream, records.num_bytes)


def _read_records(file: BinaryIO, records: Records, count: int) -> np.ndarray:
    return np.frombuffer(read_exactly(file, records.stream, count * records.dtype.itemsize), records.dtype)


def to_python(values: np.ndarray) -> list:
    """Converts an array to one Python value per record, such as an int, a str or a list.

    A bool becomes 0 or 1.
    """
    values = values.reshape(len(values), -1)
    values = values[:, 0] if values.shape[1] == 1 else values
    if values.dtype.kind == "b":
        values = values.astype(np.uint8)
    if values.dtype.kind == "U":
        points = np.ascontiguousarray(values.astype(values.dtype.newbyteorder("="))).view(np.uint32)
        if (points > 0x10FFFF).any():
            valid = np.where(points > 0x10FFFF, np.uint32(0xD800), points)
            values = valid.view(values.dtype.newbyteorder("=")).reshape(values.shape)
    return values.tolist()


def unpack(root: str, stream: Stream, spool_directory: str | None, num_expected: int | None = None) -> tuple[int, int]:
    """Decompresses a stream into a new temporary file.

    Args:
        root: The root of the source.
        stream: The stream to decompress.
        spool_directory: The directory of the spool; None only counts the bytes.
        num_expected: The number of decompressed bytes according to the file's header; None if unknown.

    Returns:
        The id of the spool, or 0 if the bytes are only counted, and the number of decompressed bytes.
    """
    num_bytes = 0
    with contextlib.ExitStack() as stack:
        writer = stack.enter_context(SpoolWriter(spool_directory)) if spool_directory else None
        file = stack.enter_context(open_stream(root, stream))
        while data := _read_some(file, stream, _CHUNK_BYTES):
            num_bytes += len(data)
            if num_expected is not None and num_bytes > num_expected:
                raise _too_long(stream, num_expected)
            if writer:
                writer.append(data)
    if num_expected is not None and num_bytes < num_expected:
        raise UserError(f"{stream.name}: has {num_bytes} bytes when decompressed, but its header states {num_expected}. {AGAIN}")
    return (writer.spool if writer else 0), num_bytes


def _read_some(file: BinaryIO, stream: Stream, num_bytes: int) -> bytes:
    with unpacking(stream):
        return file.read(num_bytes)


def _too_long(stream: Stream, num_bytes: int) -> UserError:
    return UserError(f"{stream.name}: is longer than the {num_bytes} bytes that its header states. {AGAIN}")
