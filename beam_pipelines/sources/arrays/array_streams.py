"""Records of one length, one behind the other: in a file, in a gzip file, in a member of a zip archive.

NumPy arrays, IDX files, CIFAR's batches and fixed-length records are all of this form, and differ in what says how long a
record is, and how many there are. Whatever a file claims is held against its size before a byte is reserved for it.
"""

import contextlib
import gzip
import zipfile
import zlib
from typing import Any, BinaryIO, Iterator, Mapping, NamedTuple

import numpy as np

from beam_pipelines.errors import UserError, printable
from beam_pipelines.storage.files import open_file
from beam_pipelines.storage.spool import own_spool

# What a byte of DEFLATE can at most become.
MAX_INFLATION = 1032

_CHUNK_BYTES = 1 << 20


class Stream(NamedTuple):
    """Bytes as they are when unpacked.

    Attributes:
        path: The file, below the source's root.
        packing: Empty: they are the file's; `gzip`; `zip`: compressed, in a member of an archive.
        member: The name of that.
    """

    path: str
    packing: str = ""
    member: str = ""

    @property
    def name(self) -> str:
        """The stream's path as a message shows it, a member's name behind it."""
        return printable(f"{self.path}/{self.member}" if self.member else self.path)


class Records(NamedTuple):
    """Records in a stream.

    Attributes:
        stream: The stream that the records lie in.
        dtype: The structured dtype of one record.
        num: The number of records.
        offset: The place of the first record in the stream, in bytes.
        num_bytes: The size of the stream in bytes, with what lies before and behind the records.
    """

    stream: Stream
    dtype: np.dtype
    num: int
    offset: int
    num_bytes: int


class Field(NamedTuple):
    """One field of records, an array of one dimension more than a record's value."""

    records: Records
    name: str

    @property
    def dtype(self) -> np.dtype:
        """The type of one number in the field, or of its text."""
        return self.records.dtype[self.name].base

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one record's value."""
        return self.records.dtype[self.name].shape

    @property
    def offset(self) -> int:
        """The field's offset within a record, in bytes."""
        return self.records.dtype.fields[self.name][1]


@contextlib.contextmanager
def open_stream(root: str, stream: Stream) -> Iterator[BinaryIO]:
    """Opens a stream below a root for reading, unpacked where it is packed; UserError where it is damaged."""
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
    """Turns what a damaged container raises into a UserError."""
    try:
        yield
    except (gzip.BadGzipFile, zipfile.BadZipFile, zlib.error, EOFError, UnicodeDecodeError) as error:
        raise UserError(f"{stream.name}: damaged, it can't be decompressed ({printable(str(error))}); expected a whole file") from error


def read_exactly(file: BinaryIO, stream: Stream, num_bytes: int) -> bytes:
    """UserError where the stream ends before."""
    with unpacking(stream):
        data = file.read(num_bytes)
        while len(data) < num_bytes and (more := file.read(num_bytes - len(data))):
            data += more
    if len(data) < num_bytes:
        raise UserError(f"{stream.name}: ends {num_bytes - len(data)} bytes too early; expected a whole file")
    return data


def read_rows(root: str, fields: Mapping[str, Field], start: int, stop: int) -> Iterator[dict[str, Any]]:
    """The values of several fields, all with the same number of records, row by row, as plain Python values.

    Streams are read once, side by side, a chunk at a time, and are checked to end where they should.
    """
    sources = {field.records: None for field in fields.values()}  # without doubles, in a fixed order
    record_bytes = max((records.dtype.itemsize for records in sources), default=1)
    num_rows = max(_CHUNK_BYTES // record_bytes, 1)
    with contextlib.ExitStack() as stack:
        files = {records: stack.enter_context(open_stream(root, records.stream)) for records in sources}
        for records, file in files.items():
            with unpacking(records.stream):
                file.seek(records.offset + start * records.dtype.itemsize)
        for first in range(start, stop, num_rows):
            count = min(num_rows, stop - first)
            chunks = {records: _read_chunk(file, records, count) for records, file in files.items()}
            columns = [to_python(chunks[field.records][field.name]) for field in fields.values()]
            yield from (dict(zip(fields, row)) for row in (zip(*columns) if columns else [()] * count))
        for records, file in files.items():
            if stop == records.num and records.stream.packing:
                _check_end(file, records)


def _read_chunk(file: BinaryIO, records: Records, count: int) -> np.ndarray:
    return np.frombuffer(read_exactly(file, records.stream, count * records.dtype.itemsize), records.dtype)


def _check_end(file: BinaryIO, records: Records) -> None:
    read_exactly(file, records.stream, records.num_bytes - records.offset - records.num * records.dtype.itemsize)
    with unpacking(records.stream):  # the checksum is looked at when the end is reached
        more = file.read(1)
    if more:
        raise UserError(f"{records.stream.name}: goes on behind the {records.num_bytes} bytes that it states; expected its end there")


def to_python(values: np.ndarray) -> list:
    """The value of each record: int, float, str or bytes, or a list of them.

    A bool becomes 0 or 1, and what is no character a surrogate, which is no text.
    """
    values = values.reshape(len(values), -1)
    values = values[:, 0] if values.shape[1] == 1 else values
    if values.dtype.kind == "b":
        values = values.astype(np.uint8)
    if values.dtype.kind == "U":
        points = np.ascontiguousarray(values.astype(values.dtype.newbyteorder("="))).view(np.uint32)
        if (points > 0x10FFFF).any():
            values = (
                np.where(points > 0x10FFFF, np.uint32(0xD800), points)
                .view(values.dtype.newbyteorder("="))
                .reshape(values.shape)
            )
    return values.tolist()


def unpack(root: str, stream: Stream, spool_directory: str | None, num_expected: int | None = None) -> tuple[int, int]:
    """Decompresses a stream into a spool file of its own, a megabyte at a time.

    Args:
        num_expected: The number of bytes that it states to have; None: it states none.
        spool_directory: The directory of the spool; None: the bytes are only counted.

    Returns:
        The id of the spool, or 0, and the number of its bytes.
    """
    num_bytes = 0
    with contextlib.ExitStack() as stack:
        writer = stack.enter_context(own_spool(spool_directory)) if spool_directory else None
        file = stack.enter_context(open_stream(root, stream))
        while data := _read_some(file, stream):
            num_bytes += len(data)
            if num_expected is not None and num_bytes > num_expected:
                raise UserError(f"{stream.name}: goes on behind the {num_expected} bytes that it states")
            if writer:
                writer.append(data)
    if num_expected is not None and num_bytes < num_expected:
        raise UserError(f"{stream.name}: {num_bytes} bytes when decompressed; it states to have {num_expected}")
    return (writer.spool if writer else 0), num_bytes


def _read_some(file: BinaryIO, stream: Stream) -> bytes:
    with unpacking(stream):
        return file.read(_CHUNK_BYTES)


def check_inflation(stream: Stream, num_bytes: int, num_packed: int) -> None:
    """What is stated against what a compressed file of that size can hold."""
    if num_bytes > num_packed * MAX_INFLATION:
        most = num_packed * MAX_INFLATION
        raise UserError(f"{stream.name}: states to have {num_bytes} bytes; expected at most {most} of {num_packed} compressed ones")


def check_num_bytes(stream: Stream, num_bytes: int, num_found: int) -> None:
    """Raises UserError where a stream has not as many bytes as it states."""
    if num_bytes != num_found:
        raise UserError(f"{stream.name}: {num_found} bytes; expected {num_bytes}, as it states")
