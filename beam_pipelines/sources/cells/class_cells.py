"""Reads class names from cells that contain one class, several classes, or a 0 or 1 for each class."""

import functools
import math
import re
import unicodedata
from typing import Any, Collection, Mapping, Sequence

import numpy as np

from beam_pipelines.config.source_config import DEFAULT_SEPARATOR
from beam_pipelines.elements.label_lists import is_one_flag_each
from beam_pipelines.errors import CONTROL, InvalidInput, printable
from beam_pipelines.sources.cells.cells import bad_cell, plain, read_flag, shown, to_list
from beam_pipelines.sources.files.paths import is_utf8

_MAX_CLASS_CHARACTERS = 256
_CLASS = f"a class name, on one line and of at most {_MAX_CLASS_CHARACTERS} characters, or an integer of at least 0"
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)")
_NEGATIVE = re.compile(r"\s*-(?:0|[1-9][0-9]*)\s*")
_BOOLEANS = {"False": "0", "True": "1"}  # class name of a boolean -> index
_WHOLE_FLOAT = re.compile(r"(-?(?:0|[1-9][0-9]*))\.0*")  # pandas writes integers in this form if the column has missing cells


@functools.lru_cache(1 << 16)
def class_name(text: str) -> str:
    """Returns a class name in NFC, without leading and trailing whitespace. Raises `InvalidInput` if the name is empty,
    too long, not UTF-8 or a negative number, or has control characters."""
    name = unicodedata.normalize("NFC", text.strip())
    if not 0 < len(name) <= _MAX_CLASS_CHARACTERS or CONTROL.search(name) or not is_utf8(name):
        raise bad_cell("bad_label", text, _CLASS)
    if _NEGATIVE.fullmatch(name):
        raise bad_cell("bad_label", text, _CLASS)
    return name


def read_class(cell: Any) -> str:
    """Returns the class name in a cell. Integers and booleans become strings such as `7` and `True`. Raises `InvalidInput`
    if the cell does not contain a class name."""
    if type(cell) is str:  # fast path for the most common type
        return class_name(cell)
    cell = plain(cell, "bad_label")
    if isinstance(cell, bool):
        return str(cell)
    if isinstance(cell, (int, float)) and 0 <= cell < 2**63 and cell == int(cell):
        return str(int(cell))
    if isinstance(cell, str):
        return class_name(cell)
    raise bad_cell("bad_label", cell, _CLASS)


def known(name: str, label_names: Collection[str]) -> str:
    """Returns the class name to which a cell refers by name or by index. If `label_names` is empty, all names are allowed.

    Unless they are class names, `2.0` is read as 2, and `False` and `True` as 0 and 1. Integers are indices if
    `label_names` is a tuple without integers. Raises `InvalidInput` if the class name is not in `label_names`.
    """
    if label_names and name in label_names:
        return name
    if label_names and name in _BOOLEANS:
        name = _BOOLEANS[name]
    if whole_number := _WHOLE_FLOAT.fullmatch(name):
        name = class_name(whole_number[1])
    if not label_names or name in label_names:
        return name
    if isinstance(label_names, tuple) and _INTEGER.fullmatch(name) and not any(map(_INTEGER.fullmatch, label_names)):
        if len(name) < 20 and int(name) < len(label_names):
            return label_names[int(name)]
    raise InvalidInput("bad_label", f"has {shown(name)}, which is not one of the {len(label_names)} label names")


def name_integers(cell: Any, names: Sequence[str]) -> Any:
    """Replaces class indices in a cell by class names. Raises `InvalidInput` if an integer is not a valid index."""
    if isinstance(cell, (list, tuple)):
        return [name_integers(item, names) for item in cell]
    if isinstance(cell, int) and not isinstance(cell, bool):
        if not 0 <= cell < len(names):
            raise InvalidInput("bad_label", f"has {cell}; it must be 0 to {len(names) - 1}")
        return names[cell]
    return cell


def read_one_class(column: str, cell: Any, label_names: Collection[str]) -> str:
    """Reads a cell with a single class name. Raises `InvalidInput` if the cell does not contain an allowed class, with
    advice on column kinds that can read the cell."""
    try:
        return known(read_class(cell), label_names)
    except InvalidInput as error:
        kinds = ", ".join(f"{printable(column)}:{kind}" for kind in _fitting_kinds(cell))
        raise InvalidInput(error.reason, f"{error}; use {kinds}" if kinds else str(error)) from None


