"""A large object on its way into an object store."""

import abc
from typing import Callable

# Stores want multiples of 256 KiB, 5 MiB or more of them, and at most 10,000 chunks.
CHUNK_BYTES = 16 << 20


class Upload(abc.ABC):
    """A large object on its way, a chunk at a time; what fits in one chunk is written at once at the end."""

    def __init__(self, write_whole: Callable[[bytes], None]):
        self.num_bytes = 0  # sent so far
        self._write_whole = write_whole
        self._buffer = bytearray()

    def write(self, data: bytes) -> int:
        """Takes more bytes of the object, and sends them as soon as they fill a chunk; returns how many it took."""
        view = memoryview(data)
        for start in range(0, len(view), CHUNK_BYTES):
            self._buffer += view[start : start + CHUNK_BYTES]
            if len(self._buffer) > CHUNK_BYTES:  # never the last byte, so that the last chunk is not empty
                self._send_chunk(bytes(self._buffer[:CHUNK_BYTES]), is_last=False)
                del self._buffer[:CHUNK_BYTES]
        return len(view)

    def finish(self) -> None:
        """Sends what is left; the object is in the store afterwards."""
        if self.num_bytes:
            self._send_chunk(bytes(self._buffer), is_last=True)
        else:
            self._write_whole(bytes(self._buffer))

    def _send_chunk(self, chunk: bytes, is_last: bool) -> None:
        self.send(chunk, is_last)
        self.num_bytes += len(chunk)

    @abc.abstractmethod
    def send(self, chunk: bytes, is_last: bool) -> None: ...

    @abc.abstractmethod
    def abandon(self) -> None:
        """Nothing of the upload stays in the store."""
