"""What is in one cell of a row, or one field of a record, read as its column's kind expects.

A cell is a str, as CSV has them, or what JSON, Parquet and records have: numbers, lists, None, NumPy's scalars and
arrays, and bytes, which are UTF-8. A list of one is as good as the one.
"""

import decimal
import json
import re
import reprlib
import unicodedata
from typing import Any, Callable

import numpy as np

from beam_pipelines.config.label_lists import is_bracketed, parse_list, split_names
from beam_pipelines.elements.labeled_image import FilePart
from beam_pipelines.errors import CONTROL, Refusal, printable
from beam_pipelines.sources.folders.file_listing import is_utf8
from beam_pipelines.sources.folders.roots import OutsideError, Root
from beam_pipelines.storage.files import is_remote


def in_column(name: str, convert: Callable[..., Any], *arguments: Any) -> Any:
    """What `convert` makes of a cell; the message of its Refusal says which column that is."""
    try:
        return convert(*arguments)
    except Refusal as error:
        raise Refusal(error.reason, f"column {printable(name)!r} {error}") from None


_MAX_NAME_CHARACTERS = 4096
_MAX_FLOAT = 3.4028234663852886e38  # of 32 bits
_FLAGS = {"": False, "false": False, "true": True} | {f"{flag:d}{zeros}": flag for flag in (False, True) for zeros in ("", ".", ".0")}


def read_float(cell: Any) -> float:
    """Reads a finite number that fits into 32 bits; a boolean is 0 or 1.

    Raises:
        Refusal: The cell has no such number.
    """
    cell = plain(cell, "bad_value")
    expected = "a finite number of 32 bits"
    if not isinstance(cell, (int, float, str, decimal.Decimal)):
        raise bad_cell("bad_value", cell, expected)
    try:
        value = float(cell)
    except (ValueError, OverflowError):
        raise bad_cell("bad_value", cell, expected) from None
    if not -_MAX_FLOAT <= value <= _MAX_FLOAT or (isinstance(cell, str) and "_" in cell):  # NaN is not between either
        raise bad_cell("bad_value", cell, expected)
    return value


def read_list(cell: Any, read: Callable[[Any], Any], num_values: int | None, separator: str | None = None) -> tuple[Any, ...]:
    """Reads several values from a cell: a list, or a text with one in brackets, or with a separator between values.

    Args:
        cell: The cell as it was read.
        read: A function that reads one value.
        num_values: The number of values that there must be; None: any number, also none.
        separator: The separator between values in a text without brackets; None: blanks or commas, as numbers have.

    Raises:
        Refusal: It has others, or not so many.
    """
    cell = plain(cell, "bad_value", keeps_lists=True)
    if isinstance(cell, str):
        cells = _split_list(cell, separator)
    elif isinstance(cell, list):
        cells = cell
    else:
        cells = [] if cell is None else [cell]
    if cells is None or num_values not in (None, len(cells)):
        several = f"{num_values} {'texts' if separator else 'numbers'}"
        raise bad_cell("bad_value", cell, "a list such as [1, 2]" if num_values is None else several)
    if nested := [one for one in cells if isinstance(one, (list, dict))]:
        raise bad_cell("bad_value", nested[0], "one value in each place of a list")
    return tuple(map(read, cells))


def _split_list(text: str, separator: str | None) -> list[Any] | None:
    """The values in a text; None: it begins like a list, and is none."""
    if is_bracketed(text):
        items = parse_list(text)
        if items is None and separator is None:  # NumPy writes no commas
            return text.strip()[1:-1].split()
        return items
    if separator is not None:
        return split_names(text, separator)
    return re.split(r"\s*,\s*|\s+", text.strip()) if text.strip() else []


def read_weight(cell: Any) -> float:
    """Reads the weight of an example.

    Raises:
        Refusal: The cell is no finite number of at least 0.
    """
    weight = read_float(cell)
    if weight < 0:
        raise bad_cell("bad_value", cell, "a weight of at least 0")
    return weight


def read_integer(cell: Any) -> int:
    """Reads an integer of 64 bits: a number without a fraction (pandas writes 2.0 in a column with missing cells), or a boolean.

    Raises:
        Refusal: `bad_value`, the cell has no such number.
    """
    value = cell = plain(cell, "bad_value")
    if isinstance(cell, str) and len(cell) <= 40 and (digits := re.fullmatch(r"\s*([+-]?[0-9]{1,20})(?:\.0*)?\s*", cell)):
        value = int(digits[1])
    if not isinstance(value, (int, float)) or not -(2**63) <= value < 2**63 or value != int(value):
        raise bad_cell("bad_value", cell, "an integer of 64 bits")
    return int(value)


