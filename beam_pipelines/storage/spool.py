"""Spool files: what waits on disk, out of the runner's memory, while pointers to it are shuffled."""

import contextlib
import os
import threading
from typing import BinaryIO, Iterator

from beam_pipelines.errors import RunError, StorageError
from beam_pipelines.storage.files import files_at, is_remote, make_folder
from tf_input.regular_files import read_at

# Spools that a reader has open at a time; a process may have 1,024 files.
MAX_OPEN = 256


class SpoolWriter:
    """Appends to one file, which no other process and no other attempt writes to.

    Attributes:
        spool: The file's id, never 0 or 1. It does not reach the output, so it need not be the same in every run.
    """

    def __init__(self, directory: str) -> None:
        self.spool = _new_id()
        make_folder(directory)
        self._file = open(_spool_path(directory, self.spool), "xb", buffering=1 << 20)
        self._offset = 0

    def append(self, data: bytes) -> int:
        """Returns the offset at which `data` begins; RunError if the disk is full."""
        offset = self._offset
        try:
            self._file.write(data)
        except OSError as error:
            raise _write_error(error) from error
        self._offset += len(data)
        return offset

    def flush(self) -> None:
        """Makes what was appended readable for other processes: before its pointers leave this one."""
        try:
            self._file.flush()
        except OSError as error:
            raise _write_error(error) from error

    def close(self) -> None:
        """RunError where what was appended since the last flush could not be written: a network's disk may tell of it only now."""
        try:
            self._file.close()
        except OSError as error:
            raise _write_error(error) from error


class ObjectSpoolWriter:
    """Writes a spool into an object store, where nothing can be appended to: the object is there once the writer is closed.

    Attributes:
        spool: The object's id, never 0 or 1.
    """

    def __init__(self, directory: str) -> None:
        self.spool = _new_id()
        self._path = _spool_path(directory, self.spool)
        self._stack = contextlib.ExitStack()
        self._object: BinaryIO | None = None
        self._offset = 0

    def __enter__(self) -> "ObjectSpoolWriter":
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self._stack.__exit__(*error)
        except OSError as write_error:
            raise _write_error(write_error) from write_error

    def append(self, data: bytes) -> int:
        """Returns the offset at which `data` begins; RunError if it could not be written."""
        offset = self._offset
        try:
            if self._object is None:
                self._object = self._stack.enter_context(files_at(self._path).create(self._path))
            self._object.write(data)
        except OSError as error:
            raise _write_error(error) from error
        self._offset += len(data)
        return offset


@contextlib.contextmanager
def own_spool(directory: str) -> Iterator[SpoolWriter | ObjectSpoolWriter]:
    """A new spool file or object, for this block alone. Readable when it ends."""
    if is_remote(directory):
        with ObjectSpoolWriter(directory) as writer:
            yield writer
    else:
        writer = SpoolWriter(directory)
        try:
            yield writer
            writer.flush()
        finally:
            writer.close()


def _write_error(error: OSError) -> RunError:
    return RunError(f"the spool could not be written: {error.strerror or error}")


class SpoolReader:
    """Reads spooled bytes back, in any number of threads. Close it: an open file keeps its disk space even when the spool is deleted."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._open: dict[int, _OpenFile] = {}  # the last used last
        self._is_closed = False
        self._lock = threading.Lock()

    def read(self, spool: int, offset: int, num_bytes: int) -> bytes:
        """Fewer bytes where the spool ends; OSError where it can't be read.

        Raises:
            ValueError: The reader is closed.
        """
        path = _spool_path(self._directory, spool)
        if is_remote(path):
            return files_at(path).read_range(path, offset, num_bytes)
        file = self._file(spool, path)  # held while reading: the last one to let go of it closes it
        return read_at(file.descriptor, num_bytes, offset)

    def _file(self, spool: int, path: str) -> "_OpenFile":
        with self._lock:
            if self._is_closed:
                raise ValueError(f"{path}: its reader is closed")
            file = self._open.pop(spool, None) or _OpenFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
            self._open[spool] = file
            if len(self._open) > MAX_OPEN:  # a large cluster has as many spools as worker processes
                self._open.pop(next(iter(self._open)))
            return file

    def close(self) -> None:
        """Threads that are still reading ahead come to their end: a number of a file that is closed may be that of another one by then."""
        with self._lock:
            self._is_closed = True
            self._open.clear()


def read_whole(reader: SpoolReader, spool: int, offset: int, num_bytes: int) -> bytes:
    """RunError where the bytes are not there, or not all of them: we wrote them ourselves, so it says nothing about any input."""
    try:
        data = reader.read(spool, offset, num_bytes)
    except OSError as error:
        raise StorageError(f"the spool could not be read: {error.strerror or error}") from error
    if len(data) != num_bytes:
        raise RunError(f"the spool has {len(data)} bytes at {offset}; expected {num_bytes}")
    return data


class _OpenFile:
    """Closed when the last thread that reads it lets go of it."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self) -> None:
        os.close(self.descriptor)


def _new_id() -> int:
    """Never one of the small numbers that mean the source (see `references`)."""
    return int.from_bytes(os.urandom(8), "little") | 2


def _spool_path(directory: str, spool: int) -> str:
    return f"{directory}/{spool:016x}.spool"
