"""Reads inputs ahead in threads to hide the latency of object stores."""

import collections
import functools
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Callable, Iterable, Iterator, TypeVar

NUM_THREADS = 32
MAX_BYTES = 64 << 20

# Assumed size of results until the first result of unknown size arrives. It is the size of a large photograph.
ASSUMED_BYTES = 4 << 20

Item = TypeVar("Item")
Result = TypeVar("Result")


@functools.lru_cache(maxsize=1)
def _threads() -> ThreadPoolExecutor:
    """Returns the thread pool that all bundles of this process share."""
    return ThreadPoolExecutor(NUM_THREADS, "read_ahead")


def read_ahead(
    function: Callable[[Item], Result], items: Iterable[tuple[Item, int]], size_of: Callable[[Result], int] = lambda result: 0
) -> Iterator[Result]:
    """Calls a function for upcoming items in threads and yields the results in the order of the items.

    Args:
        function: A thread-safe function. Its exceptions are raised in the order of the items.
        items: (item, size of the result in bytes) pairs. At most `2 * NUM_THREADS` results and `MAX_BYTES` are pending,
            except for a single larger result. A size of 0 means unknown; the size of the largest result so far is
            assumed.
        size_of: A function that returns the actual size of a result in bytes, for items of unknown size.
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
