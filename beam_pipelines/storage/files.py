"""Reads and writes local files, and objects in `gs://` and `s3://`.

Paths are strings with `/` as the separator on all systems. All failures raise an `OSError`.
"""

import contextlib
import errno
import functools
import importlib
import io
import os
import re
import threading
import unicodedata
from typing import BinaryIO, Callable, ContextManager, Iterable, Iterator, Protocol, Sequence

from beam_pipelines.errors import StorageError, UserError, printable
from beam_pipelines.storage.local_files import LocalFiles, version_of
from beam_pipelines.storage.object_stores.store_options import StoreOptions, current_options
from beam_pipelines.storage.versions import FileStat, note_version
from tf_input.regular_files import regular_opener
from tf_input.storage.paths import scheme_of

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


class Files(Protocol):
    """Reads and writes files in a file system, or objects in an object store."""

    def read(self, path: str) -> bytes:
        """Reads a whole file. Raises `OSError` if it is larger than `MAX_FILE_BYTES`."""

    def read_range(self, path: str, offset: int, num_bytes: int, version: str | None = None) -> bytes:
        """Reads a part of a file. Returns fewer bytes if the file ends within the requested range.

        Raises:
            DataError: The file has another version than the given one.
        """

    def size(self, path: str) -> int:
        """Returns the size of a file in bytes."""

    def stat(self, path: str) -> FileStat:
        """Returns the size and the version of a file. The version of an object is its ETag or its generation."""

    def exists(self, path: str) -> bool:
        """Returns whether a file exists."""

    def write(self, path: str, data: bytes) -> None:
        """Writes a file atomically. If writing fails, an existing file is not changed."""

    def list(self, folder: str) -> Iterator[tuple[str, int]]:
        """Yields the relative path and the size in bytes of each file below a folder. A missing folder has no files."""

    def remove(self, path: str) -> None:
        """Removes a file if it exists."""

    def remove_all(self, folder: str, but: Sequence[str] = ()) -> None:
        """Removes all files below a folder, except the files in `but`, which are directly in the folder."""

    def read_versioned(self, path: str) -> tuple[bytes, str]:
        """Reads a whole file. Returns its bytes and a version that `write_if` accepts.

        Raises:
            FileNotFoundError: The file does not exist.
        """

    def write_if(self, path: str, data: bytes, version: str | None) -> str | None:
        """Writes a file atomically, unless another writer has changed it.

        On a disk, the caller must lock the directory.

        Args:
            path: The path of the file.
            data: The new contents. They must be unique, for example contain an ID, so that a writer whose response was
                lost recognizes its own write.
            version: The version to replace. None if the file must not exist.

        Returns:
            The new version, or None if another writer was faster and nothing was written.

        Raises:
            OSError: The request failed, or the store does not support conditional writes.
        """

    def create(self, path: str) -> ContextManager[BinaryIO]:
        """Context manager for writing a file in parts. After the block, the complete file is created atomically.

        Each call of `write` writes all of its bytes.
        """


_LOCAL = LocalFiles()


def is_remote(path: str) -> bool:
    """Returns whether a path begins with a scheme, such as `gs://`."""
    return bool(_SCHEME.match(path))


def any_remote(*paths: str | None) -> bool:
    """Returns whether any of the paths begins with a scheme, such as `gs://`. None is ignored."""
    return any(is_remote(path) for path in paths if path)


def files_at(path: str) -> Files:
    """Returns the `Files` object that reads and writes the file or object at a path.

    Raises:
        UserError: The scheme of the path is unknown, its package is not installed, or an option is invalid.
    """
    if not is_remote(path):
        return _LOCAL
    if (scheme := scheme_of(path)) not in _STORES:
        schemes = "gs://, s3://, az:// or https://"
        raise UserError(f"{printable(path)}: unsupported URL. Give a local path, or a URL that begins with {schemes}.")
    with _opening:
        return _open_store(scheme, current_options())


# Scheme -> the module and the class in the package `object_stores`, and the extra with their dependencies.
_STORES = {
    "gs": ("gcs", "GcsStore", "gcp"),
    **dict.fromkeys(("s3", "s3a"), ("s3", "S3Store", "aws")),
    **dict.fromkeys(("az", "azure", "adl", "abfs", "abfss"), ("object_store", "ObjectStore", "azure")),
    **dict.fromkeys(("http", "https"), ("object_store", "ObjectStore", "remote")),
}
_opening = threading.Lock()


@functools.lru_cache(maxsize=16)
def _open_store(scheme: str, options: StoreOptions) -> Files:
    """Returns the object store for a scheme, which all threads of this process share."""
    module, name, extra = _STORES[scheme]
    try:
        return getattr(importlib.import_module(f"beam_pipelines.storage.object_stores.{module}"), name)(scheme, options)
    except ImportError as error:
        raise UserError(f"{scheme}://: {error.name} is not installed. Run: pip install 'recordmill[{extra}]'") from None


# Large buffers, because the latency of a request equals the time for transferring several megabytes.
_STREAM_BYTES = 8 << 20


class _Stream(io.RawIOBase):
    """A seekable stream that reads byte ranges of an object."""

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
    """Opens a seekable, buffered file for reading. Reading fails if an object has changed since it was opened.

    Raises:
        OSError: The file cannot be opened, or is not a regular file.
    """
    if is_remote(path):
        return io.BufferedReader(_Stream(path), _STREAM_BYTES)
    file = open(path, "rb", buffering=1 << 20, opener=regular_opener)
    note_version(path, version_of(os.fstat(file.fileno())))
    return file


def input_size(path: str) -> int:
    """Returns the size of an input file in bytes and records its version, so that later changes are detected."""
    size, version = files_at(path).stat(path)
    note_version(path, version)
    return size


def read_in_any_form(read: Callable[[str], bytes], root: str, name: str) -> bytes:
    """Reads a file in a folder by its name. If it does not exist, the NFC and NFD forms of the name are tried.

    Raises:
        OSError: The file cannot be read.
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
    """Reads the first bytes of a file in a folder. The name can have any Unicode normal form."""
    return read_in_any_form(lambda path: files_at(path).read_range(path, 0, num_bytes), root, name)


def make_folder(path: str) -> None:
    """Creates a folder, but not its parents. Does nothing in object stores, because they have no folders."""
    if not is_remote(path):
        with contextlib.suppress(FileExistsError):
            os.mkdir(path)


def make_parent_folders(directory: str, name: str) -> str:
    """Returns the path of a file in a directory and creates missing subfolders.

    A missing directory is not created, because the run may have ended and removed it.
    """
    for end, character in enumerate(name):
        if character == "/":
            make_folder(f"{directory}/{name[:end]}")
    return f"{directory}/{name}"


def write_file(path: str, data: bytes) -> None:
    """Writes a file atomically. Raises `StorageError` if writing fails, for example because the disk is full."""
    write_chunks(path, [data])


def write_chunks(path: str, chunks: Iterable[bytes]) -> int:
    """Writes a file atomically from chunks of bytes. Returns its size in bytes.

    Raises:
        StorageError: Writing failed.
    """
    try:
        with files_at(path).create(path) as file:
            return sum(map(file.write, chunks))
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(f"{os.path.basename(path)} could not be written: {error.strerror or error}", path) from error
