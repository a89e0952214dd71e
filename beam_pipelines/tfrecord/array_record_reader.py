"""Reads ArrayRecord files record by record with the library `array_record`, even if a file is corrupt.

An ArrayRecord file consists of chunks of records, which can be compressed, and a footer with the offsets of the chunks
(https://github.com/google/array_record).

    corrupt part                     effect
    a chunk                          one `BadRecord` per record of the chunk; reading continues after the chunk
    over 1,048,576 records in a row  `NoRecordsError`, because a corrupt footer can claim billions of records
    the footer or the end            `NoRecordsError`, because the offsets are unknown
"""

import contextlib
import functools
import importlib.util
import os
import shutil
import tempfile
from typing import Any, BinaryIO, Iterator

from beam_pipelines.errors import UserError, printable
from beam_pipelines.storage import MAX_FILE_BYTES
from beam_pipelines.storage.files import is_remote, open_file
from beam_pipelines.tfrecord.record_reader import BadRecord, NoRecordsError, Record, read_records

# The header of the first block, which is the same in all ArrayRecord files.
_MAGIC = bytes.fromhex("83af70d10d884a3f")
_ONE_CHUNK_AT_A_TIME = "readahead_buffer_size:0,max_parallelism:0"
_READ_BYTES = 1 << 20
_MAX_BAD_IN_A_ROW = 1 << 20  # Maximum number of records. By default, a chunk has 65,536 records.


def is_array_record(file: BinaryIO) -> bool:
    """Returns whether a file starts with the ArrayRecord header. Rewinds the file."""
    start = file.read(len(_MAGIC))
    file.seek(0)
    return start == _MAGIC


def check_array_record(message_start: str) -> None:
    """Raises `UserError` if the library `array_record` is not installed."""
    if importlib.util.find_spec("array_record") is None:
        raise UserError(f"{message_start}: array_record is not installed. Install it with `pip install 'recordmill[export]'`.")


class RecordFileReader:
    """Reads TFRecord and ArrayRecord files from disks and object stores.

    The ArrayRecord library cannot read from object stores, so ArrayRecord files in an object store are copied to a
    temporary file. The reader keeps the latest copy open, because a file may be opened several times.
    """

    def __init__(self) -> None:
        self._copy = functools.lru_cache(maxsize=1)(_copy_to_disk)

    def read(self, path: str, file: BinaryIO) -> Iterator[Record | BadRecord]:
        """Yields the records of an open file, from its start.

        Raises:
            NoRecordsError: The file has neither format, or its ArrayRecord footer is missing or corrupt.
            OSError: The file could not be read.
            UserError: The file is an ArrayRecord file, and the library `array_record` is not installed.
        """
        if not is_array_record(file):
            yield from read_records(file)
            return
        check_array_record(printable(path))
        # Keep a reference, so that copying another file does not close this copy.
        copy = self._copy(path) if is_remote(path) else None
        yield from read_array_records(f"/dev/fd/{copy.file.fileno()}" if copy else path)


class _Copy:
    """A temporary copy of a file. It is deleted when no reader uses it."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file

    def __del__(self) -> None:
        self.file.close()


def _copy_to_disk(path: str) -> _Copy:
    copy = _Copy(tempfile.TemporaryFile())
    with open_file(path) as file:
        shutil.copyfileobj(file, copy.file, _READ_BYTES)
    copy.file.flush()
    return copy


def read_array_records(path: str) -> Iterator[Record | BadRecord]:
    """Yields the records of a local ArrayRecord file. Offsets are record numbers. One chunk is in memory at a time.

    Raises:
        NoRecordsError: The file is truncated, or its footer is corrupt or does not match the chunks.
        OSError: The file could not be read.
    """
    with contextlib.ExitStack() as stack:
        reader = stack.enter_context(_opened(path))
        number, opened_at, is_read_through, num_bad = 0, 0, False, 0
        num_records = reader.num_records()
        while number < num_records:
            try:
                data = reader.read()
            except RuntimeError as error:
                if not is_read_through:
                    _read_through(path)
                    is_read_through = True
                if opened_at == number:  # Otherwise, an earlier corrupt chunk may have made this record unreadable.
                    num_bad += 1
                    if num_bad > _MAX_BAD_IN_A_ROW:
                        raise NoRecordsError(
                            f"{num_bad} records in a row up to number {number} are missing, of the {num_records} that "
                            "its footer states"
                        )
                    yield BadRecord(number, 0, printable(str(error)) or "its chunk has no such record")
                    number += 1
                stack.close()  # After an error, the reader returns no more records.
                reader, opened_at = stack.enter_context(_opened(path, number)), number
                continue
            num_bad = 0
            if len(data) > MAX_FILE_BYTES:
                yield BadRecord(number, len(data), f"a record of {len(data)} bytes; the limit is {MAX_FILE_BYTES}")
            else:
                yield Record(number, data, b"", b"")
            number += 1


@contextlib.contextmanager
def _opened(path: str, number: int = 0) -> Iterator[Any]:
    """Context manager that opens a file and seeks to a record."""
    from array_record.python.array_record_module import ArrayRecordReader

    reader = ArrayRecordReader(os.fsencode(path), _ONE_CHUNK_AT_A_TIME)
    try:
        if not reader.ok():
            _read_through(path)
            raise NoRecordsError(f"not a complete ArrayRecord file: {_problem(reader)}")
        reader.seek(number)
        yield reader
    finally:
        with contextlib.suppress(RuntimeError):  # The problem has already been reported.
            reader.close()


def _problem(reader: Any) -> str:
    """Closes a reader that found no records, and returns the reason why it found none."""
    try:
        reader.close()
    except RuntimeError as error:
        return printable(str(error))
    return "it contains no record"


def _read_through(path: str) -> None:
    """Reads the whole file, so that a disk failure raises `OSError`. The library reports a corrupt file instead."""
    with open_file(path) as file:
        while file.read(_READ_BYTES):
            pass
