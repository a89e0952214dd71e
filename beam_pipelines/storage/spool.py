"""Reads and writes spool files: temporary files with data that is too large for Beam's shuffle."""

import contextlib
import os
from typing import BinaryIO, Iterator

from beam_pipelines.errors import RunError, StorageError
from beam_pipelines.storage.files import files_at, is_remote, make_folder
from beam_pipelines.storage.local_files import OpenFiles
from tf_input.regular_files import read_at


class SpoolWriter:
    """Writes a new spool file or object. It can be read after the `with` block.

    Each process, and each attempt at the same work, writes its own file. The first data creates the file.

    Attributes:
        spool: The random ID of the file. It is not part of the output, so it may differ between runs. The IDs 0 and 1,
            which refer to source files, are not used.
    """

    def __init__(self, directory: str) -> None:
        self.spool = int.from_bytes(os.urandom(8), "little") | 2
        self._directory = directory
        self._stack = contextlib.ExitStack()
        self._file: BinaryIO | None = None
        self._offset = 0

    def __enter__(self) -> "SpoolWriter":
        return self

    def __exit__(self, *error: object) -> None:
        with _write_errors():
            self._stack.__exit__(*error)

    def append(self, data: bytes) -> int:
        """Appends `data` and returns its offset. Raises `RunError` if the data cannot be written."""
        offset = self._offset
        with _write_errors():
            if self._file is None:
                make_folder(self._directory)
                path = _spool_path(self._directory, self.spool)
                self._file = self._stack.enter_context(files_at(path).create(path))
            self._file.write(data)
        self._offset += len(data)
        return offset


@contextlib.contextmanager
def _write_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunError(f"the spool could not be written: {error.strerror or error}") from error


class SpoolReader:
    """Reads data from spool files. Several threads can use the same reader. It must be closed."""

    def __init__(self, directory: str) -> None:
        self._directory, self._files = directory, OpenFiles()
        self.close = self._files.close

    def __enter__(self) -> "SpoolReader":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def read(self, spool: int, offset: int, num_bytes: int) -> bytes:
        """Reads bytes of a spool file. Returns fewer bytes if the file ends within the requested range.

        Raises:
            OSError: The spool cannot be read.
            ValueError: The reader is closed.
        """
        path = _spool_path(self._directory, spool)
        if is_remote(path):
            return files_at(path).read_range(path, offset, num_bytes)
        file = self._files.open(path)
        return read_at(file.descriptor, num_bytes, offset)


def read_exactly(reader: SpoolReader, spool: int, offset: int, num_bytes: int) -> bytes:
    """Reads bytes of a spool file. Raises `RunError` if the file is too short."""
    try:
        data = reader.read(spool, offset, num_bytes)
    except OSError as error:
        raise StorageError(f"the spool could not be read: {error.strerror or error}") from error
    if len(data) != num_bytes:
        raise RunError(f"the spool has only {len(data)} of {num_bytes} bytes at offset {offset}")
    return data


def _spool_path(directory: str, spool: int) -> str:
    return f"{directory}/{spool:016x}.spool"
