"""Damaged records: what is said of them, and how they are counted where they are left out."""

import logging
import threading
from typing import Iterator, NamedTuple

REPAIR = "copy the shard again, or rebuild it with `recordmill repair`"
_NUM_LOGGED = 10

_logger = logging.getLogger("tf_input")


class DamagedRecord(NamedTuple):
    """A record that can't be read.

    Attributes:
        shard: The path or URL of the shard.
        record: The number of the record in the shard, from 0.
        offset: The place of the record in the shard, in bytes.
        reason: The text that says what was found.
        count: The number of records from there on that can't be read either, with itself.
    """

    shard: str
    record: int
    offset: int
    reason: str
    count: int = 1

    def __str__(self) -> str:
        more = f" and {self.count - 1} more" if self.count > 1 else ""
        return f"{self.shard}: record {self.record}{more}, at byte {self.offset}: {self.reason}"


class DamagedRecords:
    """Those that were left out, each once; `len` counts them."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, int], DamagedRecord] = {}
        self._lock = threading.Lock()

    def add(self, damaged: DamagedRecord) -> None:
        """Each is counted, and the first ones are logged, once."""
        with self._lock:
            if (place := (damaged.shard, damaged.record)) in self._found:
                return
            self._found[place] = damaged
            count = len(self._found)
        if count <= _NUM_LOGGED:
            more = "; further ones are counted alone" if count == _NUM_LOGGED else ""
            _logger.warning("skipped %s%s", damaged, more)

    def __iter__(self) -> Iterator[DamagedRecord]:
        with self._lock:
            return iter(list(self._found.values()))

    def __repr__(self) -> str:
        return f"<{len(self)} damaged records>"

    def __len__(self) -> int:
        return sum(damaged.count for damaged in self)
