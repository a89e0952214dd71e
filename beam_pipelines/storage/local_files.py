"""Files of a file system, on one machine or shared by several."""

import contextlib
import errno
import os
import stat
import uuid
from typing import BinaryIO, Iterator

from beam_pipelines.storage import MAX_FILE_BYTES

# How the name of a file ends that is not whole yet. An attempt that was killed leaves one.
TEMPORARY = ".tmp"

# That a path leads nowhere, or not where we may look.
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EACCES, errno.EPERM)


# A file of fewer is read without asking for its size, where the one before was as small.
_SMALL_BYTES = 1 << 14


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


class LocalFiles:
    """A file system, on one machine or shared by several. Its methods are those of `Files`."""

    _was_small = False  # the last file that was read

    def read(self, path: str) -> bytes:
        # As few system calls, and as cheap ones, as it takes: on tiny images they are a third of the work.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if self._was_small:
                data = os.pread(descriptor, _SMALL_BYTES, 0)
                if len(data) < _SMALL_BYTES and not os.pread(descriptor, 1, len(data)):
                    return data
            size = os.fstat(descriptor).st_size
            self._was_small = size < _SMALL_BYTES
            if size > MAX_FILE_BYTES:
                raise OSError(errno.EFBIG, f"{size} bytes; expected at most {MAX_FILE_BYTES}", path)
            return read_at(descriptor, max(size, 1), 0)  # some files do not tell their size
        finally:
            os.close(descriptor)

    def read_range(self, path: str, offset: int, num_bytes: int) -> bytes:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return read_at(descriptor, num_bytes, offset)
        finally:
            os.close(descriptor)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

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
