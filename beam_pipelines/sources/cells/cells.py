"""Converts table cells and record fields to feature values, according to the kind of the column.

In CSV files, each cell is a string. In other formats, a cell can also be a number, a list, None, bytes or a NumPy
value. A list that contains a single value is treated like that value.
"""

import decimal
import json
import math
import re
import reprlib
import unicodedata
from typing import Any, Callable

import numpy as np

from beam_pipelines.elements.label_lists import is_bracketed, parse_list, split_names
from beam_pipelines.errors import CONTROL, InvalidInput, printable
from beam_pipelines.sources.files.paths import is_utf8
from beam_pipelines.sources.files.roots import OutsideError, Root
from beam_pipelines.storage.files import is_remote


def in_column(name: str, convert: Callable[..., Any], *arguments: Any) -> Any:
    """Returns `convert(*arguments)`. If it raises `InvalidInput`, the column name is added to the message."""
    try:
        return convert(*arguments)
    except InvalidInput as error:
        raise InvalidInput(error.reason, f"column {printable(name)!r} {error}") from None


_MAX_NAME_CHARACTERS = 4096
_NUMBERED_IMAGE = re.compile(r"(.+\.(?:jpe?g|png|gif|bmp|webp))#\d+", re.IGNORECASE)
_DECIMAL_COMMA = re.compile(r"[-+]?\d*,\d+")
_MAX_FLOAT = 3.4028234663852886e38  # maximum of float32
_FLAGS = {"": False, "false": False, "true": True} | {f"{flag:d}{zeros}": flag for flag in (False, True) for zeros in ("", ".", ".0")}


def read_float(cell: Any) -> float:
    """Converts a cell to a finite number that float32 can store. A boolean becomes 0 or 1. Raises `InvalidInput` if the
    cell does not contain such a number."""
    cell = plain(cell, "bad_value")
    try:
        value = float(cell) if isinstance(cell, (int, float, str, decimal.Decimal)) else math.nan
    except (ValueError, OverflowError):
        value = math.nan
    if not -_MAX_FLOAT <= value <= _MAX_FLOAT or (isinstance(cell, str) and "_" in cell):  # also rejects NaN
        has_comma = isinstance(cell, str) and _DECIMAL_COMMA.fullmatch(cell.strip())
        advice = ", with a decimal point instead of a comma" if has_comma else ""
        raise bad_cell("bad_value", cell, f"a finite number that fits into 32 bits{advice}")
    return value


def read_list(cell: Any, read: Callable[[Any], Any], num_values: int | None, separator: str | None = None) -> tuple[Any, ...]:
    """Reads the values in a list, or in a string with brackets or separators.

    Args:
        cell: The cell.
        read: A function that reads one value.
        num_values: The required number of values; None allows any number.
        separator: The separator in strings without brackets. If it is None, blanks or commas separate numbers.

    Raises:
        InvalidInput: A value is invalid, or the number of values is wrong.
    """
    cells = to_list(cell, "bad_value", separator)
    if cells is None or num_values not in (None, len(cells)):
        several = f"{num_values} {'texts' if separator else 'numbers'}"
        raise bad_cell("bad_value", cell, "a list such as [1, 2]" if num_values is None else several)
    if nested := [item for item in cells if isinstance(item, (list, dict))]:
        raise bad_cell("bad_value", nested[0], "a single value, because the list may not contain lists")
    return tuple(map(read, cells))


def to_list(cell: Any, reason: str, separator: str | None = None) -> list[Any] | None:
    """Returns the items of a list, or of a string with brackets or separators. A missing cell becomes an empty list,
    and any other cell becomes a list of one item. Returns None if a string has brackets but is not a valid list.

    Args:
        cell: The cell.
        reason: The reason of an `InvalidInput`, if the cell has bytes that are not UTF-8.
        separator: The separator in strings without brackets. If it is None, blanks or commas separate numbers.
    """
    cell = plain(cell, reason, keeps_lists=True)
    if not isinstance(cell, str):
        return cell if isinstance(cell, list) else [] if cell is None else [cell]
    items, has_brackets = parse_list(cell), is_bracketed(cell)
    if separator is not None:
        return items if items is not None or has_brackets else split_names(cell, separator)
    text = (cell.strip()[1:-1] if has_brackets else cell).strip()  # NumPy writes arrays without commas
    return items if items is not None else re.split(r"\s*,\s*|\s+", text) if text else []


_MAX_DEPTH = 4  # of nested lists


def read_numbers(cell: Any, depth: int = _MAX_DEPTH) -> list[Any]:
    """Reads numbers from nested lists, from JSON with nested lists, or from a string with separators.

    Returns:
        Flat or nested lists of floats. A missing number, such as null, NaN or an empty string, becomes None.

    Raises:
        InvalidInput: A value is not a number, or lists are nested too deeply.
    """
    items = [None] if cell is None else to_list(cell, "bad_value") or []
    if not depth:
        raise bad_cell("bad_value", cell, "a list of numbers, or a list of such lists")
    are_lists = [isinstance(item, (list, tuple, np.ndarray)) for item in items]
    return [read_numbers(item, depth - 1) if is_list else read_optional_float(item) for item, is_list in zip(items, are_lists)]


def read_optional_float(cell: Any) -> float | None:
    """Converts a cell to a number as `read_float` does, or to None if the cell is empty or NaN."""
    is_missing = is_empty(cell) or (isinstance(cell, (float, np.floating)) and cell != cell)
    return None if is_missing or (isinstance(cell, str) and cell.strip().lower() == "nan") else read_float(cell)


def read_weight(cell: Any) -> float:
    """Reads the weight of an example. Raises `InvalidInput` if the cell is not a finite number of at least 0."""
    weight = read_float(cell)
    if weight < 0:
        raise bad_cell("bad_value", cell, "a weight of at least 0")
    return weight


