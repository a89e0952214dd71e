"""Collects the names of columns and fields that are not stored in the dataset, for the summary."""

import dataclasses
from typing import Iterable

from beam_pipelines.errors import printable

_MAX_NAMES = 100
MAX_CHARACTERS = 300  # A name may be followed by the option that stores the field.


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
                self._add_shown(printable(field[:MAX_CHARACTERS]))

    def merge(self, other: "UnusedFields") -> None:
        """Adds the names from another part."""
        for name in other.names:
            self._add_shown(name)

    def _add_shown(self, name: str) -> None:
        self.names.add(name)
        if len(self.names) > _MAX_NAMES:
            self.names.remove(max(self.names))
