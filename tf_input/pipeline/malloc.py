"""Makes malloc reuse freed memory, although TensorFlow makes it return memory to the system.

From Python 3.11 on, an iterator over a generator makes malloc request each block of 128 KiB or more from the system, in
the whole process, and return it when it is freed (`ApplyPython311MemoryPatch`, with `mallopt`). Therefore each large
record and each decoded image gets new memory pages, which is a fourth of the time for photos of 2000 pixels.
"""

import ctypes
import os
import sys

_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1  # constants of malloc.h
_NUM_BYTES = 4 << 20  # larger blocks, such as windows, are still returned


def keep_freed_memory() -> None:
    """Makes malloc keep freed blocks of less than 4 MiB, unless environment variables set other limits.

    Call it after the first iterator over a generator exists. It has no effect without `mallopt`: outside Linux, and
    with some C libraries.
    """
    if mallopt := sys.platform == "linux" and getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(_MMAP_THRESHOLD, _given("MALLOC_MMAP_THRESHOLD_", _NUM_BYTES))
        mallopt(_TRIM_THRESHOLD, _given("MALLOC_TRIM_THRESHOLD_", 2 * _NUM_BYTES))


def _given(name: str, default: int) -> int:
    value = os.environ.get(name, "")
    return int(value) if value.isdecimal() else default
