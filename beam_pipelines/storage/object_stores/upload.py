"""Writes large objects in chunks, with obstore."""

import contextlib
from typing import Any, Callable

import obstore
from obstore.exceptions import BaseError

from beam_pipelines.storage.object_stores.retries import Transient, split_path

# Object stores require chunks of at least 5 MiB and a multiple of 256 KiB, and allow at most 10,000 chunks.
CHUNK_BYTES = 16 << 20


class Upload:
    """A large object that is being written. An object that fits into one chunk is written with a single request."""

    def __init__(self, store: Any, path: str) -> None:
        self._store, self._path = store, path
        self._first, self._writer = bytearray(), None
        self._num_bytes, self._has_failed = 0, False

    def write(self, data: bytes) -> int:
        self._num_bytes += len(data)
        if self._writer is None and self._num_bytes <= CHUNK_BYTES:
            self._first += data
            return len(data)
        if self._writer is None:
            bucket, key = split_path(self._path)
            self._writer = obstore.open_writer(self._store.patient_client(bucket), key, buffer_size=CHUNK_BYTES, max_concurrency=1)
            self._send(self._writer.write, self._first)
        self._send(self._writer.write, data)
        return len(data)

    def finish(self) -> None:
        """Sends the remaining bytes. Afterwards, the object exists."""
        if self._writer is None:
            self._store.write(self._path, bytes(self._first))
            return
        try:
            self._send(self._writer.close)
        except (FileNotFoundError, Transient):  # An attempt may have succeeded, although its response was lost.
            if not (self._store.exists(self._path) and self._store.size(self._path) == self._num_bytes):
                raise

    def abandon(self, error: BaseException) -> None:
        """Removes the chunks that have been sent."""
        if self._writer is not None and not self._has_failed:  # After a failure, obstore would wait for the store again.
            with contextlib.suppress(BaseError, OSError):  # The store deletes old uploads itself.
                self._writer.__exit__(type(error), error, None)

    def _send(self, send: Callable, *data: bytes) -> None:
        self._has_failed = True
        self._store.call(self._path, lambda *_: send(*data), patience=0.0)
        self._has_failed = False
