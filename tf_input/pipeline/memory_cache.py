"""Keeps the decoded splits of a dataset within one memory budget."""

import threading
import weakref
from typing import Any, Callable, Hashable

from tf_input.pipeline.memory import CachedExamples


class MemoryCache:
    """The decoded splits that an opened dataset caches in memory. The budget applies to all splits together.

    The least recently used entries are dropped first. A dropped entry stays in memory as long as batches use it. If the
    entry is requested again during this time, the split is not read again.
    """

    def __init__(self) -> None:
        self._entries: dict[Hashable, CachedExamples] = {}  # the first entry is the least recently used
        self._in_use: weakref.WeakValueDictionary[Hashable, CachedExamples] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()

    def __contains__(self, key: Hashable) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def num_bytes(self) -> int:
        """The approximate size in bytes of all entries."""
        return sum(entry.num_bytes for entry in self._entries.values())

    def get(self, key: Hashable, num_bytes: int, budget: int, load: Callable[[], Any]) -> CachedExamples:
        """Returns the entry for a key, which is loaded if necessary. Concurrent calls load an entry only once.

        Args:
            key: The key of the entry: the split, and the options that affect decoded examples.
            num_bytes: The size of the entry in bytes.
            budget: The maximum size of all entries in bytes. Other entries are dropped before the entry is loaded.
            load: A function that returns the entry.
        """
        with self._lock:
            entry = self._entries.pop(key, None) or self._in_use.get(key)
            while self._entries and num_bytes + self.num_bytes > budget:
                del self._entries[next(iter(self._entries))]
            entry = load() if entry is None else entry
            self._entries[key] = self._in_use[key] = entry
            return entry