def _fitting_kinds(cell: Any) -> list[str]:
    """Returns the column kinds that can read a cell that is not a class."""
    values = cell.tolist() if isinstance(cell, np.ndarray) else cell
    if isinstance(values, (str, int)) and _NEGATIVE.fullmatch(str(values)):
        return ["integer"]
    if isinstance(values, float) and math.isfinite(values):
        return ["float"]
    if not isinstance(values, (list, tuple)) or len(values) < 2:
        return []
    if all(isinstance(value, str) for value in values):
        return ["multi_label"]
    if not all(isinstance(value, (int, float)) for value in values):
        return []
    are_flags, num = set(values) <= {0, 1}, len(values)
    kinds = [f"float[{num}]", f"multi_hot[{num}]", f"one_hot[{num}]"]
    kinds = kinds[: 1 + are_flags + (are_flags and sum(values) == 1)]
    are_numbers = all(type(value) is int for value in values) and not is_one_flag_each(values, 0)
    return [*kinds, "multi_label"] if are_numbers else kinds


def read_classes(
    cell: Any, label_names: Collection[str], separator: str = DEFAULT_SEPARATOR, *, are_numbers: bool = False
) -> tuple[str, ...]:
    """Returns the distinct class names in a list, or in a string with separators.

    Args:
        cell: The cell of a column, or the values of a field.
        label_names: The class names that are allowed; empty allows all names.
        separator: The separator between class names in a string.
        are_numbers: Whether 0 and 1 are known to be class indices. Otherwise a list of 0 and 1 is rejected if it may
            have one number for each class.

    Raises:
        InvalidInput: A name is invalid, or the list may have a 0 or 1 for each class.
    """
    cells = to_list(cell, "bad_label", separator)
    if cells is None:
        raise bad_cell("bad_label", cell, f'a list such as ["cat", "dog"], or names with {separator!r} between them')
    if is_one_flag_each(cells, 0 if are_numbers else len(label_names)):
        expected = "class names or class numbers. Use the kind multi_hot for a 0 or 1 per class"
        could_be_numbers = not is_one_flag_each(cells, 0)
        omit = ", or omit --label_names to read class numbers" if could_be_numbers else ""
        raise bad_cell("bad_label", cell, f"{expected}{omit}")
    return tuple(sorted({known(read_class(item), label_names) for item in cells}))


def read_multi_hot(cell: Any, label_names: Sequence[str]) -> tuple[str, ...]:
    """Returns the classes whose flag is 1, given a list or string of flags. Raises `InvalidInput` if the cell does not
    have a 0 or 1 for each class."""
    value = plain(cell, "bad_label", keeps_lists=True)
    # NumPy separates numbers by blanks, and writes 1.0 as `1.`.
    flags = re.findall(r"[^\s,;|]+", value.strip().strip("[]")) if isinstance(value, str) else value
    if isinstance(flags, (int, float)):
        flags = [flags]
    if not isinstance(flags, list) or len(flags) != len(label_names):
        raise bad_cell("bad_label", cell, f"{len(label_names)} values of 0 or 1, one for each class")
    return tuple(sorted(name for name, flag in zip(label_names, flags) if read_flag(flag)))


def read_one_hot(cell: Any, label_names: Sequence[str]) -> str:
    """Returns the only class whose flag is 1, given a list or string of flags. Raises `InvalidInput` unless the cell
    has a 0 or 1 for each class, and exactly one 1."""
    names = read_multi_hot(cell, label_names)
    if len(names) != 1:
        raise bad_cell("bad_label", cell, "a list with exactly one 1. For any number of classes, use the kind multi_hot")
    return names[0]


def read_only_flag(flags: Mapping[str, bool]) -> str:
    """Returns the name of the only column that contains a 1. This is the class of a row if each class has its own
    column. Raises `InvalidInput` if no column or several columns have a 1."""
    names = [name for name, flag in flags.items() if flag]
    if len(names) != 1:
        problem = f"{len(names)} of the {len(flags)} columns {shown(list(flags))} have a 1 ({shown(names)})"
        raise InvalidInput("bad_label", f"{problem}; exactly one must have a 1. For several, use the kind multi_label")
    return names[0]
