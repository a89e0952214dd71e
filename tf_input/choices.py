"""The values of the option `select`, cross-validation folds, and slices of splits such as "train[:10%]"."""

import re
from numbers import Integral
from typing import Any, Callable, Iterable, Literal, Mapping, NamedTuple, Sequence, Union

import numpy as np

_SLICE = re.compile(r"(.+)\[(\d*%?):(\d*%?)\]")
_PARTS = ("train", "validation")


class FoldPart(NamedTuple):
    """The examples of one fold (`part` "validation"), or of all other folds (`part` "train"). See `Fold`."""

    num_folds: int
    index: int
    part: Literal["train", "validation"]


class Fold(NamedTuple):
    """One fold of a cross-validation, which validates with this fold and trains with all other folds.

    Examples:
        ```python
        fold = tf_input.Fold(5, 0)
        scans.batches("train", batch_size=32, select=fold.train)  # four fifths of the examples
        scans.batches("train", batch_size=32, select=fold.validation)
        tf_input.open("out/scans", fold=fold)  # for a dataset that was prepared with `--folds 5`
        ```

    Attributes:
        num_folds: The number of folds.
        index: The index of the fold, from 0.
    """

    num_folds: int
    index: int

    @property
    def train(self) -> FoldPart:
        """The examples of all other folds. The fold of an example depends on a hash of its group, or else of its key."""
        return FoldPart(*plain_fold(self), "train")

    @property
    def validation(self) -> FoldPart:
        """The examples of this fold."""
        return FoldPart(*plain_fold(self), "validation")


Choice = Union[str, Callable[[Mapping[str, Any]], Any], FoldPart, Sequence[int]]


def plain_fold(fold: Any) -> Fold:
    """Returns the fold with Python integers.

    Raises:
        ValueError: The value is not a valid pair (number of folds, index of the validation fold).
    """
    if not is_among_several(fold):
        raise ValueError(f"fold={fold!r} is invalid. Pass (number of folds, index), such as (5, 0) to (5, 4).")
    return Fold(int(fold[0]), int(fold[1]))


def is_among_several(value: Any) -> bool:
    """Returns whether a value is a pair (count, index) of integers with 0 <= index < count."""
    return isinstance(value, (tuple, list)) and len(value) == 2 and all(map(_is_integer, value)) and 0 <= value[1] < value[0]


def plain_choices(value: Any) -> tuple[Choice, ...]:
    """Returns the option `select` as a tuple of choices, all of which apply.

    Raises:
        ValueError: The value is not a condition, a function, a `FoldPart`, indices, or a sequence of these.
    """
    if value is None:
        return ()
    if isinstance(value, str) and value.strip() or callable(value):
        return (value,)
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes, bytearray, Mapping, Fold)) and len(items := [*value]):
        if len(items) == 3 and is_among_several(items[:2]) and items[2] in _PARTS:
            return (FoldPart(int(items[0]), int(items[1]), items[2]),)
        if all(_is_integer(item) and item >= 0 for item in items):
            return (tuple(map(int, items)),)
        if not any(map(_is_integer, items)):
            return tuple(choice for item in items for choice in plain_choices(item))
    raise ValueError(
        f"select={value!r} is invalid. Pass a condition such as \"label == 'cat'\", a function of columns, Fold(5, 0).train, "
        "indices from 0, or a sequence of these."
    )


def parse_split(name: str, splits: Mapping[str, Any], num_examples: Callable[[str], int]) -> tuple[str, range]:
    """Returns the split and the indices that a name such as "train", "train[100:200]" or "train[:10%]" selects.

    Args:
        name: The name of a split, optionally followed by a slice with numbers of examples or percentages.
        splits: The splits by name.
        num_examples: A function from the name of a split to its number of examples.

    Raises:
        KeyError: The split does not exist.
        ValueError: The slice is empty.
    """
    match = None if name in splits else _SLICE.fullmatch(name)
    split, first, stop = match.groups() if match else (name, "", "")
    if split not in splits:
        raise KeyError(name)
    number = num_examples(split)
    indices = range(number)[_bound(first, number, 0) : _bound(stop, number, number)]
    if match and not indices:
        raise ValueError(f"split={name!r} has no examples: {split} has {number:,}. Choose a larger slice.")
    return split, indices


def _bound(text: str, number: int, default: int) -> int:
    if text in ("", "%"):
        return default
    return round(number * int(text[:-1]) / 100) if text.endswith("%") else int(text)


def _is_integer(value: Any) -> bool:
    return isinstance(value, (Integral, np.integer)) and not isinstance(value, bool)
