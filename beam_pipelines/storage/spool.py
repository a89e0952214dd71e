"""Reads and writes spool files: temporary files with data that is too large for Beam's shuffle."""

import contextlib
import os
import threading
from typing import BinaryIO, Iterator

from beam_pipelines.errors import RunError, StorageError
from beam_pipelines.storage.files import files_at, is_remote, make_folder
from tf_input.regular_files import read_at

# Maximum number of open files of a reader. By default, a process can open 1,024 files.
MAX_OPEN = 256


class SpoolWriter:
    """Writes a new spool file. Each process, and each attempt at the same work, writes its own file.

    Attributes:
        spool: The random ID of the file, never 0 or 1. It is not part of the output, so it may differ between runs.
    """

    def __init__(self, directory: str) -> None:
        self.spool = _new_id()
        make_folder(directory)
        self._file = open(_spool_path(directory, self.spool), "xb", buffering=1 << 20)
        self._offset = 0

    def append(self, data: bytes) -> int:
        """Appends `data` and returns its offset. Raises `RunError` if the disk is full."""
        offset = self._offset
        try:
            self._file.write(data)
        except OSError as error:
            raise _write_error(error) from error
        self._offset += len(data)
        return offset

    def flush(self) -> None:
        """Writes buffered data to the file, so that other processes can read it.

        Call this method before you pass references to the data to other processes.
        """
        try:
            self._file.flush()
        except OSError as error:
            raise _write_error(error) from error

    def close(self) -> None:
        """Closes the file.

        Raises `RunError` if data cannot be written. A network disk may not report a failure until this point.
        """
        try:
            self._file.close()
        except OSError as error:
            raise _write_error(error) from error


class ObjectSpoolWriter:
    """Writes a spool file to an object store. The object does not exist until the writer is closed.

    Attributes:
        spool: The random ID of the object, never 0 or 1.
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
        """Appends `data` and returns its offset. Raises `RunError` if the data cannot be written."""
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
def open_spool(directory: str) -> Iterator[SpoolWriter | ObjectSpoolWriter]:
    """Context manager for the writer of a new spool file or object. The data is readable after the block."""
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
    """Reads data from spool files. Several threads can use the same reader.

    The reader must be closed, because open files occupy the disk even after they are deleted.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._open: dict[int, _OpenFile] = {}  # Ordered by the time of their last use.
        self._is_closed = False
        self._lock = threading.Lock()

    def read(self, spool: int, offset: int, num_bytes: int) -> bytes:
        """Reads bytes of a spool file. Returns fewer bytes if the file ends within the requested range.

        Raises:
            OSError: The spool cannot be read.
            ValueError: The reader is closed.
        """
        path = _spool_path(self._directory, spool)
        if is_remote(path):
            return files_at(path).read_range(path, offset, num_bytes)
        file = self._file(spool, path)  # The reference keeps the file open while it is read.
        return read_at(file.descriptor, num_bytes, offset)

    def _file(self, spool: int, path: str) -> "_OpenFile":
        with self._lock:
            if self._is_closed:
                raise ValueError(f"{path}: the reader is closed")
            file = self._open.pop(spool, None) or _OpenFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
            self._open[spool] = file
            if len(self._open) > MAX_OPEN:  # A large cluster has as many spools as worker processes.
                self._open.pop(next(iter(self._open)))
            return file

    def close(self) -> None:
        """Closes the reader. A file that a thread is reading is closed after the read."""
        with self._lock:
            self._is_closed = True
            self._open.clear()


def read_exactly(reader: SpoolReader, spool: int, offset: int, num_bytes: int) -> bytes:
    """Reads bytes of a spool file. Raises `RunError` if the file is too short."""
    try:
        data = reader.read(spool, offset, num_bytes)
    except OSError as error:
        raise StorageError(f"the spool could not be read: {error.strerror or error}") from error
    if len(data) != num_bytes:
        raise RunError(f"the spool has only {len(data)} of {num_bytes} bytes at offset {offset}")
    return data


class _OpenFile:
    """An open file descriptor, which is closed when this object is garbage-collected."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self) -> None:
        os.close(self.descriptor)


def _new_id() -> int:
    """Returns a random ID for a spool file. The IDs 0 and 1, which refer to source files, are not used."""
    return int.from_bytes(os.urandom(8), "little") | 2


def _spool_path(directory: str, spool: int) -> str:
    return f"{directory}/{spool:016x}.spool"
