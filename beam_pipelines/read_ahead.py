"""Reading ahead in threads: an object store answers a request in tens of milliseconds, but many at a time. Plain."""

import collections
import functools
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Callable, Iterable, Iterator, TypeVar

NUM_THREADS = 32
MAX_BYTES = 64 << 20

# Of the first results whose sizes are not known: a photograph's.
ASSUMED_BYTES = 256 << 10

Item = TypeVar("Item")
Result = TypeVar("Result")


@functools.lru_cache(maxsize=1)
def _threads() -> ThreadPoolExecutor:
    """One pool a process, whatever number of bundles it works on."""
    return ThreadPoolExecutor(NUM_THREADS, "read_ahead")


def read_ahead(
    function: Callable[[Item], Result], items: Iterable[tuple[Item, int]], size_of: Callable[[Result], int] = lambda result: 0
) -> Iterator[Result]:
    """`function` of each item, in the order of the items, computed in threads ahead of the caller.

    Args:
        function: Thread-safe. What it raises is raised here, in its turn.
        items: (item, size of its result in bytes). At most `2 * NUM_THREADS` results wait, of `MAX_BYTES` unless a single one
            is larger. Of a size of 0, which is an unknown one, the largest is assumed that has come.
        size_of: A result's size, where it was unknown.
    """
    waiting: collections.deque[tuple[Future, int]] = collections.deque()
    num_bytes, largest = 0, ASSUMED_BYTES

    def take() -> Result:
        nonlocal num_bytes, largest
        future, assumed = waiting.popleft()
        num_bytes -= assumed
        result = future.result()
        largest = max(largest, size_of(result))
        return result

    try:
        for item, size in items:
            size = size or largest
            while waiting and (len(waiting) >= 2 * NUM_THREADS or num_bytes + size > MAX_BYTES):
                yield take()
            waiting.append((_threads().submit(function, item), size))
            num_bytes += size
        while waiting:
            yield take()
    finally:
        for future, _ in waiting:
            future.cancel()
