"""Reading ahead in threads: an object store answers a request in tens of milliseconds, but many at a time."""

import collections
import functools
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Callable, Iterable, Iterator, TypeVar

NUM_THREADS = 32
MAX_BYTES = 64 << 20

# Of each result, while none whose size was unknown has come: a large photograph's, for a few of them soon tell what theirs are.
ASSUMED_BYTES = 4 << 20

Item = TypeVar("Item")
Result = TypeVar("Result")


@functools.lru_cache(maxsize=1)
def _threads() -> ThreadPoolExecutor:
    """The pool of threads: one a process, whatever number of bundles it works on."""
    return ThreadPoolExecutor(NUM_THREADS, "read_ahead")


def read_ahead(
    function: Callable[[Item], Result], items: Iterable[tuple[Item, int]], size_of: Callable[[Result], int] = lambda result: 0
) -> Iterator[Result]:
    """Calls `function` with each item, in threads ahead of the caller, and yields the results in the order of the items.

    Args:
        function: The function to call, which must be thread-safe. What it raises is raised here, in its turn.
        items: (item, size of its result in bytes). At most `2 * NUM_THREADS` results wait, of `MAX_BYTES` unless a single one
            is larger. A size of 0 is an unknown one: then that of the largest result is assumed that has come.
        size_of: The size of a result in bytes, where it was unknown.
    """
    waiting: collections.deque[tuple[Future, int]] = collections.deque()
    known_bytes, num_unknown, largest = 0, 0, 0

    def add(item: Item, size: int) -> None:
        nonlocal known_bytes, num_unknown
        waiting.append((_threads().submit(function, item), size))
        known_bytes, num_unknown = known_bytes + size, num_unknown + (not size)

    def take() -> Result:
        nonlocal known_bytes, num_unknown, largest
        future, size = waiting.popleft()
        known_bytes, num_unknown = known_bytes - size, num_unknown - (not size)
        result = future.result()
        largest = max(largest, size_of(result))
        return result

    try:
        for item, size in items:
            while waiting and (
                len(waiting) >= 2 * NUM_THREADS
                or known_bytes + size + (num_unknown + (not size)) * (largest or ASSUMED_BYTES) > MAX_BYTES
            ):
                yield take()
            add(item, size)
        while waiting:
            yield take()
    finally:
        for future, _ in waiting:
            future.cancel()
