"""`where`, `fold`, `subset`, `take` and `balance` of a ReadConfig, one after the other: from a split's catalog to a selection of it."""

import functools
from typing import Any, Callable, Mapping, Sequence

import numpy as np

from tf_input.epochs.selection import Balance, Selection
from tf_input.options import meant
from tf_input.read_config import ReadConfig
from tf_input.selection.catalog import Catalog
from tf_input.selection.columns import Column
from tf_input.selection.expressions import evaluate


def select(split: str, config: ReadConfig, catalog: Catalog, labels: Mapping[str, Sequence[str]]) -> Selection | None:
    """Finds the records that an epoch of a split has.

    Args:
        split: The name of the split, for messages.
        config: The options that say which examples are read.
        catalog: The catalog of the split.
        labels: The targets that are one class label, by name, with their class names.

    Returns:
        The selection of records; None: each of them once, as nothing is chosen.

    Raises:
        ImportError: pyarrow is missing, and a catalog is to be read.
        OSError: An index or a catalog can't be read.
        ValueError: An option asks for what is not there, or leaves nothing.
    """
    if not config.selects:
        return None
    left, said = np.arange(catalog.num_examples), []

    def keep(name: str, numbers: np.ndarray) -> np.ndarray:
        said.append(f"{name}={getattr(config, name)!r}")
        if not len(numbers):
            raise ValueError(
                f"{', '.join(said)}: nothing is left of the {catalog.num_examples:,} examples of {split}; expected what some meet"
            )
        return numbers

    if config.where is not None:
        left = keep("where", left[_meet(config.where, catalog)])
    if config.fold is not None:
        num_folds, chosen = config.fold
        folds = catalog.hashes(True, "fold")[left] % np.uint64(num_folds)
        left = keep("fold", left[np.isin(folds, np.array(chosen, np.uint64))])
    if config.subset is not None:
        left = keep("subset", left[catalog.hashes(False, "subset")[left] < np.uint64(int(config.subset * 2**64))])
    if config.take is not None:
        left = left[: config.take]
    if config.balance is None:
        return Selection(left)
    return Selection(left, _balance(split, config, catalog, labels, left))


def _meet(where: str | Callable[[Mapping[str, np.ndarray]], np.ndarray], catalog: Catalog) -> np.ndarray:
    """Whether each example meets a condition: bool [num_examples]."""
    if isinstance(where, str):
        return evaluate(where, catalog, catalog.num_examples)
    arrays = _Arrays(catalog)
    try:
        found = np.asarray(where(arrays))
    except KeyError as error:
        if arrays.missing is None:  # one of the function's own
            raise
        raise ValueError(f"where={where!r}: {error.args[0]}") from None
    if found.dtype != bool or found.shape != (catalog.num_examples,):
        raise ValueError(
            f"where={where!r}: it gave {found.dtype} {list(found.shape)}; expected bool [{catalog.num_examples}], one of each example"
        )
    return found


class _Arrays(Mapping[str, np.ndarray]):
    """Columns of a catalog as NumPy has them: numbers, with NaN where one is missing; str, None and lists of str as objects."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self.missing: str | None = None  # a column that was asked for, and is not there

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
        found = f"there are {', '.join(labels)}: targets={next(iter(labels))!r} reads one of them" if labels else "there is none"
        raise ValueError(f"balance={option!r}: expected one target that is one class label; {found}")
    ((name, names),) = labels.items()
    if isinstance(option, Mapping):
        for one in option:
            if one not in names:
                shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
                raise ValueError(f"balance={option!r}: {name} has no class {one!r}; expected one of {shown}{meant(one, names)}")
    classes = catalog.labels(name)[numbers]
    if len(without := np.flatnonzero(classes < 0)):
        raise ValueError(
            f'balance={option!r}: {len(without):,} examples of {split} have no {name}; where="{name} is not None" leaves them out'
        )
    shares = option if isinstance(option, str) else tuple(float(option.get(one, 0)) for one in names)
    count = functools.partial(count_classes, shares, split=split, names=names)
    return Balance(classes, len(names), count, 0 if config.seed is None else config.seed)


def count_classes(shares: str | Sequence[float], sizes: np.ndarray, split: str, names: Sequence[str]) -> np.ndarray:
    """The number of examples of each class that an epoch has: int64 [num_classes].

    Args:
        shares: The rule, or the shares. "oversample": as many as the largest class has, of each that occurs; "undersample": as many as the
            smallest of these; or the share of each class, of as many as there are: the nearest numbers.
        sizes: The number of examples of each class that there are, int64 [num_classes].
        split, names: The name of the split, and those of the classes, for messages.

    Raises:
        ValueError: A class that has a share has no examples.
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
            f"balance: no example of {names[missing[0]]!r} is among the {sizes.sum():,} that are left of {split}; expected a share of 0"
        )
    counts = np.floor(wanted).astype(np.int64)
    rest = int(sizes.sum() - counts.sum())
    remainders = np.where(wanted > 0, wanted - counts, -1)
    counts[np.argsort(-remainders, kind="stable")[:rest]] += 1
    return counts