def read_integer(cell: Any) -> int:
    """Converts a boolean or a number without a fraction to a 64-bit integer. Accepts 2.0, because pandas writes integers
    as floats in columns with missing values. Raises `InvalidInput` for other cells."""
    value = cell = plain(cell, "bad_value")
    if isinstance(cell, str) and len(cell) <= 40 and (digits := re.fullmatch(r"\s*([+-]?[0-9]{1,20})(?:\.0*)?\s*", cell)):
        value = int(digits[1])
    if not isinstance(value, (int, float)) or not -(2**63) <= value < 2**63 or value != int(value):
        raise bad_cell("bad_value", cell, "an integer that fits into 64 bits")
    return int(value)


def read_flag(cell: Any) -> bool:
    """Converts 0, 1, false or true to a boolean, and an empty cell to False. Raises `InvalidInput` for other cells."""
    cell = plain(cell, "bad_label")
    if isinstance(cell, (int, float)) and cell in (0, 1):
        return bool(cell)
    text = cell.strip().lower() if isinstance(cell, str) else "" if cell is None else None
    if text not in _FLAGS:
        raise bad_cell("bad_label", cell, "0, 1, false, true or empty. The kind integer keeps other numbers, such as -1")
    return _FLAGS[text]


def read_text(cell: Any) -> str:
    """Converts a cell to a string. Missing cells become "", and lists and objects become JSON. Raises `InvalidInput` if
    the string is not valid UTF-8."""
    cell = plain(cell, "bad_value", keeps_lists=True)
    if cell is None:
        return ""
    text = json.dumps(cell, ensure_ascii=False, default=str) if isinstance(cell, (list, dict, int, float)) else str(cell)
    if not is_utf8(text):
        raise bad_cell("bad_value", cell, "text in UTF-8")
    return text


def read_name(reason: str, cell: Any) -> str:
    """Reads a key or a group name, in NFC. Numbers become strings. Raises `InvalidInput` with the reason `reason` if
    the name is empty or too long, or has control characters."""
    cell = cell if type(cell) is str else plain(cell, reason)
    name = "" if isinstance(cell, (list, dict)) else unicodedata.normalize("NFC", read_text(cell))
    if not 0 < len(name) <= _MAX_NAME_CHARACTERS or CONTROL.search(name):
        raise bad_cell(reason, cell, f"text on one line, of at most {_MAX_NAME_CHARACTERS} characters")
    return name


def read_path(cell: Any, root: Root) -> str:
    """Reads the path of a file and returns it relative to the root. Raises `InvalidInput` if the cell is not a path, or
    the path is outside the root."""
    if type(cell) is not str:
        cell = plain(cell, "bad_value")
    if not isinstance(cell, str) or not 0 < len(cell) <= _MAX_NAME_CHARACTERS or not is_utf8(cell):
        raise bad_cell("bad_value", cell, f"a path in UTF-8, of at most {_MAX_NAME_CHARACTERS} characters")
    if "://" in cell and is_remote(cell) and not cell.startswith(f"{root.path}/"):
        raise InvalidInput("outside", f"has {shown(cell)}, which is not a path below {root.path}")
    try:
        return root.relative(cell)
    except OutsideError as error:
        raise InvalidInput("outside", f"has an invalid path: {error}") from None


def without_caption_number(cell: Any) -> Any:
    """Removes a caption number from the name of an image, such as `#0` from `1.jpg#0`."""
    match = _NUMBERED_IMAGE.fullmatch(cell) if isinstance(cell, str) and "#" in cell else None
    return match[1] if match else cell


def read_image_path(cell: Any, root: Root, suffix: str) -> str:
    """Reads the path of an image from a string, or from a dictionary as written by Hugging Face's libraries. Appends
    `suffix` to paths that do not end with it. See `read_path` for errors."""
    path = cell.get("path", cell.get("file_name")) if isinstance(cell, dict) else cell
    if suffix:
        path = plain(path, "bad_value")
        lacks = path and isinstance(path, (str, int)) and not isinstance(path, bool) and not str(path).endswith(suffix)
        path = f"{path}{suffix}" if lacks else path
    return read_path(path, root)


def embedded_bytes(cell: Any) -> bytes | None:
    """Returns the bytes of an image that is stored in a cell, or None if the cell contains only a path."""
    data = cell.get("bytes") if isinstance(cell, dict) else cell
    return data if isinstance(data, bytes) and data else None


def plain(cell: Any, reason: str, keeps_lists: bool = False) -> Any:
    """Converts a cell to Python types and decodes bytes. If a list has only one value, returns this value, unless
    `keeps_lists` is true."""
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


def bad_cell(reason: str, cell: Any, expected: str) -> InvalidInput:
    """Returns the error for an invalid cell. Its message states the actual and the expected value."""
    return InvalidInput(reason, f"{'is empty' if is_empty(cell) else f'has {shown(cell)}'}; it must be {expected}")


def is_empty(cell: Any) -> bool:
    """Returns whether a cell is empty or contains only whitespace."""
    return cell is None or (isinstance(cell, list) and not cell) or (isinstance(cell, str) and not cell.strip())


def is_missing(cell: Any) -> bool:
    """Returns whether a cell is empty, blank, or NaN as pandas writes it for missing cells."""
    if isinstance(cell, (str, bytes)):
        return not cell.strip()
    return cell is None or isinstance(cell, (float, np.floating)) and cell != cell


def shown(cell: Any) -> str:
    """Formats a cell for a message, shortened and on a single line."""
    text = reprlib.repr(cell) if not isinstance(cell, (str, bytes)) else repr(cell[:80])
    return CONTROL.sub("?", text[:200])
