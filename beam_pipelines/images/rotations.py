"""Limits memory: only one process or thread at a time decodes a large image, which can need 1 GB."""

import contextlib
import fcntl
import os
import tempfile
from typing import Iterator

# Images with more pixels are large. Pillow uses 4 bytes per pixel, which makes 64 MiB.
LARGE_PIXELS = 1 << 24


@contextlib.contextmanager
def in_turn(num_pixels: int) -> Iterator[None]:
    """Context manager that waits until no other process or thread of this user decodes a large image.

    For small images, it does not wait.
    """
    if num_pixels <= LARGE_PIXELS:
        yield
        return
    path = os.path.join(tempfile.gettempdir(), f"recordmill-large-image-{os.getuid()}.lock")
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # Each open file has its own lock, so threads exclude each other, too.
        yield
    finally:
        os.close(lock)
