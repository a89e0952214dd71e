"""How many inputs something is true of, and the first few of them, to name in a message."""

import dataclasses
import heapq
from typing import Iterable

from beam_pipelines.errors import printable

_NUM_SHOWN = 3


@dataclasses.dataclass
class FirstKeys:
    """A number of inputs, and the first few by their names.

    Attributes:
        num: The number of inputs.
        first: The names of the few inputs that sort first.
    """

    num: int = 0
    first: list[str] = dataclasses.field(default_factory=list)

    def add(self, names: Iterable[str]) -> None:
        """Counts more inputs by their names."""
        names = list(names)
        self.num += len(names)
        self.first = heapq.nsmallest(_NUM_SHOWN, [*self.first, *names])

    def merge(self, other: "FirstKeys") -> None:
        """Adds the inputs of another part."""
        self.num += other.num
        self.first = heapq.nsmallest(_NUM_SHOWN, [*self.first, *other.first])

    def describe(self) -> str:
        """The first names, and how many more there are, as a message shows them."""
        more = self.num - len(self.first)
        return ", ".join(repr(printable(name)) for name in self.first) + (f" and {more:,} more" if more else "")
