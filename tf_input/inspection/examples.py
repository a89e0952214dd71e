"""Finds examples that meet a condition, or shows a single example."""

from typing import TYPE_CHECKING, Any, Iterator, Mapping

import numpy as np

from tf_input.dataset_format import OBJECTS
from tf_input.overview import Table, printable
from tf_input.selection.catalog import Catalog
from tf_input.selection.columns import TextLists, BinaryColumn
from tf_input.selection.expressions import evaluate

if TYPE_CHECKING:
    from tf_input.dataset import PreparedDataset

_UNSHOWN = ("offset", "crc32c", "reencoded", "shard", "record")  # columns about the storage of an example
_MAX_VALUES = 8
_MAX_BYTES = 64


def find_examples(where: str, catalog: Catalog) -> list[dict[str, Any]]:
    """Returns the catalog rows that meet a condition, as plain values with `number`, `key` and the catalog columns.

    Args:
        where: The condition, as in `batches(select=...)`.
        catalog: The catalog of the split.

    Raises:
        ImportError, OSError, ValueError: The condition is invalid, or a catalog is missing or corrupt.
    """
    # each column has as many rows as the manifest says
    columns = {name: catalog[name] for name in catalog if name not in _UNSHOWN}
    if not columns:
        raise ValueError(f"where={where!r}: {catalog.described()}")
    numbers = np.flatnonzero(evaluate(where, catalog, catalog.num_examples))
    values_by_column = {"number": numbers.tolist()} | {name: _taken(column, numbers) for name, column in columns.items()}
    return [dict(zip(values_by_column, row)) for row in zip(*values_by_column.values())]


def _taken(column: Any, numbers: np.ndarray) -> list[Any]:
    values = column.to_numpy() if isinstance(column, (BinaryColumn, TextLists)) else column
    return [None if value != value else value for value in values[numbers].tolist()]


def find_example(dataset: "PreparedDataset", wanted: str) -> tuple[str, int, Mapping[str, Any]]:
    """Returns the split, the index and the features of one example.

    Args:
        dataset: The dataset.
        wanted: SPLIT:NUMBER, or a key.

    Raises:
        ValueError: The example does not exist. All other errors are those of `Examples`.
    """
    split, colon, number = wanted.rpartition(":")
    if colon and split in dataset and number.isdecimal():
        if len(number) > 18 or int(number) >= len(dataset[split]):
            raise ValueError(
                f"--example={wanted}: {split} has {len(dataset[split]):,} examples. Pass a smaller number."
            )
        return split, int(number), dataset[split][int(number)]
    for split, examples in dataset.items():
        try:
            return split, *examples.find(wanted)
        except KeyError:
            continue
    raise ValueError(
        f"--example={wanted}: no example has this key. Pass an existing key, or SPLIT:NUMBER, such as "
        f"{next(iter(dataset), 'train')}:0"
    )


def example_table(dataset: "PreparedDataset", example: Mapping[str, Any]) -> Table:
    """Returns a table of the features of an example."""
    rows = [(printable(name), _value(value, dataset, name)) for name, value in _flat(example)]
    return Table(("feature", "value"), rows, 2)


def example_json(example: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the features of an example as plain values. Large arrays are described by dtype and shape."""
    return {name: _printable_value(value) for name, value in _flat(example)}


def _flat(example: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in sorted(example.items()):
        if isinstance(value, Mapping):
            yield from ((f"{OBJECTS}/{inner}", item) for inner, item in value.items())
        else:
            yield name, value


def _value(value: Any, dataset: "PreparedDataset", name: str) -> str:
    feature = dataset.features.get(name)
    if feature is not None and feature.label_names and isinstance(value, int) and 0 <= value < len(feature.label_names):
        return f"{value} ({printable(feature.label_names[value])})"
    text = _printable_value(value)
    return printable(text if isinstance(text, str) else str(text))


def _printable_value(value: Any) -> Any:
    if isinstance(value, bytes):  # a record of a dataset with `--records verbatim`
        more = "…" * (len(value) > _MAX_BYTES)
        return f"{len(value):,} bytes: {repr(value[:_MAX_BYTES])[2:-1]}{more}"
    if not isinstance(value, np.ndarray):
        return value
    if value.size > _MAX_VALUES:
        return f"{value.dtype} {' × '.join(map(str, value.shape))}"
    return value.tolist()
