"""Reads ArrayRecord files record by record, damaged ones too, with the library `array_record`.

Such a file is chunks of records, compressed or not, and a footer that says where they are (https://github.com/google/array_record).

    what is damaged       what becomes of it
    a chunk               one `BadRecord` for each of its records; reading goes on behind it
    so much that a        `NoRecordsError`: a footer may say that there are billions
    million in a row are
    the footer, the end   `NoRecordsError`: nobody knows where the records are
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

# The header of the first block, which is the same in every file of chunks.
_MAGIC = bytes.fromhex("83af70d10d884a3f")
_ONE_CHUNK_AT_A_TIME = "readahead_buffer_size:0,max_parallelism:0"
_READ_BYTES = 1 << 20
_MAX_BAD_IN_A_ROW = 1 << 20  # records: sixteen times what a chunk has by default


def is_array_record(file: BinaryIO) -> bool:
    """Whether a file begins as ArrayRecord files do; leaves it at its beginning."""
    start = file.read(len(_MAGIC))
    file.seek(0)
    return start == _MAGIC


def check_array_record(place: str) -> None:
    """UserError that begins with a place where the library that reads and writes them is not installed."""
    if importlib.util.find_spec("array_record") is None:
        raise UserError(f"{place}: array_record is not installed; expected `pip install 'recordmill[export]'`")


class RecordFileReader:
    """Reads files of records, TFRecords or ArrayRecords, on disks and in stores.

    The library that reads ArrayRecords knows nothing of how stores are reached. So of such a file there a copy is made on a disk, without a
    name: it is gone with its process. The last one is kept as long as this object, since a source looks at its first file several times.
    """

    def __init__(self) -> None:
        self._copy = functools.lru_cache(maxsize=1)(_copy_to_disk)

    def read(self, path: str, file: BinaryIO) -> Iterator[Record | BadRecord]:
        """The records of a file that is open at its beginning.

        Raises:
            NoRecordsError: It is of neither format, or an ArrayRecord file that is cut off, or whose footer is damaged.
            OSError: It could not be read.
            UserError: It is an ArrayRecord file, and their library is not installed.
        """
        if not is_array_record(file):
            yield from read_records(file)
            return
        check_array_record(printable(path))
        copy = self._copy(path) if is_remote(path) else None  # held, whatever else is copied meanwhile
        yield from read_array_records(f"/dev/fd/{copy.file.fileno()}" if copy else path)


class _Copy:
    """Closed, and gone, when the last one that reads it lets go of it."""

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
    """The records of a file on a disk, each with its number for an offset. Of all of them one chunk at a time is in memory.

    Raises:
        NoRecordsError: The file is cut off, or its footer is damaged, or does not fit what lies before it.
        OSError: It could not be read.
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
                if opened_at == number:  # else a chunk before may have kept it from being read
                    num_bad += 1
                    if num_bad > _MAX_BAD_IN_A_ROW:
                        raise NoRecordsError(
                            f"of the {num_records} records that its footer names, {num_bad} in a row up to {number} are not there"
                        )
                    yield BadRecord(number, 0, printable(str(error)) or "its chunk has no such record")
                    number += 1
                stack.close()  # it gives nothing any more
                reader, opened_at = stack.enter_context(_opened(path, number)), number
                continue
            num_bad = 0
            if len(data) > MAX_FILE_BYTES:
                yield BadRecord(number, len(data), f"a record of {len(data)} bytes; expected at most {MAX_FILE_BYTES}")
            else:
                yield Record(number, data, b"", b"")
            number += 1


@contextlib.contextmanager
def _opened(path: str, number: int = 0) -> Iterator[Any]:
    """What reads a file from a record on."""
    from array_record.python.array_record_module import ArrayRecordReader

    reader = ArrayRecordReader(os.fsencode(path), _ONE_CHUNK_AT_A_TIME)
    try:
        if not reader.ok():
            _read_through(path)
            raise NoRecordsError(f"no ArrayRecord file that is whole: {_problem(reader)}")
        reader.seek(number)
        yield reader
    finally:
        with contextlib.suppress(RuntimeError):  # what was wrong with it is told
            reader.close()


def _problem(reader: Any) -> str:
    """Why it gives nothing."""
    try:
        reader.close()
    except RuntimeError as error:
        return printable(str(error))
    return "it gives no record"


def _read_through(path: str) -> None:
    """OSError where a disk does not give a file: the library tells that no otherwise than damage, which alone is a fact about the file."""
    with open_file(path) as file:
        while file.read(_READ_BYTES):
            pass
