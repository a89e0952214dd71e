"""Columns of texts, of which each different one is looked at once."""

import dataclasses
from typing import Any, Callable, Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class Texts:
    """A text of each example, or none.

    Attributes:
        codes: int [n], which of the values; -1: it has none.
        values: The texts that occur, and maybe others.
        names: All that there may be; None: any text.
    """

    codes: np.ndarray
    values: Sequence[str]
    names: Sequence[str] | None = None

    def look_up(self, function: Callable[[str], Any], missing: Any) -> np.ndarray:
        """What a function gives for each example's text, and `missing` where there is none: [n]."""
        return np.array([*map(function, self.values), missing])[self.codes]

    def map(self, function: Callable[[str], str]) -> "Texts":
        """Other texts in the place of these."""
        return Texts(self.codes, [*map(function, self.values)])

    def to_numpy(self) -> np.ndarray:
        """str, or None, as objects [n]."""
        found = np.empty(len(self.values) + 1, object)
        found[:-1] = self.values
        return found[self.codes]


@dataclasses.dataclass(frozen=True)
class TextLists:
    """Any number of texts of each example.

    Attributes:
        lengths: The number of texts that each example has, int64 [n].
        texts: The texts of all examples, one after the other.
    """

    lengths: np.ndarray
    texts: Texts

    def have(self, text: str) -> np.ndarray:
        """Whether each example has a text: bool [n]."""
        owners = np.repeat(np.arange(len(self.lengths)), self.lengths)
        return np.bincount(owners, self.texts.look_up(lambda one: one == text, False), len(self.lengths)) > 0

    def to_numpy(self) -> np.ndarray:
        """Lists of str, as objects [n]."""
        found, flat = np.empty(len(self.lengths), object), self.texts.to_numpy().tolist()
        stops = np.cumsum(self.lengths)
        found[:] = [flat[start:stop] for start, stop in zip((stops - self.lengths).tolist(), stops.tolist())]
        return found


Column = np.ndarray | Texts | TextLists
