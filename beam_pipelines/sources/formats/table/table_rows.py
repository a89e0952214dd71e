"""Reads the rows of a table file in CSV, JSON Lines or Parquet format.

The memory use is constant, because the length of lines is limited, and Parquet files are read page by page.

CSV files must be encoded in UTF-8, have the format of RFC 4180, and start with a header unless `--column_names` is
given. The delimiter is detected from the first line, unless the file ends in `.tsv` or `--delimiter` is given. A quoted
cell can span several lines. If a row with quotes is malformed, the run fails: a quote is probably missing, and an
unknown number of rows would be lost.
"""

import collections
import contextlib
import csv
import itertools
from typing import Any, Iterator, Mapping, NamedTuple, Sequence

from beam_pipelines.config.prepare_config import SourceConfig
from beam_pipelines.errors import InvalidInput, UserError, did_you_mean, printable
from beam_pipelines.sources.cells.cells import without_caption_number
from beam_pipelines.sources.cells.json_text import read_json
from beam_pipelines.sources.cells.unused_fields import UnusedFields
from beam_pipelines.sources.files.file_listing import is_utf8
from beam_pipelines.sources.rows.lines import MAX_LINE, Lines, LongLineError, full_lines, open_lines
from beam_pipelines.sources.rows.table_files import TableFile, format_of
from tf_input.dataset_format import OBJECTS

