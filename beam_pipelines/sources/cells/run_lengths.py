"""Reads masks that a table stores as run lengths, in Kaggle's or COCO's format."""

import re
from typing import Any, Callable, Collection, Mapping, Sequence

from beam_pipelines.columns.column import Column
from beam_pipelines.errors import InvalidInput, printable
from beam_pipelines.images.annotations import Regions
from beam_pipelines.sources.cells.cells import bad_cell, in_column, is_missing, plain, read_integer
from beam_pipelines.sources.cells.class_cells import known, read_class
from beam_pipelines.sources.cells.json_text import read_json

_PAIRS = re.compile(r"\d+(?:\s+\d+)*")
_MAX_VALUE = 0xFFFF
_EXPECTED = 'run lengths such as "1 3 10 5" (start and length, from 1), or {"size": [height, width], "counts": …}'


def run_length_reader(column: Column, label_names: Collection[str]) -> Callable[[Mapping[str, Any]], Regions]:
    """Returns a function that reads the mask in a row.

    The first column contains the run lengths of a region; a missing cell or -1 means no region. The second column
    contains the class of the region, which determines the value of its pixels. Without a second column, the value is 1.
    If rows are grouped by image, each cell is a list.

    Args:
        column: The one or two columns.
        label_names: The class names of the mask, in the order of the pixel values; empty if classes are integers.
    """
    runs, *classes = column.names

    def read(row: Mapping[str, Any]) -> Regions:
        cells = _as_list(row.get(runs))
        values = _as_list(row.get(classes[0])) if classes else [1] * len(cells)
        regions = [(in_column(runs, _read_runs, cell), value) for cell, value in zip(cells, values) if not _is_empty(cell)]
        read_value = lambda value: in_column(classes[0], _read_value, value, tuple(label_names)) if classes else value
        labels = tuple(str(read_value(value)) for _, value in regions)
        return Regions(labels, tuple(region for region, _ in regions), are_values=True)

    return read


def _as_list(cell: Any) -> list[Any]:
    return cell if isinstance(cell, list) else [cell]


def _is_empty(cell: Any) -> bool:
    return is_missing(cell) or (isinstance(cell, str) and cell.strip() == "-1") or (type(cell) is int and cell == -1)


def _read_runs(cell: Any) -> str | dict[str, Any]:
    """Returns a string with pairs of start and length, or COCO's run lengths.

    Raises:
        InvalidInput: `bad_mask`: the cell contains neither of these.
    """
    value = plain(cell, "bad_mask")
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = read_json(value)
        except (ValueError, RecursionError):
            raise bad_cell("bad_mask", cell, _EXPECTED) from None
    if isinstance(value, dict):
        if not isinstance(value.get("counts"), (str, bytes, list)):
            raise bad_cell("bad_mask", cell, _EXPECTED)
        return {name: value[name] for name in ("size", "counts") if value.get(name) is not None}
    if not isinstance(value, str):
        raise bad_cell("bad_mask", cell, _EXPECTED)
    text = value.strip()
    if _PAIRS.fullmatch(text):
        if len(text.split()) % 2:
            raise InvalidInput("bad_mask", f"has {len(text.split()):,} numbers; it must have pairs of start and length")
        return text
    if any(character.isspace() for character in text):
        raise bad_cell("bad_mask", cell, _EXPECTED)
    return {"counts": text}


def _read_value(cell: Any, label_names: Sequence[str]) -> int:
    """Returns the pixel value of a class: the integer in the cell, or the index of the class name in the cell."""
    if label_names:
        return label_names.index(known(read_class(cell), label_names))
    try:
        value = read_integer(cell)
    except InvalidInput:
        value = 0
    if not 0 < value <= _MAX_VALUE:
        advice = "For names, pass --label_names mask=FILE, with the background in the first line"
        raise bad_cell("bad_label", cell, f"an integer from 1 to {_MAX_VALUE}. {printable(advice)}")
    return value
