"""Reads and writes files of a local or shared file system."""

import contextlib
import errno
import os
import pathlib
import shutil
import stat
import threading
import uuid
from typing import BinaryIO, Iterator, Sequence

from beam_pipelines.storage.versions import FileStat, changed_error
from tf_input.regular_files import open_regular, read_at, read_regular

# Suffix of the temporary name of an incomplete file. Killed processes leave such files behind.
TEMPORARY = ".tmp"

# The maximum number of files that a reader keeps open. By default, a process can open 1,024 files.
MAX_OPEN = 256
_BUFFER_BYTES = 1 << 20

# Errors of missing or inaccessible paths.
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EACCES, errno.EPERM)


def version_of(status: os.stat_result) -> str:
    """Returns the version of a local file (see `versions`)."""
    seconds, nanoseconds = divmod(status.st_mtime_ns, 10**9)
    return f"{status.st_size} bytes, modified at {seconds}.{nanoseconds:09d}"


class LocalFiles:
    """Reads and writes files of a local or shared file system. Implements `Files`."""

    def read(self, path: str) -> bytes:
        return read_regular(path)

    def read_range(self, path: str, offset: int, num_bytes: int, version: str | None = None) -> bytes:
        descriptor, status = open_regular(path)
        try:
            if version is not None and version != (actual := version_of(status)):
                raise changed_error(path, version, actual)
            return read_at(descriptor, num_bytes, offset)
        finally:
            os.close(descriptor)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def stat(self, path: str) -> FileStat:
        status = os.stat(path)
        return FileStat(status.st_size, version_of(status))

    def exists(self, path: str) -> bool:
        try:
            return stat.S_ISREG(os.stat(path).st_mode)
        except ValueError:  # The path has a null byte.
            return False
        except OSError as error:
            if error.errno not in _ABSENT:
                raise
            return False

    def write(self, path: str, data: bytes) -> None:
        with self.create(path) as file:
            file.write(data)

    def list(self, folder: str) -> Iterator[tuple[str, int]]:
        for parent, _, names in os.walk(folder):
            for name in names:
                path = os.path.join(parent, name)
                with contextlib.suppress(FileNotFoundError):  # The file was removed during the listing.
                    yield os.path.relpath(path, folder), os.stat(path).st_size

    def remove(self, path: str) -> None:
        pathlib.Path(path).unlink(missing_ok=True)

    def remove_all(self, folder: str, but: Sequence[str] = ()) -> None:
        with os.scandir(folder) as scan:
            entries = [entry for entry in scan if entry.name not in but]
        for entry in entries:
            shutil.rmtree(entry.path) if entry.is_dir(follow_symlinks=False) else self.remove(entry.path)

    def read_versioned(self, path: str) -> tuple[bytes, str]:
        data = self.read(path)
        return data, data.hex()  # The contents of a small file identify its version.

    def write_if(self, path: str, data: bytes, version: str | None) -> str | None:
        try:
            current = self.read_versioned(path)[1]
        except FileNotFoundError:
            current = None
        if current != version:
            return None
        self.write(path, data)
        return data.hex()

    @contextlib.contextmanager
    def create(self, path: str) -> Iterator[BinaryIO]:
        """Context manager that writes a file under a temporary name, and renames it when it is complete.

        The temporary name is unique, because two attempts at the same work may run at the same time.
        """
        folder, name = os.path.split(path)
        temporary = os.path.join(folder, f".{name}.{uuid.uuid4().hex}{TEMPORARY}")
        try:
            with open(temporary, "xb", buffering=_BUFFER_BYTES) as file:
                yield file
            os.replace(temporary, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)


def remove_temporary_files(directory: str) -> None:
    """Removes temporary files left behind by killed processes."""
    for left in pathlib.Path(directory).rglob(f".*{TEMPORARY}"):
        left.unlink(missing_ok=True)


class OpenFile:
    """An open local file, which is closed when this object is garbage-collected.

    Attributes:
        descriptor: The descriptor of the file.
    """

    def __init__(self, path: str) -> None:
        self.descriptor, _ = open_regular(path)

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):  # The file was opened.
            os.close(self.descriptor)


class OpenFiles:
    """Keeps the most recently used local files open. Several threads can use the same object.

    The object must be closed, because open files occupy the disk even after they are deleted.
    """

    def __init__(self) -> None:
        self._files: dict[str, OpenFile] = {}  # Ordered by the time of their last use.
        self._lock = threading.Lock()
        self._is_closed = False

    def open(self, path: str) -> OpenFile:
        """Returns an open file. Hold the returned object while you use its descriptor.

        Raises:
            OSError: The file cannot be opened.
            ValueError: `close` was called.
        """
        with self._lock:
            if self._is_closed:
                raise ValueError(f"{path}: the reader is closed")
            self._files[path] = file = self._files.pop(path, None) or OpenFile(path)
            if len(self._files) > MAX_OPEN:
                del self._files[next(iter(self._files))]
            return file

    def close(self) -> None:
        """Closes all files. A file that a thread is reading is closed after the read."""
        with self._lock:
            self._is_closed = True
            self._files.clear()
