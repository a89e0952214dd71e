"""Reads files with the classes of the colors or values of masks.

    class_dict.csv                 a header such as name,r,g,b, in any order
    _classes.csv (Roboflow)        Pixel Value, Class
    label_colors.txt (CamVid)      64 128 64 Animal
    labelmap.txt (CVAT)            Animal:64,128,64::
    JSON                           {"Animal": [64, 128, 64]}, or [{"name": "Animal", "color": [64, 128, 64]}]
"""

import csv
import json
import re
from typing import Any, Iterable, Iterator, Sequence

from beam_pipelines.errors import InvalidInput, UserError, printable
from beam_pipelines.sources.cells.class_cells import class_name
from beam_pipelines.storage.files import files_at
from beam_pipelines.storage.input_errors import listing_error

# Usual names of such files, in lower case.
USUAL_NAMES = ("class_dict.csv", "class_dict_seg.csv", "_classes.csv", "label_colors.txt", "labelmap.txt")
_EXPECTED = "Give a CSV file with the columns name,r,g,b, a text file with lines such as '64 128 64 Animal', or JSON such as {\"Animal\": [64, 128, 64]}."
_MAX_BYTES = 1 << 22
_COLUMNS = {
    **dict.fromkeys(("name", "class", "label", "class_name", "class name", "classname"), "name"),
    **dict.fromkeys(("r", "red"), "r"),
    **dict.fromkeys(("g", "green"), "g"),
    **dict.fromkeys(("b", "blue"), "b"),
    **dict.fromkeys(("pixel value", "pixel_value", "value", "id"), "value"),
}
_COLOR_FIRST = re.compile(r"(\d{1,3})[\s,;]+(\d{1,3})[\s,;]+(\d{1,3})[\s,;]+(?P<name>\S.*)")
_NAME_FIRST = re.compile(r"(?P<name>[^:,;\t]+?)\s*[:,;\s]\s*(\d{1,3})[\s,;]+(\d{1,3})[\s,;]+(\d{1,3})\s*(?::.*)?")


def read_mask_classes(path: str) -> dict[str, str]:
    """Reads the classes of colors or values.

    Returns:
        A mapping from colors, such as `64,128,64`, or from values, such as `0`, to class names, in the order of the file.

    Raises:
        UserError: The file cannot be read or is invalid, or gives a color two classes.
        StorageError: A disk or an object store failed.
    """
    try:
        data = files_at(path).read_range(path, 0, _MAX_BYTES + 1)
        text = data.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror or str(error) if isinstance(error, OSError) else "it is not UTF-8"
        raise listing_error(error, path, f"--mask_colors={printable(path)}: {reason}. {_EXPECTED}") from None
    try:
        if len(data) > _MAX_BYTES:
            raise ValueError(f"more than {_MAX_BYTES:,} bytes")
        return _join(list(_entries(text)))
    except (ValueError, RecursionError, InvalidInput, csv.Error) as error:
        raise UserError(f"--mask_colors={printable(path)}: {printable(str(error)[:300])}. {_EXPECTED}") from None


def _join(entries: Sequence[tuple[str, Sequence[Any]]]) -> dict[str, str]:
    """Returns a mapping from colors or values to class names. Raises `ValueError` if entries are invalid or contradict
    each other."""
    classes: dict[str, str] = {}
    for text, numbers in entries:
        name, limit = class_name(text), 255 if len(numbers) == 3 else (1 << 16) - 1
        if len(numbers) not in (1, 3) or not all(type(number) is int and 0 <= number <= limit for number in numbers):
            raise ValueError(f"the color of {name!r} is {str(numbers)[:80]}, but must be three integers from 0 to 255")
        key = ",".join(map(str, numbers))
        if classes.setdefault(key, name) != name:
            raise ValueError(f"{key} is the color of {classes[key]!r} and of {name!r}")
    if not classes:
        raise ValueError("it has no classes")
    if len({key.count(",") for key in classes}) > 1:
        raise ValueError("some classes have a color, and others have a value")
    return classes


def _entries(text: str) -> Iterator[tuple[str, Sequence[Any]]]:
    if text.lstrip()[:1] in ("{", "["):
        return _json_entries(json.loads(text))
    rows = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    columns = [_COLUMNS.get(column.strip().lower()) for column in next(csv.reader(rows[:1]), ())]
    has_header = "name" in columns and ({"r", "g", "b"} <= {*columns} or "value" in columns)
    return _table_entries(rows[1:], columns) if has_header else _line_entries(rows)


def _table_entries(rows: Iterable[str], columns: Sequence[str | None]) -> Iterator[tuple[str, Sequence[Any]]]:
    keys = ("r", "g", "b") if "r" in columns else ("value",)
    for row in csv.reader(rows):
        cells = dict(zip(columns, row))
        if not {"name", *keys} <= cells.keys():
            raise ValueError(f"the row {','.join(row)[:80]!r} has {len(row)} cells instead of {len(columns)}")
        yield cells["name"], [_to_int(cells[key]) for key in keys]


def _line_entries(rows: Iterable[str]) -> Iterator[tuple[str, Sequence[Any]]]:
    for row in rows:
        match = _COLOR_FIRST.fullmatch(row) or _NAME_FIRST.fullmatch(row)
        if match is None:
            raise ValueError(f"the line {row[:80]!r} is not a color with a class")
        numbers = [int(group) for index, group in enumerate(match.groups(), 1) if index != match.re.groupindex["name"]]
        yield match["name"], numbers


def _json_entries(content: Any) -> Iterator[tuple[str, Sequence[Any]]]:
    items = content.items() if isinstance(content, dict) else enumerate(content)
    for name, item in items:
        if isinstance(item, dict):
            name = item.get("name", item.get("label", name))
            item = item.get("color", item.get("rgb", item.get("id")))
        numbers = item if isinstance(item, list) else [item]
        yield str(name), numbers


def _to_int(text: str) -> int:
    if not re.fullmatch(r"\s*[0-9]{1,5}\s*", text):
        raise ValueError(f"{text[:80]!r} is not an integer of a color")
    return int(text)
