"""Combines the rows of a table that belong to the same image into one row."""

from typing import Any, Callable, Iterable, Iterator, Mapping, Sequence

from beam_pipelines.columns.column import Column
from beam_pipelines.errors import InvalidInput, printable
from beam_pipelines.columns.forms import form_of
from beam_pipelines.sources.cells.cells import in_column, is_empty, read_name, shown, without_caption_number
from beam_pipelines.sources.formats.table.table_columns import TableColumns
from beam_pipelines.sources.rows.row_files import Row
from beam_pipelines.sources.rows.row_groups import NumberedRow, group_rows
from tf_input.dataset_format import OBJECTS


def combine_rows(
    rows: Iterable[Row],
    columns: TableColumns,
    kept: Sequence[Column],
    names: Sequence[str],
    fill: Callable[[Mapping[str, Any]], Mapping[str, Any]],
    directory: str | None,
) -> Iterator[Row]:
    """Yields one row for each image, numbered like its first row in the table. A column has one of these values:

        `text[]`, `float[]`, `integer[]`, `multi_label`, `rle`    the list of all cells
        `objects`                                                 the numbered rows, from which boxes are read
        any other column                                          the value that all rows of the image share

    If two rows have different values in a column that describes the image, an `InvalidInput` with the reason
    `row_conflict` replaces the row.

    Args:
        rows: The rows of a file, or errors.
        columns: The columns with the image, the key and so on.
        kept: The columns that become labels or features.
        names: The names of all columns to read.
        fill: Replaces missing cells in a row.
        directory: The folder for temporary files.
    """
    boxes = columns.boxes
    of_lists = [column for column in kept if column.shape == (None,) or form_of(column).is_split]
    lists = dict.fromkeys(name for column in of_lists for name in column.names)
    shared = {columns.image, *columns.roles.names, *(boxes.size if boxes else ())}
    shared.update(name for column in kept if column not in of_lists for name in column.names)
    only_of_boxes = {*boxes.box, boxes.label, *boxes.flags, *lists} if boxes else {*lists}
    of_image = [name for name in names if name in shared or name not in only_of_boxes]
    for number, some in group_rows((_with_key(row, columns.image or "") for row in rows), names, directory):
        if isinstance(some, InvalidInput):
            yield number, some
            continue
        filled = [(number, fill(row)) for number, row in some]
        values: dict[str, Any] = {name: [row.get(name) for _, row in filled] for name in lists}
        yield number, _find_conflict(filled, of_image) or {
            **{name: filled[0][1].get(name) for name in of_image}, **values, **({OBJECTS: filled} if boxes else {})
        }  # fmt: skip


def _with_key(row: Row, image: str) -> tuple[str, int, Mapping[str, Any] | InvalidInput]:
    """Returns the image path in a row, the number of the row, and its cells or an error."""
    number, cells = row
    if isinstance(cells, InvalidInput):
        return "", number, cells
    cell = cells.get(image)
    path = cell.get("path", cell.get("file_name")) if isinstance(cell, dict) else without_caption_number(cell)
    try:
        return in_column(image, read_name, "bad_value", path), number, cells if path is cell else {**cells, image: path}
    except InvalidInput as error:
        return "", number, error


def _find_conflict(rows: Sequence[NumberedRow], names: Sequence[str]) -> InvalidInput | None:
    first, row = rows[0]
    for number, other in rows[1:]:
        for name in names:
            cell, found = row.get(name), other.get(name)
            if cell != found and not (is_empty(cell) and is_empty(found)):
                problem = f"column {printable(name)!r} has {shown(cell)} in row {first} and {shown(found)} in row {number}"
                return InvalidInput("row_conflict", f"{problem}, but both rows belong to one image")
    return None
