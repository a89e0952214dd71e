"""Defines the base class of uploads of large objects."""

import abc
from typing import Callable

# Object stores require chunks of at least 5 MiB and a multiple of 256 KiB, and allow at most 10,000 chunks.
CHUNK_BYTES = 16 << 20


class Upload(abc.ABC):
    """An upload of a large object in chunks.

    An object that fits into a single chunk is written at the end.
    """

    def __init__(self, write_entire: Callable[[bytes], None]):
        self.num_bytes = 0  # The number of bytes that have been sent.
        self._write_entire = write_entire
        self._buffer = bytearray()

    def write(self, data: bytes) -> int:
        """Buffers bytes and sends full chunks to the store. Returns the number of bytes in `data`."""
        view = memoryview(data)
        for start in range(0, len(view), CHUNK_BYTES):
            self._buffer += view[start : start + CHUNK_BYTES]
            if len(self._buffer) > CHUNK_BYTES:  # Keeps at least a byte for the last chunk.
                self._send_chunk(bytes(self._buffer[:CHUNK_BYTES]), is_last=False)
                del self._buffer[:CHUNK_BYTES]
        return len(view)

    def finish(self) -> None:
        """Sends the remaining bytes. Afterwards, the object exists."""
        if self.num_bytes:
            self._send_chunk(bytes(self._buffer), is_last=True)
        else:
            self._write_entire(bytes(self._buffer))

    def _send_chunk(self, chunk: bytes, is_last: bool) -> None:
        self.send(chunk, is_last)
        self.num_bytes += len(chunk)

    @abc.abstractmethod
    def send(self, chunk: bytes, is_last: bool) -> None: ...

    @abc.abstractmethod
    def abandon(self) -> None:
        """Aborts the upload and removes the chunks that have been sent."""
