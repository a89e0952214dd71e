"""Reading ahead in threads: an object store answers a request in tens of milliseconds, but many at a time. Plain."""

import collections
import functools
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Callable, Iterable, Iterator, TypeVar

NUM_THREADS = 32
MAX_BYTES = 64 << 20

Item = TypeVar("Item")
Result = TypeVar("Result")


@functools.lru_cache(maxsize=1)
def _threads() -> ThreadPoolExecutor:
    """One pool a process, whatever number of bundles it works on."""
    return ThreadPoolExecutor(NUM_THREADS, "read_ahead")


def read_ahead(function: Callable[[Item], Result], items: Iterable[tuple[Item, int]]) -> Iterator[Result]:
    """`function` of each item, in the order of the items, computed in threads ahead of the caller.

    Args:
        function: Thread-safe. What it raises is raised here, in its turn.
        items: (item, size of its result in bytes). At most `2 * NUM_THREADS` results wait, of `MAX_BYTES` unless a single one
            is larger; of unknown sizes, given as 0, the number is all that bounds them.
    """
    waiting: collections.deque[tuple[Future, int]] = collections.deque()
    num_bytes = 0
    try:
        for item, size in items:
            while waiting and (len(waiting) >= 2 * NUM_THREADS or num_bytes + size > MAX_BYTES):
                future, done = waiting.popleft()
                num_bytes -= done
                yield future.result()
            waiting.append((_threads().submit(function, item), size))
            num_bytes += size
        while waiting:
            yield waiting.popleft()[0].result()
    finally:
        for future, _ in waiting:
            future.cancel()