def read_flag(cell: Any) -> bool:
    """0 or 1, false or true; nothing is false. Refusal `bad_label` where the cell has another value."""
    cell = plain(cell, "bad_label")
    if isinstance(cell, (int, float)) and cell in (0, 1):
        return bool(cell)
    text = cell.strip().lower() if isinstance(cell, str) else "" if cell is None else None
    if text not in _FLAGS:
        raise bad_cell("bad_label", cell, "0, 1, false, true or nothing")
    return _FLAGS[text]


def read_text(cell: Any) -> str:
    """A str as it is, nothing as an empty one, what else JSON can write as JSON writes it, and dates, decimals and the like as Python does.

    Raises:
        Refusal: It is not UTF-8.
    """
    cell = plain(cell, "bad_value", keeps_lists=True)
    if cell is None:
        return ""
    text = json.dumps(cell, ensure_ascii=False, default=str) if isinstance(cell, (list, dict, int, float)) else str(cell)
    if not is_utf8(text):
        raise bad_cell("bad_value", cell, "text in UTF-8")
    return text


def read_name(reason: str, cell: Any) -> str:
    """A key or the name of a group, in NFC; a number is named by its digits.

    Raises:
        Refusal: With the given reason: it is empty, too long, or not on one line.
    """
    name = unicodedata.normalize("NFC", read_text(cell if type(cell) is str else plain(cell, reason)))
    if not 0 < len(name) <= _MAX_NAME_CHARACTERS or CONTROL.search(name):
        raise bad_cell(reason, cell, f"text on one line, of at most {_MAX_NAME_CHARACTERS} characters")
    return name


def read_path(cell: Any, root: Root) -> str:
    """Reads the path of a file below the root, and returns it relative to the root.

    Raises:
        Refusal: The cell has no path, or one that leads out of the root.
    """
    if type(cell) is not str:
        cell = plain(cell, "bad_value")
    if not isinstance(cell, str) or not 0 < len(cell) <= _MAX_NAME_CHARACTERS or not is_utf8(cell):
        raise bad_cell("bad_value", cell, f"a path in UTF-8, of at most {_MAX_NAME_CHARACTERS} characters")
    if "://" in cell and is_remote(cell) and not cell.startswith(f"{root.path}/"):
        raise Refusal("outside", f"has {shown(cell)}; expected a path below {root.path}")
    try:
        return root.relative(cell)
    except OutsideError as error:
        raise Refusal("outside", f"has a path that leads nowhere: {error}") from None


def read_image_path(cell: Any, root: Root, suffix: str) -> str:
    """The path of an image below the root, relative to it.

    Args:
        cell: With its path, or with a dictionary that has one, as Hugging Face's libraries write it.
        root: The root that the path is relative to.
        suffix: What the path gets at its end, if it does not end so.

    Raises:
        Refusal: As `read_path` does.
    """
    path = cell.get("path", cell.get("file_name")) if isinstance(cell, dict) else cell
    if suffix:
        path = plain(path, "bad_value")
        lacks = path and isinstance(path, (str, int)) and not isinstance(path, bool) and not str(path).endswith(suffix)
        path = f"{path}{suffix}" if lacks else path
    return read_path(path, root)


def embedded_bytes(cell: Any) -> bytes | None:
    """The bytes of an image that is in the table; None where only its path is."""
    data = cell.get("bytes") if isinstance(cell, dict) else cell
    return data if isinstance(data, bytes) and data else None


def read_other_file(cell: Any, root: Root, suffix: str) -> FilePart | bytes:
    """Where another image, or a mask, lies, as `read_image_path` has it; or its bytes, where they are in the table."""
    return embedded_bytes(cell) or FilePart(read_image_path(cell, root, suffix))


def plain(cell: Any, reason: str, keeps_lists: bool = False) -> Any:
    """A cell in Python's own types, bytes decoded, and the one of a list of one in its place unless lists are kept."""
    if isinstance(cell, (np.ndarray, np.generic)):
        cell = cell.tolist()
    if isinstance(cell, tuple):
        cell = list(cell)
    if isinstance(cell, list) and len(cell) == 1 and not keeps_lists:
        cell = cell[0]
    if isinstance(cell, bytes):
        try:
            return cell.decode()
        except UnicodeDecodeError:
            raise bad_cell(reason, cell, "text in UTF-8") from None
    return cell


def bad_cell(reason: str, cell: Any, expected: str) -> Refusal:
    """What to raise for a cell: what it has, against what is expected."""
    return Refusal(reason, f"is empty; expected {expected}" if is_empty(cell) else f"has {shown(cell)}; expected {expected}")


def is_empty(cell: Any) -> bool:
    """Whether a plain cell has nothing, or blanks alone."""
    return cell is None or (isinstance(cell, list) and not cell) or (isinstance(cell, str) and not cell.strip())


def shown(cell: Any) -> str:
    """A cell as a message has it: on one line, and not all of it where that is long."""
    text = reprlib.repr(cell) if not isinstance(cell, (str, bytes)) else repr(cell[:80])
    return CONTROL.sub("?", text[:200])
