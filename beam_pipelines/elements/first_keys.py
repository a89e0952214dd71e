"""Counts inputs for a message and keeps the names of the first few."""

import dataclasses
import heapq
from typing import Iterable

from beam_pipelines.errors import printable

_NUM_SHOWN = 3


@dataclasses.dataclass
class FirstKeys:
    """The number of inputs to report in a message, and the names of the first few.

    Attributes:
        num: The number of inputs.
        first: The first names in sorted order.
    """

    num: int = 0
    first: list[str] = dataclasses.field(default_factory=list)

    def add(self, names: Iterable[str]) -> None:
        """Adds inputs by their names."""
        names = list(names)
        self.num += len(names)
        self.first = heapq.nsmallest(_NUM_SHOWN, [*self.first, *names])

    def merge(self, other: "FirstKeys") -> None:
        """Adds the counts of `other`."""
        self.num += other.num
        self.first = heapq.nsmallest(_NUM_SHOWN, [*self.first, *other.first])

    def describe(self) -> str:
        """Returns a string for a message: the first names in sorted order, and how many inputs follow."""
        more = self.num - len(self.first)
        return ", ".join(repr(printable(name)) for name in self.first) + (f" and {more:,} more" if more else "")
