"""Reads files on disks past the system's cache.

What a file is checked by should be what the disk has, and not what the system remembers of it. It is faster too, since the cache's pages cost
more than the disk's reads, and what others have in the cache stays there.
"""

import errno
import io
import mmap
import os
from concurrent.futures import Future, ThreadPoolExecutor
from typing import BinaryIO

from beam_pipelines.storage.files import is_remote, open_file

_BLOCK_BYTES = 1 << 22
# No more than a record has, as they are mostly: the rest of one goes from the block to where it is wanted.
_BUFFER_BYTES = 1 << 15


def open_direct(path: str) -> BinaryIO:
    """Opens a file to be read from its beginning to its end; from the cache where the file system, or the place, has no other way.

    Raises:
        OSError: It can't be read.
    """
    if is_remote(path) or not hasattr(os, "O_DIRECT"):  # as on macOS
        return open_file(path)
    try:
        return io.BufferedReader(_DirectFile(path), _BUFFER_BYTES)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return open_file(path)


class _DirectFile(io.RawIOBase):
    """A file in blocks, of which the next one is read while this one is used up."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
        self._size = os.fstat(self._descriptor).st_size
        self._position = 0
        self._buffers = [memoryview(mmap.mmap(-1, _BLOCK_BYTES)) for _ in range(2)]  # at a page's beginning, as is asked for
        self._reader = ThreadPoolExecutor(1)
        try:
            self._number, self._block = 0, self._read_block(0)
        except OSError:
            self.close()
            raise
        self._next: Future[memoryview] = self._reader.submit(self._read_block, 1)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._position = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        return self._position

    def readinto(self, buffer: memoryview) -> int:
        number, start = divmod(self._position, _BLOCK_BYTES)
        if number != self._number:
            following = self._next if number == self._number + 1 else self._reader.submit(self._read_block, number)
            self._number, self._block = number, following.result()
            self._next = self._reader.submit(self._read_block, number + 1)
        found = self._block[start : start + len(buffer)]
        buffer[: len(found)] = found
        self._position += len(found)
        return len(found)

    def close(self) -> None:
        if not self.closed:
            self._reader.shutdown()
            os.close(self._descriptor)
        super().close()

    def _read_block(self, number: int) -> memoryview:
        """A block, until the next but one is read."""
        buffer, num_bytes = self._buffers[number % 2], 0
        while num_bytes < _BLOCK_BYTES:
            num_read = os.preadv(self._descriptor, [buffer[num_bytes:]], number * _BLOCK_BYTES + num_bytes)
            num_bytes += num_read
            if not num_read or num_read % mmap.PAGESIZE:  # the end
                break
        return buffer[:num_bytes]
