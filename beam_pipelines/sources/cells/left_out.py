"""Columns, and fields of samples and objects, that are not used: their names, for the summary."""

import dataclasses
from typing import Iterable

from beam_pipelines.errors import printable

_MAX_NAMES = 100
_MAX_CHARACTERS = 80


@dataclasses.dataclass
class LeftOut:
    """The names of fields that are met and not kept.

    Attributes:
        names: As a message shows them; of too many those that sort first, so that they are the same in whatever order inputs are listed.
    """

    names: set[str] = dataclasses.field(default_factory=set)

    def add(self, fields: Iterable[str]) -> None:
        """Takes in more of them."""
        for field in fields:
            if field not in self.names:
                self.names.add(printable(field[:_MAX_CHARACTERS]))
                if len(self.names) > _MAX_NAMES:
                    self.names.remove(max(self.names))

    def merge(self, other: "LeftOut") -> None:
        """Takes in those of another part."""
        self.add(other.names)
