"""Memory that is used again: to ask the system for fresh pages takes longer than to read into them."""

import threading

import numpy as np


class Arena:
    """A piece of memory, of which parts are taken one after the other.

    Args:
        num_bytes: How much it is. What is not touched takes no memory.
    """

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self._view = memoryview(np.empty(num_bytes, np.uint8))
        self._taken = 0
        self._lock = threading.Lock()

    def take(self, num_bytes: int) -> memoryview:
        """So many bytes that nobody else has; fresh ones if there are none left."""
        with self._lock:
            begin = self._taken
            if begin + num_bytes > self.num_bytes:
                return memoryview(bytearray(num_bytes))
            self._taken += num_bytes
        return self._view[begin : begin + num_bytes]

    def clear(self) -> None:
        """All that was taken is free again."""
        self._taken = 0


class Arenas:
    """Arenas that wait to be used again."""

    def __init__(self) -> None:
        self._free: list[Arena] = []

    def get(self, num_bytes: int) -> Arena:
        """One that is large enough, and not much larger."""
        for arena in self._free:
            if num_bytes <= arena.num_bytes <= 2 * num_bytes:
                self._free.remove(arena)
                return arena
        self._free.clear()
        return Arena(num_bytes)

    def put(self, arena: Arena) -> None:
        """Takes one back, into which nobody reads any more."""
        arena.clear()
        self._free.append(arena)
