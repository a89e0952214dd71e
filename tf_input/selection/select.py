"""Applies the options `select` and `balance` to the catalog of a split."""

import functools
from typing import Any, Callable, Mapping, Sequence

import numpy as np

from tf_input.epochs.selection import Balance, Selection
from tf_input.options import suggest_option
from tf_input.read_config import ReadConfig
from tf_input.selection.catalog import Catalog
from tf_input.choices import Choice, FoldPart
from tf_input.selection.columns import Column
from tf_input.selection.expressions import evaluate


def select(split: str, indices: range, config: ReadConfig, catalog: Catalog, labels: Mapping[str, Sequence[str]]) -> Selection:
    """Returns the records of an epoch.

    Args:
        split: The name of the split, for messages.
        indices: The indices of the examples to select from.
        config: The reading options.
        catalog: The catalog of the split.
        labels: The class names of each target with one class label, by name.

    Returns:
        The selection of records.

    Raises:
        ImportError: pyarrow, which reads the catalog, is missing.
        OSError: An index or a catalog can't be read.
        ValueError: An option has an invalid value, or selects no examples.
    """
    is_left = np.zeros(catalog.num_examples, bool)
    is_left[indices.start : indices.stop] = True
    for choice in config.select or ():
        is_left &= _meets(choice, catalog, split)
        if not is_left.any():
            raise ValueError(
                f"select={choice!r}: none of the {catalog.num_examples:,} examples of {split} is left. Select more examples."
            )
    left = np.flatnonzero(is_left)
    if config.balance is None:
        return Selection(left)
    return Selection(left, _balance(split, config, catalog, labels, left))


def _meets(choice: Choice, catalog: Catalog, split: str) -> np.ndarray:
    """Returns whether each example is selected, bool [num_examples]."""
    if isinstance(choice, str):
        return evaluate(choice, catalog, catalog.num_examples)
    if isinstance(choice, FoldPart):
        is_validation = catalog.hashes(True, "fold") % np.uint64(choice.num_folds) == np.uint64(choice.index)
        return is_validation if choice.part == "validation" else ~is_validation
    if callable(choice):
        return _call(choice, catalog)
    if max(choice) >= catalog.num_examples:
        raise ValueError(f"select: index {max(choice)} is out of range: {split} has {catalog.num_examples:,} examples.")
    is_selected = np.zeros(catalog.num_examples, bool)
    is_selected[list(choice)] = True
    return is_selected


def _call(condition: Callable[[Mapping[str, np.ndarray]], np.ndarray], catalog: Catalog) -> np.ndarray:
    arrays = _Arrays(catalog)
    try:
        is_selected = np.asarray(condition(arrays))
    except KeyError as error:
        if arrays.missing is None:  # the user's function raised its own KeyError
            raise
        raise ValueError(f"select={condition!r}: {error.args[0]}") from None
    if is_selected.dtype != bool or is_selected.shape != (catalog.num_examples,):
        raise ValueError(
            f"select={condition!r} returned {is_selected.dtype} {list(is_selected.shape)}. It must return bool "
            f"[{catalog.num_examples}], one value per example."
        )
    return is_selected


class _Arrays(Mapping[str, np.ndarray]):
    """A mapping from catalog columns to NumPy arrays, with NaN for missing numbers. Strings and lists are objects."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self.missing: str | None = None  # a requested column that does not exist

    def __len__(self) -> int:
        return len(self._catalog)

    def __iter__(self) -> Any:
        return iter(self._catalog)

    def __getitem__(self, name: str) -> np.ndarray:
        try:
            column: Column = self._catalog[name]
        except KeyError:
            self.missing = name
            raise
        return column.copy() if isinstance(column, np.ndarray) else column.to_numpy()


def _balance(split: str, config: ReadConfig, catalog: Catalog, labels: Mapping[str, Sequence[str]], numbers: np.ndarray) -> Balance:
    option = config.balance
    if len(labels) != 1:
        targets_found = f"the targets are {', '.join(labels)}" if labels else "no target is a class label"
        advice = f" Pass for example targets={next(iter(labels))!r}." if labels else ""
        raise ValueError(f"balance={option!r} needs one target that is a class label: {targets_found}.{advice}")
    ((name, names),) = labels.items()
    if isinstance(option, Mapping):
        for class_name in option:
            if class_name not in names:
                shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
                raise ValueError(
                    f"balance={option!r}: {name} has no class {class_name!r}. Use one of {shown}{suggest_option(class_name, names)}"
                )
    classes = catalog.labels(name)[numbers]
    if len(without := np.flatnonzero(classes < 0)):
        raise ValueError(
            f"balance={option!r}: {len(without):,} examples of {split} have no {name}. To leave them out, pass "
            f'select="{name} is not None".'
        )
    shares = option if isinstance(option, str) else tuple(float(option.get(item, 0)) for item in names)
    count = functools.partial(count_classes, shares, split=split, names=names)
    return Balance(classes, len(names), count, 0 if config.seed is None else config.seed)


def count_classes(shares: str | Sequence[float], sizes: np.ndarray, split: str, names: Sequence[str]) -> np.ndarray:
    """Returns the number of examples of each class in an epoch, int64 [num_classes].

    Args:
        shares: "oversample", which repeats examples up to the size of the largest class; "undersample", which drops
            examples down to the size of the smallest class; or the fraction of each class in an epoch of unchanged
            length.
        sizes: The number of existing examples of each class, int64 [num_classes].
        split, names: The name of the split and the class names, for messages.

    Raises:
        ValueError: A class with a fraction above 0 has no examples.
    """
    occurs = sizes > 0
    if not occurs.any():
        return sizes
    if isinstance(shares, str):
        of_each = sizes.max() if shares == "oversample" else sizes[occurs].min()
        return np.where(occurs, of_each, 0)
    wanted = np.array(shares) / sum(shares) * sizes.sum()
    if len(missing := np.flatnonzero((wanted > 0) & ~occurs)):
        raise ValueError(
            f"balance: none of the {sizes.sum():,} selected examples of {split} has the class {names[missing[0]]!r}. "
            "Give the class a share of 0, or select more examples."
        )
    counts = np.floor(wanted).astype(np.int64)
    rest = int(sizes.sum() - counts.sum())
    remainders = np.where(wanted > 0, wanted - counts, -1)
    counts[np.argsort(-remainders, kind="stable")[:rest]] += 1
    return counts
