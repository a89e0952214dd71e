"""Memory that was freed is used again, though TensorFlow has it given back.

From Python 3.11 on, an iterator over a generator has malloc ask the system for each piece of 128 KiB or more, in the whole process, and
give it back as it is freed (`ApplyPython311MemoryPatch`, by `mallopt`). So each large record, and whatever it is decoded to, has fresh
pages, which is a fourth of the time that photographs of 2000 pixels take.
"""

import ctypes
import os
import sys

_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1  # of malloc.h
_NUM_BYTES = 4 << 20  # larger pieces, such as windows, are still given back


def keep_freed_memory() -> None:
    """Lets malloc keep pieces of less than 4 MiB for the next ones; what the environment says of them holds. To be called once there is an
    iterator over a generator. Does nothing where there is no `mallopt`: beside Linux, and in some C libraries of that."""
    if mallopt := sys.platform == "linux" and getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(_MMAP_THRESHOLD, _given("MALLOC_MMAP_THRESHOLD_", _NUM_BYTES))
        mallopt(_TRIM_THRESHOLD, _given("MALLOC_TRIM_THRESHOLD_", 2 * _NUM_BYTES))


def _given(name: str, default: int) -> int:
    value = os.environ.get(name, "")
    return int(value) if value.isdecimal() else default
