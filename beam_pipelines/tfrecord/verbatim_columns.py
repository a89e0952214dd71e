"""Chooses the catalog columns of records that are stored unchanged (`--records verbatim`), and reads their values."""

import math
from typing import Iterable, Sequence

from tf_input.dataset_format import CATALOG_COLUMNS, HASH_COLUMNS, MAX_CATALOG_TEXT_BYTES, Feature
from tf_input.serialized_example import BadExampleError, SerializedExample

Value = int | float | bytes

_KINDS = {"int64": "integer", "float": "float", "bytes": "text"}
_TAKEN = {"", *CATALOG_COLUMNS, *HASH_COLUMNS}


def choose_columns(records: Iterable[bytes]) -> tuple[tuple[Feature, ...], list[str]]:
    """Chooses the features that become catalog columns: those with exactly one number or short text in each record.

    Args:
        records: The first records of the input.

    Returns:
        The columns, sorted by name, and the names of features that are left out because the catalog has a column of the
        same name. Both are empty if one of the records is not a `tf.train.Example`.
    """
    kinds: dict[str, str] | None = None
    for data in records:
        try:
            example = SerializedExample(data)
        except BadExampleError:
            return (), []
        names = example.features if kinds is None else kinds
        scalars = [name for name in names if _only_value(example, name) is not None]
        found = {name: _KINDS[example.features[name].storage] for name in scalars}
        kinds = {name: kind for name, kind in found.items() if kinds is None or kinds[name] == kind}
    columns = [Feature(name, kind) for name, kind in sorted((kinds or {}).items())]
    kept = tuple(column for column in columns if column.name not in _TAKEN)
    return kept, [column.name for column in columns if column.name in _TAKEN]


def read_values(columns: Sequence[Feature], data: bytes) -> list[Value | None]:
    """Returns the value of each column in a record. Texts are UTF-8 bytes.

    The value is None if the record is not a `tf.train.Example`, or if the feature is missing, is NaN, has several
    values or another type, or is not a short text.
    """
    try:
        example = SerializedExample(data)
    except BadExampleError:
        return [None] * len(columns)
    values: list[Value | None] = []
    for column in columns:
        lists = example.features.get(column.name)
        value = _only_value(example, column.name) if lists and lists.storage == column.storage else None
        values.append(None if isinstance(value, float) and math.isnan(value) else value)
    return values


def _only_value(example: SerializedExample, name: str) -> Value | None:
    """Returns the value of a feature that has exactly one number or short text, otherwise None."""
    try:
        if name not in example.features or example.count(name) != 1:
            return None
        (value,) = example.values(name)
    except BadExampleError:
        return None
    return value if not isinstance(value, bytes) or _is_short_text(value) else None


def _is_short_text(value: bytes) -> bool:
    """Returns whether bytes are text that fits into the catalog. Image files and other binary data contain zero bytes
    or invalid UTF-8."""
    if len(value) > MAX_CATALOG_TEXT_BYTES or b"\0" in value:
        return False
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
