"""Large images are decoded one at a time, whatever the number of processes and threads: each takes up to a gigabyte meanwhile."""

import contextlib
import fcntl
import os
import tempfile
from typing import Iterator

# Pixels of an image that is large: 64 MiB with the four bytes that Pillow takes for each.
LARGE_PIXELS = 1 << 24


@contextlib.contextmanager
def in_turn(num_pixels: int) -> Iterator[None]:
    """Waits until no other process or thread of this user decodes a large image on this machine; not at all for a small one."""
    if num_pixels <= LARGE_PIXELS:
        yield
        return
    path = os.path.join(tempfile.gettempdir(), f"recordmill-large-image-{os.getuid()}.lock")
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of this opening, and so between threads too
        yield
    finally:
        os.close(lock)
