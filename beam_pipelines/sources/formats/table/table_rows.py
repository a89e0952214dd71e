"""Reads the rows of a table file in CSV, JSON Lines or Parquet format.

The memory use is constant, because the length of lines is limited, and Parquet files are read page by page.

CSV files must be encoded in UTF-8, have the format of RFC 4180, and start with a header unless `--column_names` is
given. The delimiter is detected from the first line, unless the file ends in `.tsv` or `--delimiter` is given. A quoted
cell can span several lines. If a row of several lines is malformed, the run fails, because a quote is probably missing
and an unknown number of rows would be lost.
"""

import collections
import contextlib
import csv
import itertools
from typing import Any, Iterator, Mapping, NamedTuple, Sequence

from beam_pipelines.config.source_config import SourceConfig
from beam_pipelines.errors import InvalidInput, UserError, did_you_mean, printable
from beam_pipelines.sources.cells.json_text import read_json
from beam_pipelines.sources.cells.unused_fields import UnusedFields
from beam_pipelines.sources.files.paths import is_utf8
from beam_pipelines.sources.rows.lines import MAX_LINE, Lines, LongLineError, open_lines, read_lines
from beam_pipelines.sources.rows.row_files import Row, TableFile, format_of
from tf_input.dataset_format import OBJECTS

