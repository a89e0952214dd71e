"""Files, wherever they lie: in a file system, or as objects behind `gs://` and `s3://` (see `object_store`).

Paths are strings with `/` between their parts. All failures are OSErrors.
"""

import contextlib
import errno
import io
import os
import re
import unicodedata
from typing import BinaryIO, Callable, ContextManager, Iterable, Iterator, Protocol

from beam_pipelines.errors import StorageError
from beam_pipelines.storage.local_files import LocalFiles, version_of
from beam_pipelines.storage.versions import FileStat, note_version
from tf_input.regular_files import regular_opener

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


class Files(Protocol):
    """Reads and writes files of one kind: of a file system, or objects of a store."""

    def read(self, path: str) -> bytes:
        """The whole file; OSError too if it has more than `MAX_FILE_BYTES`."""

    def read_range(self, path: str, offset: int, num_bytes: int, version: str | None = None) -> bytes:
        """Reads a part of a file; fewer bytes if the file ends before. DataError if the file does not have the given version."""

    def size(self, path: str) -> int:
        """The size of a file in bytes."""

    def stat(self, path: str) -> FileStat:
        """The size and the version of a file."""

    def exists(self, path: str) -> bool:
        """Whether there is a file of that name."""

    def write(self, path: str, data: bytes) -> None:
        """The file is there afterwards, whole; if this fails, it is not there, or what it was."""

    def create(self, path: str) -> ContextManager[BinaryIO]:
        """Opens a file to be written in pieces; it is there, whole, when the block ends, as `write` has it."""


_LOCAL = LocalFiles()


def is_remote(path: str) -> bool:
    """Whether a path begins with a scheme, such as `gs://`."""
    return bool(_SCHEME.match(path))


def any_remote(*paths: str | None) -> bool:
    """Whether any of some paths, each of which may be None, begins with a scheme."""
    return any(is_remote(path) for path in paths if path)


def files_at(path: str) -> Files:
    """The files of a file system or of a store, which read and write such a path.

    Raises:
        UserError: The scheme of the path is unknown, or a package that it takes is not installed.
    """
    if not is_remote(path):
        return _LOCAL
    from beam_pipelines.storage.object_stores.open_object_store import open_object_store  # Beam, with a cloud's client libraries

    return open_object_store(path)


# A request to an object store takes as long as some megabytes do.
_STREAM_BYTES = 8 << 20
_BLOCK_BYTES = 1 << 20


class _Stream(io.RawIOBase):
    """An object, read in ranges."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._files = files_at(path)
        self._size, self._version = self._files.stat(path)
        note_version(path, self._version)
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._position = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: memoryview) -> int:
        num_bytes = min(len(buffer), max(self._size - self._position, 0))
        data = self._files.read_range(self._path, self._position, num_bytes, self._version)
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


def open_file(path: str) -> BinaryIO:
    """Opens a file for reading from any place, with a buffer. An object must stay the same while it is read.

    Raises:
        OSError: The file cannot be opened, or is not a regular file.
    """
    if is_remote(path):
        return io.BufferedReader(_Stream(path), _STREAM_BYTES)
    file = open(path, "rb", buffering=1 << 20, opener=regular_opener)
    note_version(path, version_of(os.fstat(file.fileno())))
    return file


def input_size(path: str) -> int:
    """The size in bytes of an input file whose parts are read later by their offsets."""
    size, version = files_at(path).stat(path)
    note_version(path, version)
    return size


def read_in_any_form(read: Callable[[str], bytes], root: str, name: str) -> bytes:
    """Reads a file below a root, by its name or by the same name in the other Unicode normal form, in which the disk may have it.

    Raises:
        OSError: It cannot be read.
    """
    try:
        return read(f"{root}/{name}")
    except OSError as error:
        others = {unicodedata.normalize(form, name) for form in ("NFC", "NFD")} - {name} if error.errno == errno.ENOENT else ()
        for other in sorted(others):
            with contextlib.suppress(FileNotFoundError):
                return read(f"{root}/{other}")
        raise


def read_start(root: str, name: str, num_bytes: int) -> bytes:
    """Reads the first bytes of a file below a root, as `read_in_any_form` finds it."""
    return read_in_any_form(lambda path: files_at(path).read_range(path, 0, num_bytes), root, name)


def make_folder(path: str) -> None:
    """Makes a folder, but not what it should lie in. An object store has none."""
    if not is_remote(path):
        with contextlib.suppress(FileExistsError):
            os.mkdir(path)


def make_place(directory: str, name: str) -> str:
    """The path of a file below a directory. Its folders are made, but not the directory: that may be gone with its run."""
    for end, character in enumerate(name):
        if character == "/":
            make_folder(f"{directory}/{name[:end]}")
    return f"{directory}/{name}"


def write_file(path: str, data: bytes) -> None:
    """Writes a file whole, or raises StorageError: the disk is full, say."""
    try:
        files_at(path).write(path, data)
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(f"{os.path.basename(path)} could not be written: {error.strerror or error}", path) from error


def write_pieces(path: str, pieces: Iterable[bytes]) -> int:
    """Writes a file whole that comes in pieces, of which some are in memory at a time, and returns its size.

    Raises:
        StorageError: It could not be written.
    """
    num_bytes = 0
    try:
        with files_at(path).create(path) as file:
            for block in _blocks(pieces):
                num_bytes += len(block)
                view = memoryview(block)
                while view:
                    view = view[file.write(view) :]
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(f"{os.path.basename(path)} could not be written: {error.strerror or error}") from error
    return num_bytes


def _blocks(pieces: Iterable[bytes]) -> Iterator[bytes]:
    waiting: list[bytes] = []
    num_bytes = 0
    for piece in pieces:
        waiting.append(piece)
        num_bytes += len(piece)
        if num_bytes >= _BLOCK_BYTES:
            yield b"".join(waiting)
            waiting, num_bytes = [], 0
    yield b"".join(waiting)
