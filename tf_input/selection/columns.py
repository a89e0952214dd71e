"""Implements columns of strings. A function of a column is evaluated only once for each distinct string."""

import dataclasses
from typing import Any, Callable, Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class BinaryColumn:
    """A column with at most one string per example.

    Attributes:
        codes: The index of each example's string in `values`, int [n]; -1 for a missing string.
        values: Distinct strings, at least all strings that occur in the column.
        names: All allowed strings; None allows any string.
    """

    codes: np.ndarray
    values: Sequence[str]
    names: Sequence[str] | None = None

    def look_up(self, function: Callable[[str], Any], missing: Any) -> np.ndarray:
        """Calls a function with each example's string and returns the results, [n]. A missing string gives
        `missing`."""
        return np.array([*map(function, self.values), missing])[self.codes]

    def map(self, function: Callable[[str], str]) -> "BinaryColumn":
        """Returns a column with each string replaced by the result of a function."""
        return BinaryColumn(self.codes, [*map(function, self.values)])

    def to_numpy(self) -> np.ndarray:
        """Converts the column to an object array [n] of str, with None for missing strings."""
        values = np.empty(len(self.values) + 1, object)
        values[:-1] = self.values
        return values[self.codes]


@dataclasses.dataclass(frozen=True)
class TextLists:
    """A column with a list of strings per example.

    Attributes:
        lengths: The number of strings of each example, int64 [n].
        texts: The concatenated strings of all examples.
    """

    lengths: np.ndarray
    texts: BinaryColumn

    def have(self, text: str) -> np.ndarray:
        """Returns whether each example's list contains a string, bool [n]."""
        owners = np.repeat(np.arange(len(self.lengths)), self.lengths)
        return np.bincount(owners, self.texts.look_up(lambda item: item == text, False), len(self.lengths)) > 0

    def to_numpy(self) -> np.ndarray:
        """Returns lists of str as an object array [n]."""
        lists, flat = np.empty(len(self.lengths), object), self.texts.to_numpy().tolist()
        stops = np.cumsum(self.lengths)
        lists[:] = [flat[start:stop] for start, stop in zip((stops - self.lengths).tolist(), stops.tolist())]
        return lists


Column = np.ndarray | BinaryColumn | TextLists
