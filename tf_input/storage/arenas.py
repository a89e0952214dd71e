"""A pool of reusable memory buffers. Allocating new memory pages takes longer than reading data into them."""

import contextlib
import mmap
import threading
from typing import NamedTuple


class ArenaSlice(NamedTuple):
    """A part of an arena.

    Attributes:
        memory: The memory of the arena. Slicing it copies bytes, which is as fast as a memory view.
        begin: The offset of the part in the memory, in bytes.
        num_bytes: The length of the part in bytes.
    """

    memory: mmap.mmap | bytes
    begin: int
    num_bytes: int

    @property
    def view(self) -> memoryview:
        """A view of the allocated memory."""
        return memoryview(self.memory)[self.begin : self.begin + self.num_bytes]


class Arena:
    """A memory buffer from which parts are allocated consecutively.

    Args:
        num_bytes: The size of the buffer in bytes. Pages that are never used take no memory.

    Attributes:
        num_bytes: The size of the buffer in bytes.
        num_touched: The maximum number of bytes that were ever allocated, which take memory.
    """

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self._memory = _map(num_bytes)
        self._taken = self.num_touched = 0
        self._lock = threading.Lock()

    def take(self, num_bytes: int) -> ArenaSlice:
        """Returns `num_bytes` bytes from the unused end of the buffer. If the buffer has too little unused space,
        allocates new memory instead."""
        with self._lock:
            begin = self._taken
            if begin + num_bytes > self.num_bytes:
                return ArenaSlice(_map(num_bytes), 0, num_bytes)
            self._taken += num_bytes
            self.num_touched = max(self.num_touched, self._taken)
        return ArenaSlice(self._memory, begin, num_bytes)

    def clear(self) -> None:
        """Frees all parts."""
        self._taken = 0


# Unused arenas, the most recently returned last. All iterations of all splits in the process share them, because
# allocating memory for each iteration would take a quarter of the reading time of tiny records.
_free: list[Arena] = []
_MAX_FREE_BYTES = 384 << 20  # enough for the windows of the default `read_buffer`


def borrow_arena(num_bytes: int) -> Arena:
    """Returns an unused arena of one to two times the requested size, or allocates a new arena."""
    for arena in sorted(_free, key=lambda item: item.num_bytes):
        if num_bytes <= arena.num_bytes <= 2 * num_bytes:
            with contextlib.suppress(ValueError):  # another thread has taken the arena
                _free.remove(arena)
                return arena
    _free_space(num_bytes)
    return Arena(num_bytes + num_bytes // 2)  # the next window may be somewhat larger


def return_arena(arena: Arena) -> None:
    """Returns an arena to the pool. All threads must have stopped writing to the arena before this call."""
    arena.clear()
    _free.append(arena)
    _free_space(0)


def release_arenas() -> None:
    """Releases all unused arenas."""
    _free.clear()


def _free_space(num_bytes: int) -> None:
    """Frees the oldest unused arenas until the pool has space for `num_bytes` additional bytes."""
    while _free and sum(item.num_touched for item in list(_free)) + num_bytes > _MAX_FREE_BYTES:
        with contextlib.suppress(IndexError):  # another thread has emptied the pool
            _free.pop(0)


def _map(num_bytes: int) -> mmap.mmap:
    """Allocates memory that is not shared with forked processes, with huge pages if the system supports them."""
    memory = mmap.mmap(-1, max(1, num_bytes), access=mmap.ACCESS_COPY)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