FORMATS = {".csv": "csv", ".tsv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
_NUM_HEAD_ROWS = 100
_MAX_FOUND = 1000  # columns of JSON objects to show in a message


class TableHead(NamedTuple):
    """The columns of a file, as determined from its first rows.

    Attributes:
        columns: The names of the columns: from a CSV header, a Parquet schema, or the first objects of JSON Lines.
        lists: The columns that contain lists. Always empty for CSV.
        has_bytes: The columns that contain bytes, directly or in a dictionary.
        object_fields: The fields of the objects in the column `objects`, such as `bbox` and `category`.
        class_names: Integer column -> class names, if the file has them. Fields have names such as `objects/category`.
    """

    columns: tuple[str, ...]
    lists: frozenset[str] = frozenset()
    has_bytes: frozenset[str] = frozenset()
    object_fields: frozenset[str] = frozenset()
    class_names: Mapping[str, tuple[str, ...]] = {}


def read_head(file: TableFile, config: SourceConfig) -> TableHead:
    """Determines the columns of a file from its first rows. Raises `UserError` if the file cannot be read, or has
    another format."""
    if file.format == "parquet":
        from beam_pipelines.sources.formats.table import parquet_rows  # PyArrow takes a tenth of a second to import

        head = TableHead(**parquet_rows.read_head(file))
        _check_unique(file, head.columns)
        return head
    if file.format == "csv":
        return TableHead(tuple(_open_csv(file, config)[0]))
    first = [row for _, row in itertools.islice(_json_rows(file, config), _NUM_HEAD_ROWS) if not isinstance(row, InvalidInput)]
    cells = [(name, cell) for row in first for name, cell in row.items()]
    objects = [item for name, cell in cells if name == OBJECTS for item in (cell if isinstance(cell, list) else [cell])]
    return TableHead(
        columns=tuple(dict.fromkeys(name for name, _ in cells)),
        lists=frozenset(name for name, cell in cells if isinstance(cell, list)),
        object_fields=frozenset(field for item in objects if isinstance(item, dict) for field in item),
    )


def read_first_rows(
    file: TableFile, config: SourceConfig, columns: tuple[str, ...], num: int = _NUM_HEAD_ROWS
) -> Iterator[Mapping[str, Any]]:
    """Yields the valid rows among the first `num` rows."""
    with contextlib.closing(read_rows(file, config, columns)) as rows:
        yield from (row for _, row in itertools.islice(rows, num) if not isinstance(row, InvalidInput))


def read_rows(
    file: TableFile,
    config: SourceConfig,
    columns: tuple[str, ...],
    names: Mapping[str, tuple[str, ...]] = {},
    unused_fields: UnusedFields | None = None,
) -> Iterator[Row]:
    """Yields the rows of a file in order, each with its line number, or in Parquet with its index plus 1.

    Args:
        file: The file with the rows.
        config: The options for skipped lines and comments.
        columns: The columns to read.
        names: Integer column -> its class names in the first file; empty if that file has no class names.
        unused_fields: Collects the names of other columns.

    Raises:
        UserError: The file cannot be read, has another format, lacks a column, or has other class names.
    """
    unused_fields = UnusedFields() if unused_fields is None else unused_fields
    if file.format == "jsonl":
        yield from _checked_json_rows(file, config, columns, unused_fields)
        return
    if file.format == "parquet":
        from beam_pipelines.sources.formats.table import parquet_rows

        head, rows = TableHead(**parquet_rows.read_head(file)), parquet_rows.parquet_rows(file.path, file.name, columns)
        _check_class_names(file, head.class_names, names)
        found: Sequence[str] = head.columns
    else:
        found, rows = _open_csv(file, config, columns)
    _check_columns(file, found, columns)
    unused_fields.add(name for name in found if name not in columns)
    yield from rows


def _check_class_names(file: TableFile, names: Mapping[str, tuple[str, ...]], expected: Mapping[str, tuple[str, ...]]) -> None:
    for name, first in expected.items():
        if (found := names.get(name, ())) != first:
            stand = f"stand for {show_columns(found)}, but for {show_columns(first)} in the first table"
            advice = "Make the tables agree, or use --label_names if the column is a label"
            raise UserError(f"{printable(file.name)}: integers in {printable(name)!r} {stand}. {advice}.")


def _open_csv(file: TableFile, config: SourceConfig, columns: Sequence[str] = ()) -> tuple[list[str], Iterator[Row]]:
    """Returns the column names, and the rows with the given columns. The names come from `--column_names` or the header."""
    rows = _csv_cells(file, config)
    header = [*config.column_names] or _read_header(file, rows)
    first = next(rows, (0, []))
    num_cells = 0 if isinstance(first[1], InvalidInput) else len(first[1])
    if config.column_names and num_cells not in (0, len(header)):
        problem = f"the first row has {num_cells} cells, but --column_names has {len(header)} names"
        raise UserError(f"{printable(file.name)}: {problem}. Give one name for each column.")
    if config.delimiter == " " and num_cells == len(header) + 1 and "image" not in header:  # as in CelebA
        header = ["image", *header]
    return header, _named_cells(itertools.chain([first] if first[0] else [], rows), header, columns)


def _read_header(file: TableFile, rows: Iterator[tuple[int, list[str] | InvalidInput]]) -> list[str]:
    _, header = next(rows, (0, InvalidInput("bad_row", "the file has no header")))
    if isinstance(header, InvalidInput):
        advice = "Name the columns, in UTF-8, in the first line or with --column_names, or skip lines with --skip_lines"
        raise UserError(f"{printable(file.name)}: the first row is not a header: {header}. {advice}.")
    header = [name.strip() for name in header]
    _check_unique(file, header)
    return header


def _named_cells(
    rows: Iterator[tuple[int, list[str] | InvalidInput]], header: Sequence[str], columns: Sequence[str]
) -> Iterator[Row]:
    positions = {name: header.index(name) for name in columns if name in header}.items()
    for number, cells in rows:
        if isinstance(cells, InvalidInput):
            yield number, cells
        elif len(cells) != len(header):
            yield number, InvalidInput("bad_row", f"the row has {len(cells)} cells, but there are {len(header)} columns")
        else:
            yield number, {name: cells[position] for name, position in positions}


def _csv_cells(file: TableFile, config: SourceConfig) -> Iterator[tuple[int, list[str] | InvalidInput]]:
    """Yields the cells of each row, including the header, with the number of the first line of the row. Raises
    `UserError` if a row of several lines is not valid CSV."""
    csv.field_size_limit(MAX_LINE)  # for the whole process; the default is 131,072 characters
    with open_lines(file.path, file.name, config) as lines:
        first = _first_line(file, lines)
        delimiter = _find_delimiter(file, first, config)
        # A run of blanks is one delimiter, also at the end of a line.
        reader = csv.reader(itertools.chain([first], lines), strict=True, delimiter=delimiter, skipinitialspace=delimiter == " ")
        while True:
            try:
                row = next(reader)
            except StopIteration:
                return
            except (csv.Error, LongLineError) as error:
                if lines.number > lines.row_start:
                    problem = f"invalid CSV from this line to line {lines.number}: {error}"
                    advice = "A quote is probably not closed: correct the row"
                    raise UserError(f"{printable(file.name)}:{lines.row_start}: {problem}. {advice}.") from None
                yield lines.row_start, InvalidInput("bad_row", f"invalid CSV: {error}")
            else:
                if delimiter == " " and row and not row[-1]:
                    row.pop()
                if "\0" in (text := "".join(row)) or not is_utf8(text):
                    yield lines.row_start, InvalidInput("not_utf8", "the row has a NUL byte, or is not valid UTF-8")
                elif row:
                    # In tables such as Flickr30k, blanks surround the delimiter "|".
                    yield lines.row_start, [cell.strip() for cell in row] if delimiter == "|" else row
            lines.is_row_start = True


def _first_line(file: TableFile, lines: Lines) -> str:
    """Returns the first line that is not blank, or "" if there is none."""
    try:
        for line in lines:
            if line.strip():
                return line
            lines.is_row_start = True
    except LongLineError as error:
        raise UserError(f"{printable(file.name)}:{lines.row_start}: {error}. Skip it with --skip_lines.") from None
    return ""


_DELIMITERS = ",\t;|"
_BY_PRECEDENCE = "\t,;|"  # tabs first, because strings seldom contain tabs


def _find_delimiter(file: TableFile, first: str, config: SourceConfig) -> str:
    """Returns the delimiter of a CSV file. The delimiter is determined from the file name, the number of names in
    `--column_names`, or the first line."""
    if config.delimiter:
        return config.delimiter
    if format_of(file.name, {".tsv": "tabs"}):
        return "\t"
    num_names = len(config.column_names)
    fitting = [mark for mark in _BY_PRECEDENCE if num_names > 1 and len(next(csv.reader([first], delimiter=mark), [])) == num_names]
    return fitting[0] if fitting else next((mark for mark in _DELIMITERS if mark in first), ",")


def _check_unique(file: TableFile, columns: Sequence[str]) -> None:
    name, count = collections.Counter(columns).most_common(1)[0] if columns else ("", 1)
    if count > 1:
        problem = f"{count} columns are named {printable(name)!r}. Give each column its own name"
        raise UserError(f"{printable(file.name)}: {problem}, for example with --skip_lines 1 --column_names NAME,….")


def _checked_json_rows(file: TableFile, config: SourceConfig, columns: Sequence[str], unused_fields: UnusedFields) -> Iterator[Row]:
    """Yields the rows, which may lack columns. At the end, raises `UserError` if no row had a requested column."""
    needed, missing = frozenset(columns), set(columns)
    found: dict[str, None] = {}  # a dict, to keep the order
    for number, row in _json_rows(file, config):
        if not isinstance(row, InvalidInput):
            found |= dict.fromkeys(row) if missing and len(found) < _MAX_FOUND else {}
            missing.difference_update(row)
            unused_fields.add(row.keys() - needed)
        yield number, row
    if found:
        _check_columns(file, tuple(found), [name for name in columns if name in missing])


def _json_rows(file: TableFile, config: SourceConfig) -> Iterator[Row]:
    for number, line in read_lines(file.path, file.name, config):
        yield number, line if isinstance(line, InvalidInput) else _parse_object(line)


def _parse_object(line: str) -> Mapping[str, Any] | InvalidInput:
    try:
        row = read_json(line)
    except RecursionError:
        return InvalidInput("bad_row", "the JSON is nested too deeply")
    except ValueError as error:  # also raised for a number with too many digits
        return InvalidInput("bad_row", f"not valid JSON: {error}")
    return row if isinstance(row, dict) else InvalidInput("bad_row", f"JSON of type {type(row).__name__}, not an object")


def _check_columns(file: TableFile, found: Sequence[str], columns: Sequence[str]) -> None:
    for name in columns:
        if name not in found:
            problem = f"has no column {printable(name)!r}, unlike the first table{did_you_mean(name, found) or '.'}"
            raise UserError(f"{printable(file.name)}: {problem} Its columns are {show_columns(found)}.")


def show_columns(columns: Sequence[str]) -> str:
    """Formats column names for a message."""
    shown = [printable(name.encode("utf-8", "replace").decode()[:80]) for name in columns[:50]]
    return (", ".join(shown) or "no names") + (f" and {len(columns) - 50} more" if len(columns) > 50 else "")
