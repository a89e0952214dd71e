"""Merges the facts about two parts of a source or a dataset, one field at a time."""

import copy
import dataclasses
from typing import Any


class Mergeable:
    """The base class of dataclasses that can be merged. A field is a number, a string that is equal in all parts, a set,
    a tuple of numbers, an object with a method `merge`, a dictionary of these values, or None."""

    def merge(self, other: Any) -> None:
        """Merges the fields of `other` into the fields of this object. `other` does not change."""
        for field in dataclasses.fields(self):
            setattr(self, field.name, _merged(getattr(self, field.name), getattr(other, field.name)))


def _merged(mine: Any, other: Any) -> Any:
    if mine is None or other is None:
        return copy.deepcopy(other) if mine is None else mine
    if isinstance(mine, int):
        return mine + other
    if isinstance(mine, str):
        return mine or other
    if isinstance(mine, tuple):
        return tuple(map(sum, zip(mine, other)))
    if isinstance(mine, set):
        mine |= other
    elif hasattr(mine, "merge"):
        mine.merge(other)
    else:
        for key, value in other.items():
            mine[key] = _merged(mine.get(key, type(value)()), value)
    return mine
