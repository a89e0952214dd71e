"""Combines the rows of a table that belong to the same image into one row. Rows of an image need not be adjacent.

SQLite sorts the rows. It keeps some rows in memory, and writes the rest to temporary files.
"""

import contextlib
import itertools
import pickle
import sqlite3
from typing import Any, Callable, Iterable, Iterator, Mapping, Sequence

from beam_pipelines.columns.column import Column
from beam_pipelines.errors import InvalidInput, RunError, printable
from beam_pipelines.columns.forms import form_of
from beam_pipelines.sources.cells.cells import in_column, is_empty, read_name, shown, without_caption_number
from beam_pipelines.sources.formats.table.table_columns import TableColumns
from beam_pipelines.sources.rows.row_files import Row
from beam_pipelines.storage.files import is_remote, make_folder
from tf_input.dataset_format import OBJECTS

_CACHE_KIB = 32 << 10
_MAX_GROUP_BYTES = 64 << 20
_ROW_BYTES = 100  # memory of a row in addition to its pickle
GROUPING_BYTES = (_CACHE_KIB << 10) + _MAX_GROUP_BYTES  # the memory that `group_rows` needs, approximately

NumberedRow = tuple[int, Mapping[str, Any]]


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


def group_rows(
    rows: Iterable[tuple[str, int, Mapping[str, Any] | InvalidInput]],
    columns: Sequence[str],
    directory: str | None,
    max_bytes: int = _MAX_GROUP_BYTES,
) -> Iterator[tuple[int, list[NumberedRow] | InvalidInput]]:
    """Yields the rows of each key together, sorted by key and number.

    Args:
        rows: The key, the number and the cells of each row. An error replaces the cells of an invalid row.
        columns: The columns to keep.
        directory: The folder for temporary files. If it is None or in an object store, the system's temporary folder is
            used instead.
        max_bytes: The approximate memory limit for the rows of one key, in bytes.

    Yields:
        The number of the first row of a key, and all its numbered rows, or an error if these rows do not fit in memory.
        An invalid row is yielded separately, as its number and error.

    Raises:
        RunError: Temporary files cannot be written.
    """
    try:
        with contextlib.closing(_open_database(directory)) as database:
            for key, number, row in rows:
                if isinstance(row, InvalidInput):
                    yield number, row
                else:
                    cells = pickle.dumps([*map(row.get, columns)], 5)
                    database.execute("INSERT INTO rows VALUES (?, ?, ?)", (key, number, cells))
            found = database.execute("SELECT * FROM rows ORDER BY key, number")
            for _, group in itertools.groupby(found, lambda row: row[0]):
                yield _read_group(group, columns, max_bytes)
    except sqlite3.Error as error:
        raise _write_error(error) from error


def _open_database(directory: str | None) -> sqlite3.Connection:
    """Returns an empty database in temporary files, which SQLite deletes."""
    database = sqlite3.connect("", isolation_level=None, check_same_thread=False)
    if directory and not is_remote(directory):
        try:
            make_folder(directory)
        except OSError as error:
            raise _write_error(error.strerror) from error
        # This setting is process-wide, but all runs of a process can share a folder for temporary files.
        database.execute(f"PRAGMA temp_store_directory = '{directory.replace(chr(39), chr(39) * 2)}'")
    database.executescript(
        f"PRAGMA journal_mode = OFF; PRAGMA cache_size = -{_CACHE_KIB}; BEGIN;"
        "CREATE TABLE rows (key TEXT, number INTEGER, cells BLOB)"
    )
    return database


def _write_error(problem: object) -> RunError:
    return RunError(f"rows could not be written to a temporary file: {problem}")


def _read_group(
    rows: Iterable[tuple[str, int, bytes]], columns: Sequence[str], max_bytes: int
) -> tuple[int, list[NumberedRow] | InvalidInput]:
    first, num_bytes, numbered = 0, 0, []
    for _, number, cells in rows:
        first, num_bytes = first or number, num_bytes + len(cells) + _ROW_BYTES
        if num_bytes <= max_bytes:
            numbered.append((number, dict(zip(columns, pickle.loads(cells)))))
    if num_bytes <= max_bytes:
        return first, numbered
    problem = f"the rows of one image take more than {max_bytes:,} bytes of memory. Remove some of the rows"
    return first, InvalidInput("too_large", problem)
