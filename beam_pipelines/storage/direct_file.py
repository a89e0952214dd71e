"""Reads local files with direct I/O, which bypasses the page cache.

Direct I/O is useful for verifying files, because it reads the bytes on the disk instead of cached bytes. For large
files, it is also faster than buffered reads, and does not evict other files from the page cache.
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
_NUM_AHEAD = 4  # Number of blocks to read ahead, so that the disk is busy while the process works.
# Errors of file systems that do not support direct I/O, or not at a certain offset.
_UNSUPPORTED = (errno.EINVAL, errno.EOPNOTSUPP)
# Smaller than most records, so that most bytes are copied only once, from the block to the caller.
_BUFFER_BYTES = 1 << 15


def open_direct(path: str) -> BinaryIO:
    """Opens a file for sequential reading with direct I/O. If direct I/O is not supported, the page cache is used.

    Raises:
        OSError: The file cannot be opened.
    """
    if is_remote(path) or not hasattr(os, "O_DIRECT"):  # For example, on macOS.
        return open_file(path)
    try:
        descriptor, _ = open_regular(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
        return io.BufferedReader(_DirectFile(descriptor), _BUFFER_BYTES)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
    except RuntimeError:  # No thread could be started.
        pass
    return open_file(path)


class _DirectFile(io.RawIOBase):
    """Reads a file in blocks, while a thread reads the next blocks ahead.

    Args:
        descriptor: The descriptor of the open file, which is closed together with this object.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._reader = descriptor, ThreadPoolExecutor(1)
        try:
            self._size, self._position = os.fstat(descriptor).st_size, 0
            self._num_blocks = -(-self._size // _BLOCK_BYTES)
            num_buffers = max(1, min(self._num_blocks, 1 + _NUM_AHEAD))
            self._buffers = [memoryview(mmap.mmap(-1, _BLOCK_BYTES)) for _ in range(num_buffers)]  # Aligned to pages.
            self._number, self._block = -1, self._buffers[0][:0]
            self._following: deque[Future[memoryview]] = deque()  # Reads of the next blocks.
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
                self._drop_block()
                self._number = number - 1
                self._read_ahead()
            following, self._number = self._following.popleft(), number
            try:
                self._block = following.result()
            except OSError:  # Also discards the blocks that were read ahead.
                self._drop_block()
                raise
            self._read_ahead()
        data = self._block[start : start + len(buffer)]
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

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

    def _drop_block(self) -> None:
        """Discards the current block, and stops reading ahead."""
        self._number = -2
        while self._following:
            self._following.popleft().cancel()

    def _read_block(self, number: int) -> memoryview:
        """Reads a block into one of several reused buffers."""
        start, num_bytes = number * _BLOCK_BYTES, 0
        size = max(0, min(_BLOCK_BYTES, self._size - start))
        buffer = self._buffers[number % len(self._buffers)]
        while num_bytes < size:
            try:
                num_read = os.preadv(self._descriptor, [buffer[num_bytes:]], start + num_bytes)
            except OSError as error:
                if error.errno not in _UNSUPPORTED or not self._leave_direct():
                    raise
                continue
            if not num_read:  # The file was truncated.
                break
            num_bytes += num_read
        return buffer[:num_bytes]

    def _leave_direct(self) -> bool:
        """Disables direct I/O, for example at an unaligned offset. Returns False if it was already disabled."""
        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
        fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags & ~os.O_DIRECT)
        return bool(flags & os.O_DIRECT)
