"""Memory that is used again: to ask the system for fresh pages takes longer than to read into them."""

import contextlib
import mmap
import threading
from typing import NamedTuple


class Piece(NamedTuple):
    """A part of an arena.

    Attributes:
        memory: The memory that it is a part of. Parts of that are bytes, copied at once: the view of each would take as long as its copy.
        begin: The place in the memory where the part begins.
        num_bytes: The length of the part, in bytes.
    """

    memory: mmap.mmap | bytes
    begin: int
    num_bytes: int

    @property
    def view(self) -> memoryview:
        """It as it lies there."""
        return memoryview(self.memory)[self.begin : self.begin + self.num_bytes]


class Arena:
    """A piece of memory, of which parts are taken one after the other.

    Args:
        num_bytes: How much it is. What is not touched takes no memory.

    Attributes:
        num_bytes: How much it is.
        num_touched: How much of it was taken at most, and so takes memory.
    """

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self._memory = _map(num_bytes)
        self._taken = self.num_touched = 0
        self._lock = threading.Lock()

    def take(self, num_bytes: int) -> Piece:
        """So many bytes that nobody else has; fresh ones if there are none left."""
        with self._lock:
            begin = self._taken
            if begin + num_bytes > self.num_bytes:
                return Piece(_map(num_bytes), 0, num_bytes)
            self._taken += num_bytes
            self.num_touched = max(self.num_touched, self._taken)
        return Piece(self._memory, begin, num_bytes)

    def clear(self) -> None:
        """All that was taken is free again."""
        self._taken = 0


# Arenas that wait to be used again, the last one at the end. They are the process's, as passes follow each other, of one split or another, and
# what a pass has read into would else go back to the system and be asked of it again: of tiny records that is a fourth of the time.
_free: list[Arena] = []
_MAX_FREE_BYTES = 384 << 20  # as much as the windows of a `read_buffer` that nobody has set, with an epoch's first ones, which are smaller


def borrow_arena(num_bytes: int) -> Arena:
    """One that is large enough, and not much larger."""
    for arena in sorted(_free, key=lambda one: one.num_bytes):
        if num_bytes <= arena.num_bytes <= 2 * num_bytes:
            with contextlib.suppress(ValueError):  # another thread was first
                _free.remove(arena)
                return arena
    _make_room(num_bytes)
    return Arena(num_bytes + num_bytes // 2)  # for the next ones, which may be somewhat larger


def return_arena(arena: Arena) -> None:
    """Takes one back, into which nobody reads any more."""
    arena.clear()
    _free.append(arena)
    _make_room(0)


def _make_room(num_bytes: int) -> None:
    """Lets go of those that have waited longest, where with so many bytes there would be too many."""
    while _free and sum(one.num_touched for one in list(_free)) + num_bytes > _MAX_FREE_BYTES:
        with contextlib.suppress(IndexError):  # another thread was first
            _free.pop(0)


def _map(num_bytes: int) -> mmap.mmap:
    """Fresh memory, not shared with processes that are forked off; in large pages, which take less time to fill, where there are some."""
    memory = mmap.mmap(-1, max(1, num_bytes), access=mmap.ACCESS_COPY)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
