"""Describes corrupt records and collects the corrupt records that are skipped."""

import logging
import threading
from typing import Iterator, NamedTuple

SKIP = "to skip such records in batches, pass skip_corrupt=True"
REPAIR = "copy the shard again, or rebuild it with `recordmill repair`"
_NUM_LOGGED = 10

_logger = logging.getLogger("tf_input")


class CorruptRecord(NamedTuple):
    """A record that cannot be read.

    Attributes:
        shard: The path or URL of the shard.
        record: The index of the record in the shard, from 0.
        offset: The offset of the record in the shard, in bytes; None for files without an index.
        reason: A description of the problem.
        count: The number of consecutive unreadable records that begin with this record.
    """

    shard: str
    record: int
    offset: int | None
    reason: str
    count: int = 1

    def __str__(self) -> str:
        more = f" and {self.count - 1} more" if self.count > 1 else ""
        offset = "" if self.offset is None else f", at byte {self.offset}"
        return f"{self.shard}: record {self.record}{more}{offset}: {self.reason}"


class CorruptRecords:
    """A collection of the corrupt records that were skipped, without duplicates. `len` returns their number."""

    def __init__(self) -> None:
        self._records: dict[tuple[str, int], CorruptRecord] = {}
        self._lock = threading.Lock()

    def add(self, corrupt: CorruptRecord) -> None:
        """Adds a corrupt record unless the collection contains the record already. The first ten records are logged."""
        with self._lock:
            if (shard_and_record := (corrupt.shard, corrupt.record)) in self._records:
                return
            self._records[shard_and_record] = corrupt
            count = len(self._records)
        if count <= _NUM_LOGGED:
            more = "; further ones are only counted" if count == _NUM_LOGGED else ""
            _logger.warning("skipped %s%s", corrupt, more)

    def __iter__(self) -> Iterator[CorruptRecord]:
        with self._lock:
            return iter(list(self._records.values()))

    def __repr__(self) -> str:
        return f"<{len(self)} corrupt records>"

    def __len__(self) -> int:
        return sum(corrupt.count for corrupt in self)
