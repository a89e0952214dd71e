"""Collects the names of columns and fields that are not stored in the dataset, for the summary."""

import dataclasses
from typing import Iterable

from beam_pipelines.errors import printable

_MAX_NAMES = 100
_MAX_CHARACTERS = 80


@dataclasses.dataclass
class UnusedFields:
    """The names of the columns and fields that are not stored in the dataset.

    Attributes:
        names: The names, as shown in messages. If there are too many, the first names in sorted order are kept.
    """

    names: set[str] = dataclasses.field(default_factory=set)

    def add(self, fields: Iterable[str]) -> None:
        """Adds names of fields."""
        for field in fields:
            if field not in self.names:
                self.names.add(printable(field[:_MAX_CHARACTERS]))
                if len(self.names) > _MAX_NAMES:
                    self.names.remove(max(self.names))

    def merge(self, other: "UnusedFields") -> None:
        """Adds the names from another part."""
        self.add(other.names)
