"""Reads files on disks past the system's cache.

What a file is checked by should be what the disk has, and not what the system remembers of it. It is faster too, since the cache's pages
cost more than the disk's reads, and what others have in the cache stays there.
"""

import errno
import fcntl
import io
import mmap
import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import BinaryIO

from beam_pipelines.storage.files import is_remote, open_file
from tf_input.regular_files import open_regular

_BLOCK_BYTES = 1 << 21
_NUM_AHEAD = 4  # blocks: so the disk has work while a process looks at what was read, or ends with one file and begins with the next
# What a file system says that has no such way, or not for what lies at such a place.
_REFUSED = (errno.EINVAL, errno.EOPNOTSUPP)
# No more than a record has, as they are mostly: the rest of one goes from the block to where it is wanted.
_BUFFER_BYTES = 1 << 15


def open_direct(path: str) -> BinaryIO:
    """Opens a file to be read from its beginning to its end; through the cache where the file system, or the place, has no other way.

    Raises:
        OSError: It can't be opened.
    """
    if is_remote(path) or not hasattr(os, "O_DIRECT"):  # as on macOS
        return open_file(path)
    try:
        descriptor, _ = open_regular(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
        return io.BufferedReader(_DirectFile(descriptor), _BUFFER_BYTES)
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
    except RuntimeError:  # no thread is to be had
        pass
    return open_file(path)


class _DirectFile(io.RawIOBase):
    """A file in blocks, of which the next ones are read while this one is used up.

    Args:
        descriptor: An open file, which is closed with this one.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._reader = descriptor, ThreadPoolExecutor(1)
        try:
            self._size, self._position = os.fstat(descriptor).st_size, 0
            self._num_blocks = -(-self._size // _BLOCK_BYTES)
            num_buffers = max(1, min(self._num_blocks, 1 + _NUM_AHEAD))
            self._buffers = [memoryview(mmap.mmap(-1, _BLOCK_BYTES)) for _ in range(num_buffers)]  # at a page's beginning, as is asked for
            self._number, self._block = -1, self._buffers[0][:0]
            self._following: deque[Future[memoryview]] = deque()  # what is being read of those behind it
            self._read_ahead()
        except BaseException:
            self.close()
            raise

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
        if number >= self._num_blocks:
            return 0
        if number != self._number:
            if number != self._number + 1:
                self._let_go()
                self._number = number - 1
                self._read_ahead()
            following, self._number = self._following.popleft(), number
            try:
                self._block = following.result()
            except OSError:  # neither this nor what is behind it is there
                self._let_go()
                raise
            self._read_ahead()
        found = self._block[start : start + len(buffer)]
        buffer[: len(found)] = found
        self._position += len(found)
        return len(found)

    def close(self) -> None:
        if self.closed:
            return
        try:
            self._reader.shutdown(cancel_futures=True)
            os.close(self._descriptor)
        finally:
            super().close()

    def _read_ahead(self) -> None:
        last = min(self._number + _NUM_AHEAD, self._num_blocks - 1)
        for number in range(self._number + 1 + len(self._following), last + 1):
            self._following.append(self._reader.submit(self._read_block, number))

    def _let_go(self) -> None:
        """Forgets the block, and what is being read of those behind it."""
        self._number = -2
        while self._following:
            self._following.popleft().cancel()

    def _read_block(self, number: int) -> memoryview:
        """A block, which is there until all those that are read ahead of it are."""
        start, num_bytes = number * _BLOCK_BYTES, 0
        size = max(0, min(_BLOCK_BYTES, self._size - start))
        buffer = self._buffers[number % len(self._buffers)]
        while num_bytes < size:
            try:
                num_read = os.preadv(self._descriptor, [buffer[num_bytes:]], start + num_bytes)
            except OSError as error:
                if error.errno not in _REFUSED or not self._leave_direct():
                    raise
                continue
            if not num_read:  # it is shorter than it was
                break
            num_bytes += num_read
        return buffer[:num_bytes]

    def _leave_direct(self) -> bool:
        """Reads on through the cache: after what was read a place is no multiple of what is asked for, say. False where it did so already.
        """
        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
        fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags & ~os.O_DIRECT)
        return bool(flags & os.O_DIRECT)