FORMATS = {".csv": "csv", ".tsv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}


# The row number (the number of the first line, or in Parquet the index plus 1), and the cells by column name.
Row = tuple[int, Mapping[str, Any] | InvalidInput]


class TableHead(NamedTuple):
    """The columns of a file, as determined from its first rows.

    Attributes:
        columns: The names of the columns: from a CSV header, a Parquet schema, or the first objects of JSON Lines.
        lists: The columns that contain lists. Always empty for CSV.
        structs: The columns that contain dictionaries, or lists of dictionaries.
        has_bytes: The columns that contain bytes, directly or in a dictionary.
        object_fields: The fields of the objects in the column `objects`, such as `bbox` and `category`.
        class_names: Integer column -> class names, if the file has them. Fields have names such as `objects/category`.
    """

    columns: tuple[str, ...]
    lists: frozenset[str] = frozenset()
    structs: frozenset[str] = frozenset()
    has_bytes: frozenset[str] = frozenset()
    object_fields: frozenset[str] = frozenset()
    class_names: Mapping[str, tuple[str, ...]] = {}


def read_head(file: TableFile, config: SourceConfig) -> TableHead:
    """Determines the columns of a file from its first rows. Raises `UserError` if the file cannot be read, or has
    another format."""
    if file.format == "parquet":
        return _parquet_head(file)
    with open_lines(file.path, file.name, config) as lines:
        if file.format == "csv":
            return _csv_head(file, lines, config)
        first = [row for _, row in itertools.islice(_json_rows(lines), _NUM_HEAD_ROWS) if not isinstance(row, InvalidInput)]
    cells = [(name, cell) for row in first for name, cell in row.items()]
    return TableHead(
        columns=tuple(dict.fromkeys(name for name, _ in cells)),
        lists=frozenset(name for name, cell in cells if isinstance(cell, list)),
        structs=frozenset(
            name for name, cell in cells if isinstance(cell[0] if isinstance(cell, list) and cell else cell, dict)
        ),
        object_fields=frozenset(
            field
            for name, cell in cells
            if name == OBJECTS
            for nested_row in (cell if isinstance(cell, list) else [cell])
            if isinstance(nested_row, dict)
            for field in nested_row
        ),
    )


def _csv_head(file: TableFile, lines: Lines, config: SourceConfig) -> TableHead:
    rows, names = _read_header(file, lines, config)
    with contextlib.suppress(csv.Error, LongLineError):  # becomes a dead letter during listing
        first = next(rows, []) if config.column_names else []
        if first and len(first) != len(names):
            problem = f"the first row has {len(first)} cells, but --column_names has {len(names)} names"
            raise UserError(f"{printable(file.name)}: {problem}. Give one name for each column.")
    return TableHead(tuple(names))


def _parquet_head(file: TableFile) -> TableHead:
    from beam_pipelines.sources.formats.table import parquet_rows  # PyArrow takes a tenth of a second to import

    with parquet_rows.open_parquet(file.path, file.name) as parquet:
        schema = parquet.schema_arrow
        _check_unique(file, schema.names)
        return TableHead(
            columns=tuple(schema.names),
            lists=frozenset(field.name for field in schema if parquet_rows.is_list(field.type)),
            structs=frozenset(field.name for field in schema if parquet_rows.is_struct(field.type)),
            has_bytes=frozenset(field.name for field in schema if parquet_rows.has_bytes(field.type)),
            object_fields=parquet_rows.struct_fields(schema, OBJECTS),
            class_names=parquet_rows.class_names(schema),
        )


_NUM_HEAD_ROWS = 100
_NUM_REPEAT_ROWS = 10_000


def read_first_row(file: TableFile, config: SourceConfig, columns: tuple[str, ...]) -> Mapping[str, Any]:
    """Returns the first valid row, or an empty row if no row is valid."""
    with contextlib.closing(read_rows(file, config, columns)) as rows:
        return next((row for _, row in rows if not isinstance(row, InvalidInput)), {})


def first_cells(file: TableFile, config: SourceConfig, column: str) -> Iterator[Any]:
    """Yields the cells of a column in the first valid rows."""
    with contextlib.closing(read_rows(file, config, (column,))) as rows:
        yield from (row.get(column) for _, row in itertools.islice(rows, _NUM_HEAD_ROWS) if not isinstance(row, InvalidInput))


def find_repeated(file: TableFile, config: SourceConfig, column: str) -> str | None:
    """Returns the first string that occurs at least twice in a column of the first rows, or None."""
    seen: set[str] = set()
    with contextlib.closing(read_rows(file, config, (column,))) as rows:
        for _, row in itertools.islice(rows, _NUM_REPEAT_ROWS):
            text = None if isinstance(row, InvalidInput) else without_caption_number(row.get(column))
            if isinstance(text, str):
                if text in seen:
                    return text
                seen.add(text)
    return None


def read_rows(
    file: TableFile,
    config: SourceConfig,
    columns: tuple[str, ...] | None = None,
    names: Mapping[str, tuple[str, ...]] = {},
    unused_fields: UnusedFields | None = None,
) -> Iterator[Row]:
    """Yields the rows of a file, in order.

    Args:
        file: The file with the rows.
        config: The options for skipped lines and comments.
        columns: The columns to read; None reads all columns.
        names: Integer column -> its class names in the first file; empty if that file has no class names.
        unused_fields: Collects the names of unused columns; None ignores them.

    Raises:
        UserError: The file cannot be read, has another format, lacks a column, or has other class names.
    """
    if file.format == "parquet":
        yield from _parquet_rows(file, columns, names, unused_fields)
        return
    with open_lines(file.path, file.name, config) as lines:
        yield from _csv_rows(file, lines, config, columns, unused_fields) if file.format == "csv" else _checked_json_rows(
            file, lines, columns, unused_fields
        )


def _parquet_rows(
    file: TableFile, columns: tuple[str, ...] | None, names: Mapping[str, tuple[str, ...]], unused_fields: UnusedFields | None
) -> Iterator[Row]:
    from beam_pipelines.sources.formats.table import parquet_rows  # PyArrow takes a tenth of a second to import

    with parquet_rows.open_parquet(file.path, file.name) as parquet:
        needed = _check_columns(file, parquet.schema_arrow.names, columns, unused_fields)
        names_by_column = parquet_rows.class_names(parquet.schema_arrow)
        for name, expected in names.items():
            if names_by_column.get(name, ()) != expected:
                problem = f"integers in {printable(name)!r} stand for {show_columns(names_by_column.get(name, ()))}, but for"
                raise UserError(
                    f"{printable(file.name)}: {problem} {show_columns(expected)} in the first table. Make the tables "
                    "agree, or use --label_names if the column is a label."
                )
        for index, row in enumerate(parquet_rows.parquet_rows(parquet, file.path, list(needed))):
            yield index + 1, row


def _csv_rows(
    file: TableFile, lines: Lines, config: SourceConfig, columns: tuple[str, ...] | None, unused_fields: UnusedFields | None
) -> Iterator[Row]:
    reader, header = _read_header(file, lines, config)
    positions = {name: header.index(name) for name in _check_columns(file, header, columns, unused_fields)}.items()
    has_blanks = reader.dialect.delimiter == "|"  # as in Flickr30k
    num_cells, names = len(header), "--column_names" if config.column_names else "the header"
    while True:
        lines.is_row_start = True
        try:
            row = next(reader)
        except StopIteration:
            return
        except (csv.Error, LongLineError) as error:
            if lines.number > lines.row_start:
                raise UserError(
                    f"{printable(file.name)}:{lines.row_start}: invalid CSV from this line to line {lines.number}: "
                    f"{error}. A quote is probably not closed: correct the row."
                ) from None
            yield lines.row_start, InvalidInput("bad_row", f"invalid CSV: {error}")
            continue
        if len(row) == num_cells:
            text = "".join(row)
            if "\0" in text or not is_utf8(text):
                yield lines.row_start, InvalidInput("not_utf8", "the row has a NUL byte, or bytes that are not UTF-8")
            else:
                cells = [cell.strip() for cell in row] if has_blanks else row
                yield lines.row_start, {name: cells[position] for name, position in positions}
        elif row:
            yield (
                lines.row_start,
                InvalidInput("bad_row", f"the row has {len(row)} cells, but {names} has {num_cells}"),
            )


_DELIMITERS = ",\t;|"
_BY_PRECEDENCE = "\t,;|"  # tabs first, because strings seldom contain tabs


def _read_header(file: TableFile, lines: Lines, config: SourceConfig) -> tuple[Any, list[str]]:
    """Returns a CSV reader of all rows below the header, and the column names.

    If the file has no header, the reader returns all rows, and the column names come from `--column_names`.
    """
    csv.field_size_limit(MAX_LINE)  # for the whole process; the default is 131,072 characters
    try:
        first = next((line for line in _first_of_rows(lines) if line.strip()), "")
        reader = csv.reader(itertools.chain(_again(first, lines), lines), strict=True, delimiter=_find_delimiter(file, first, config))
        if config.column_names:
            return reader, list(config.column_names)
        header = [name.strip() for name in next(reader, [])]
    except (csv.Error, LongLineError) as error:
        raise UserError(
            f"{printable(file.name)}: the header is invalid CSV: {error}. Correct it, or skip lines with --skip_lines."
        ) from None
    if not header or not is_utf8(first) or "\0" in first:
        problem = "the header is not valid UTF-8" if header else "the file has no header"
        raise UserError(
            f"{printable(file.name)}: {problem}. Name the columns, in UTF-8, in the first line or with --column_names."
        )
    _check_unique(file, header)
    return reader, header


def _find_delimiter(file: TableFile, first: str, config: SourceConfig) -> str:
    """Returns the delimiter of a CSV file. It is determined from the file name, the number of given column names, or the
    first line."""
    if config.delimiter:
        return config.delimiter
    if format_of(file.name, {".tsv": "tabs"}):
        return "\t"
    num_cells = {mark: len(next(csv.reader([first], delimiter=mark), [])) for mark in _DELIMITERS}
    fitting = [mark for mark, num in num_cells.items() if num == len(config.column_names) > 1]
    if fitting:
        return next(mark for mark in _BY_PRECEDENCE if mark in fitting)
    return next((mark for mark in _DELIMITERS if mark in first), ",")


def _again(first: str, lines: Lines) -> Iterator[str]:
    """Yields `first`, which was already read from `lines`, and then the remaining lines."""
    lines.is_row_start = False
    yield first


def _check_unique(file: TableFile, columns: Sequence[str]) -> None:
    for name, count in collections.Counter(columns).items():
        if count > 1:
            raise UserError(
                f"{printable(file.name)}: {count} columns are named {printable(name)!r}. Give each column its own name."
            )


def _first_of_rows(lines: Lines) -> Iterator[str]:
    for line in lines:
        yield line
        lines.is_row_start = True


def _checked_json_rows(
    file: TableFile, lines: Lines, columns: tuple[str, ...] | None, unused_fields: UnusedFields | None
) -> Iterator[Row]:
    """Yields the rows, which may lack columns. At the end, raises `UserError` if no row had a requested column."""
    needed = frozenset(columns or ())
    missing = set(columns or ())
    found_columns: dict[str, None] = {}  # a dict, to keep their order
    for number, row in _json_rows(lines):
        if missing and not isinstance(row, InvalidInput):
            missing.difference_update(row)
            found_columns.update(dict.fromkeys(row) if missing else ())
        if unused_fields is not None and not isinstance(row, InvalidInput):
            unused_fields.add(row.keys() - needed)
        yield number, row
    if found_columns:
        _check_columns(file, tuple(found_columns), tuple(name for name in columns or () if name in missing), None)


def _json_rows(lines: Lines) -> Iterator[Row]:
    return ((number, line if isinstance(line, InvalidInput) else _parse_object(line)) for number, line in full_lines(lines))


def _parse_object(line: str) -> Mapping[str, Any] | InvalidInput:
    try:
        row = read_json(line)
    except RecursionError:
        return InvalidInput("bad_row", "the JSON is nested too deeply")
    except ValueError as error:  # also raised for a number with too many digits
        return InvalidInput("bad_row", f"not valid JSON: {error}")
    return row if isinstance(row, dict) else InvalidInput("bad_row", f"JSON of type {type(row).__name__}, not an object")


def _check_columns(
    file: TableFile, found_columns: Sequence[str], columns: tuple[str, ...] | None, unused_fields: UnusedFields | None
) -> tuple[str, ...]:
    """Returns the columns to read, and adds all other columns to `unused_fields`. Raises `UserError` if a column is
    missing."""
    if unused_fields is not None and columns is not None:
        unused_fields.add(name for name in found_columns if name not in columns)
    for name in columns or ():
        if name not in found_columns:
            problem = f"has no column {printable(name)!r}, unlike the first table{did_you_mean(name, found_columns) or '.'}"
            raise UserError(f"{printable(file.name)}: {problem} Its columns are {show_columns(found_columns)}.")
    return tuple(found_columns) if columns is None else columns


def show_columns(columns: Sequence[str]) -> str:
    """Formats column names for a message."""
    shown = [printable(name.encode("utf-8", "replace").decode()[:80]) for name in columns[:50]]
    return (", ".join(shown) or "no names") + (f" and {len(columns) - 50} more" if len(columns) > 50 else "")
