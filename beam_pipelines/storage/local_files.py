"""Files of a file system, on one machine or shared by several."""

import contextlib
import errno
import os
import stat
import uuid
from typing import BinaryIO, Iterator

from beam_pipelines.storage import MAX_FILE_BYTES
from beam_pipelines.storage.versions import FileStat, changed_error

# How the name of a file ends that is not whole yet. An attempt that was killed leaves one.
TEMPORARY = ".tmp"

# That a path leads nowhere, or not where we may look.
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EACCES, errno.EPERM)


_BLOCK_BYTES = 1 << 20
_KINDS = ((stat.S_ISFIFO, "a named pipe"), (stat.S_ISSOCK, "a socket"), (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"))


def open_regular(path: str, flags: int = os.O_RDONLY | os.O_CLOEXEC) -> tuple[int, os.stat_result]:
    """Opens a regular file for reading: its descriptor and what `os.fstat` says. Reading a pipe or a device might never end.

    Raises:
        OSError: There is no such file, or it is not a regular file.
    """
    descriptor = os.open(path, flags | os.O_NONBLOCK)  # opening a pipe without a writer would block
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode):
        return descriptor, status
    os.close(descriptor)
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    kind = next((name for is_kind, name in _KINDS if is_kind(status.st_mode)), "no file")
    raise OSError(errno.ENODEV, f"it is {kind}; expected a regular file", path)


def version_of(status: os.stat_result) -> str:
    """The version of a file on a disk: see `versions`."""
    seconds, nanoseconds = divmod(status.st_mtime_ns, 10**9)
    return f"{status.st_size} bytes, modified at {seconds}.{nanoseconds:09d}"


def read_at(descriptor: int, num_bytes: int, offset: int) -> bytes:
    """A part of an open file; fewer bytes only where the file ends. One call may give less: in FUSE, or after a signal."""
    data = os.pread(descriptor, num_bytes, offset)
    if len(data) == num_bytes or not data:
        return data
    pieces, num_read = [data], len(data)
    while num_read < num_bytes and (data := os.pread(descriptor, num_bytes - num_read, offset + num_read)):
        pieces.append(data)
        num_read += len(data)
    return b"".join(pieces)


def _read_unsized(descriptor: int, path: str) -> bytes:
    """Reads a file that reports the size 0: it is empty, or its file system does not know sizes, as `/proc`."""
    pieces, num_bytes = [], 0
    while data := os.pread(descriptor, _BLOCK_BYTES, num_bytes):
        pieces.append(data)
        num_bytes += len(data)
        if num_bytes > MAX_FILE_BYTES:
            raise OSError(errno.EFBIG, f"more than {MAX_FILE_BYTES} bytes; expected fewer", path)
    return b"".join(pieces)


class LocalFiles:
    """A file system, on one machine or shared by several. Its methods are those of `Files`."""

    def read(self, path: str) -> bytes:
        # As few system calls as possible: for tiny images they are a third of the work.
        descriptor, status = open_regular(path)
        try:
            if status.st_size > MAX_FILE_BYTES:
                raise OSError(errno.EFBIG, f"{status.st_size} bytes; expected at most {MAX_FILE_BYTES}", path)
            return read_at(descriptor, status.st_size, 0) if status.st_size else _read_unsized(descriptor, path)
        finally:
            os.close(descriptor)

    def read_range(self, path: str, offset: int, num_bytes: int, version: str | None = None) -> bytes:
        descriptor, status = open_regular(path)
        try:
            if version is not None and version != (found := version_of(status)):
                raise changed_error(path, version, found)
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
        except ValueError:  # a path with a null byte
            return False
        except OSError as error:
            if error.errno not in _ABSENT:
                raise
            return False

    def write(self, path: str, data: bytes) -> None:
        with self.create(path) as file:
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]

    @contextlib.contextmanager
    def create(self, path: str) -> Iterator[BinaryIO]:
        """Writes under a name that no other attempt uses, and renames: a retried bundle may run beside its dying twin."""
        folder, name = os.path.split(path)
        temporary = os.path.join(folder, f".{name}.{uuid.uuid4().hex}{TEMPORARY}")
        try:
            with open(temporary, "xb", buffering=0) as file:
                yield file
            os.replace(temporary, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
