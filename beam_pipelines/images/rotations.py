"""Limits memory use by decoding only one large image at a time, because decoding can need 1 GB."""

import contextlib
import fcntl
import os
import tempfile
from typing import Iterator

# Images with more pixels are large. At this size, Pillow needs 64 MiB (4 bytes per pixel).
LARGE_PIXELS = 1 << 24


@contextlib.contextmanager
def in_turn(num_pixels: int) -> Iterator[None]:
    """Context manager that waits until no other process or thread of this user decodes a large image. A small image is
    decoded without waiting."""
    if num_pixels <= LARGE_PIXELS:
        yield
        return
    path = os.path.join(tempfile.gettempdir(), f"recordmill-large-image-{os.getuid()}.lock")
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # Threads also exclude each other, because each of them opens the file.
        yield
    finally:
        os.close(lock)
