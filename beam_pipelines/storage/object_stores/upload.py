"""Writes large objects in chunks."""

import abc
import contextlib
from typing import Any, Callable

import obstore
from obstore.exceptions import BaseError

from beam_pipelines.storage.object_stores.retries import Transient, split_path

# Object stores require chunks of at least 5 MiB and a multiple of 256 KiB, and allow at most 10,000 chunks.
CHUNK_BYTES = 16 << 20


class Upload(abc.ABC):
    """A large object that is being written. An object that fits into one chunk is written with a single request."""

    def __init__(self, store: Any, path: str) -> None:
        self.store, self.path = store, path
        self.num_bytes = 0  # Of all chunks that were sent.
        self._buffer = bytearray()

    @abc.abstractmethod
    def send(self, chunk: bytes, is_last: bool) -> None:
        """Sends a chunk. After the last chunk, the object exists."""

    @abc.abstractmethod
    def abandon(self, error: BaseException) -> None:
        """Removes the chunks that have been sent."""

    def write(self, data: bytes) -> int:
        view = memoryview(data)
        for start in range(0, len(view), CHUNK_BYTES):
            self._buffer += view[start : start + CHUNK_BYTES]
            if len(self._buffer) > CHUNK_BYTES:  # Keeps at least a byte for the last chunk.
                self._send(is_last=False)
        return len(view)

    def finish(self) -> None:
        """Sends the remaining bytes. Afterwards, the object exists."""
        if not self.num_bytes:
            self.store.write(self.path, bytes(self._buffer))
            return
        try:
            self._send(is_last=True)
        except (FileNotFoundError, Transient):  # An attempt may have succeeded, although its response was lost.
            if not (self.store.exists(self.path) and self.store.size(self.path) == self.num_bytes):
                raise

    def _send(self, is_last: bool) -> None:
        chunk = bytes(self._buffer[:CHUNK_BYTES])
        del self._buffer[:CHUNK_BYTES]
        self.num_bytes += len(chunk)
        self.send(chunk, is_last)


class ObstoreUpload(Upload):
    """An upload with obstore."""

    _writer: Any = None
    _has_failed = False

    def send(self, chunk: bytes, is_last: bool) -> None:
        if self._writer is None:
            bucket, key = split_path(self.path)
            self._writer = obstore.open_writer(self.store.patient_client(bucket), key, buffer_size=CHUNK_BYTES, max_concurrency=1)
        self._call(self._writer.write, chunk)
        if is_last:
            self._call(self._writer.close)

    def abandon(self, error: BaseException) -> None:
        if self._writer is not None and not self._has_failed:  # After a failure, obstore would wait for the store again.
            with contextlib.suppress(BaseError, OSError):  # The store deletes old uploads itself.
                self._writer.__exit__(type(error), error, None)

    def _call(self, send: Callable, *data: bytes) -> None:
        self._has_failed = True
        self.store.call(self.path, lambda *_: send(*data), patience=0.0)
        self._has_failed = False
