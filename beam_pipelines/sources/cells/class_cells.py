"""The class names in one cell: one, several, or a 0 or 1 for each class."""

import functools
import math
import re
import unicodedata
from typing import Any, Collection, Mapping, Sequence

import numpy as np

from beam_pipelines.config.label_lists import DEFAULT_SEPARATOR, is_bracketed, is_one_flag_each, parse_list, split_names
from beam_pipelines.errors import CONTROL, Refusal, printable
from beam_pipelines.sources.cells.cells import bad_cell, plain, read_flag, shown
from beam_pipelines.sources.folders.file_listing import is_utf8

_MAX_CLASS_CHARACTERS = 256
_CLASS = f"a class name, on one line and of at most {_MAX_CLASS_CHARACTERS} characters, or an integer of at least 0"
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)")
_WHOLE_FLOAT = re.compile(r"(-?(?:0|[1-9][0-9]*))\.0*")  # pandas writes integers so if a cell of the column is missing


@functools.lru_cache(1 << 16)
def class_name(text: str) -> str:
    """A class name as the data set has it: in NFC, without blanks around it.

    Raises:
        Refusal: It is empty, too long, not on one line or not UTF-8, or a number that is no label.
    """
    name = unicodedata.normalize("NFC", text.strip())
    if not 0 < len(name) <= _MAX_CLASS_CHARACTERS or CONTROL.search(name) or not is_utf8(name):
        raise bad_cell("bad_label", text, _CLASS)
    if name[0] == "-" and _INTEGER.fullmatch(name):
        raise bad_cell("bad_label", text, _CLASS)
    return name


def read_class(cell: Any) -> str:
    """Returns the class name in a cell. A number without a fraction is named by its digits, a boolean is 0 or 1.

    Raises:
        Refusal: The cell has no class name.
    """
    if type(cell) is str:  # first, because this is by far the most common type
        return class_name(cell)
    cell = plain(cell, "bad_label")
    if isinstance(cell, (int, float)) and 0 <= cell < 2**63 and cell == int(cell):
        return str(int(cell))
    if isinstance(cell, str):
        return class_name(cell)
    raise bad_cell("bad_label", cell, _CLASS)


def known(name: str, label_names: Collection[str]) -> str:
    """Returns the class name that a name from a cell stands for: `2.0` is the integer label `2`, unless the label names have `2.0`.

    Raises:
        Refusal: The label cannot have this class.
    """
    if label_names and name in label_names:
        return name
    if whole := _WHOLE_FLOAT.fullmatch(name):
        name = class_name(whole[1])
    if not label_names or name in label_names:
        return name
    if isinstance(label_names, tuple) and _INTEGER.fullmatch(name) and not any(map(_INTEGER.fullmatch, label_names)):
        if len(name) < 20 and int(name) < len(label_names):
            return label_names[int(name)]
    raise Refusal("bad_label", f"has {shown(name)}; expected one of the {len(label_names)} label names")


def name_integers(column: str, cell: Any, names: Sequence[str]) -> Any:
    """A cell with class names in place of their positions, wherever it has integers.

    Raises:
        Refusal: One is no position of a name.
    """
    if isinstance(cell, (list, tuple)):
        return [name_integers(column, one, names) for one in cell]
    if isinstance(cell, int) and not isinstance(cell, bool):
        if not 0 <= cell < len(names):
            raise Refusal("bad_label", f"column {printable(column)!r} has {cell}; expected 0 to {len(names) - 1}")
        return names[cell]
    return cell


def read_one_class(column: str, cell: Any, label_names: Collection[str]) -> str:
    """The class name in a cell of a column, one of those that are given, if any are.

    Raises:
        Refusal: It has none; the message says which kinds would read it.
    """
    try:
        return known(read_class(cell), label_names)
    except Refusal as error:
        kinds = _fitting_kinds(column, cell)
        raise Refusal(error.reason, f"{error}; {kinds}" if kinds else str(error)) from None


def _fitting_kinds(column: str, cell: Any) -> str:
    """The kinds that would read what is no class: a float, several numbers, several texts; empty: none is known."""
    column, values = printable(column), cell.tolist() if isinstance(cell, np.ndarray) else cell
    if isinstance(values, float) and math.isfinite(values):
        return f"{column}:float reads a number"
    if not isinstance(values, (list, tuple)) or len(values) < 2:
        return ""
    if all(isinstance(one, str) for one in values):
        return f"{column}:multi_label reads several classes"
    if not all(isinstance(one, (int, float)) for one in values):
        return ""
    flags = f", {column}:multi_hot[{len(values)}] a 0 or 1 for each class" if set(values) <= {0, 1} else ""
    are_numbers = all(type(one) is int for one in values) and not is_one_flag_each(values, 0)
    several = f", {column}:multi_label several classes" if are_numbers else ""
    return f"{column}:float[{len(values)}] reads {len(values)} numbers{flags}{several}"


def read_classes(
    cell: Any, label_names: Collection[str], separator: str = DEFAULT_SEPARATOR, *, are_numbers: bool = False
) -> tuple[str, ...]:
    """The class names in a list, or in a text with a separator between them, each once.

    Args:
        cell: The cell of a column, or the values of a field.
        label_names: The class names that there may be; empty: any.
        separator: The separator between class names in a text.
        are_numbers: Whether it is known that 0 and 1 are the numbers of two classes, and not a 0 for one and a 1 for the other.

    Raises:
        Refusal: One is none, or the list has a 0 or 1 for each class.
    """
    cells = _items(cell, separator)
    if is_one_flag_each(cells, 0 if are_numbers else len(label_names)):
        expected = "class names, or numbers of classes; the kind of a 0 or 1 for each class is multi_hot"
        could_be_numbers = not is_one_flag_each(cells, 0)
        raise bad_cell("bad_label", cell, f"{expected}, and without --label_names these are numbers" if could_be_numbers else expected)
    return tuple(sorted({known(read_class(one), label_names) for one in cells}))


def read_multi_hot(cell: Any, label_names: Sequence[str]) -> tuple[str, ...]:
    """The names of those classes for which a list, or a text of numbers, has a 1.

    Raises:
        Refusal: It has not a 0 or 1 for each class.
    """
    value = plain(cell, "bad_label", keeps_lists=True)
    flags = re.findall(r"[^\s,;|]+", value.strip().strip("[]")) if isinstance(value, str) else value  # NumPy writes 1. for 1.0
    if not isinstance(flags, list) or len(flags) != len(label_names):
        raise bad_cell("bad_label", cell, f"{len(label_names)} values of 0 or 1, one for each class")
    return tuple(sorted(name for name, flag in zip(label_names, flags) if read_flag(flag)))


def read_only_flag(flags: Mapping[str, bool]) -> str:
    """Returns the name of the only column that has a 1.

    Raises:
        Refusal: No column has a 1, or several have.
    """
    names = [name for name, flag in flags.items() if flag]
    if len(names) != 1:
        found = f"{len(names)} of the {len(flags)} columns have a 1 ({shown(names)})"
        raise Refusal("bad_label", f"{found}; expected a 1 in exactly one of {shown(list(flags))}, or the kind multi_label")
    return names[0]


def _items(cell: Any, separator: str) -> list[Any]:
    cell = plain(cell, "bad_label", keeps_lists=True)
    if not isinstance(cell, str):
        return cell if isinstance(cell, list) else [] if cell is None else [cell]
    items = parse_list(cell)
    if items is None and is_bracketed(cell):
        raise bad_cell("bad_label", cell, f'a list such as ["cat", "dog"], or names with {separator!r} between them')
    return split_names(cell, separator) if items is None else items
