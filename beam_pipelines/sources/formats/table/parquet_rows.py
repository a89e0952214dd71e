"""Reads the rows of a Parquet file in batches that fit in memory.

A column with many equal values can be a million times larger in memory than in the file. Therefore, the size of the
decoded rows is estimated from the metadata of the file, before rows are decoded.
"""

import contextlib
import itertools
import json
import re
from typing import Any, Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from beam_pipelines.errors import InvalidInput, printable
from beam_pipelines.sources.rows.row_files import Row, TableFile
from beam_pipelines.storage.files import open_file
from beam_pipelines.storage.input_errors import listing_error
from tf_input.dataset_format import OBJECTS

# The maximum number of rows in memory at a time. A row with an image takes some hundred kilobytes.
_BATCH_ROWS = 1024
_BATCH_IMAGES = 32
_BATCH_BYTES = 128 << 20  # the size of the rows to decode at a time, unless a single row is larger

# Size of the Arrow data to convert to Python objects at a time. A list of float32 takes eight times as much in Python.
_READ_BYTES = 1 << 20
MAX_LIST_BYTES = 32 << 20  # of all lists in a row

_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 12}
# The header of a dictionary page in Thrift's compact protocol: its type (2) and its uncompressed size.
_PAGE_HEADER = re.compile(rb"\x15\x04\x15([\x80-\xff]*[\x00-\x7f])", re.DOTALL)


@contextlib.contextmanager
def _open_parquet(path: str, name: str) -> Iterator[pa.parquet.ParquetFile]:
    """Opens a Parquet file. Errors when the file is opened or read become `UserError`."""
    try:
        with open_file(path) as file, pa.parquet.ParquetFile(file, pre_buffer=False, buffer_size=1 << 20) as parquet:
            yield parquet
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:  # UnicodeDecodeError: column names
        problem = " ".join(str(getattr(error, "strerror", None) or error).split())[:300]
        raise listing_error(error, path, f"{printable(name)}: cannot be read as Parquet: {printable(problem)}") from error


def read_head(file: TableFile) -> dict[str, Any]:
    """Returns the columns of a file, as the attributes of a `TableHead`. Raises `UserError` if the file cannot be read, or
    is not a Parquet file."""
    with _open_parquet(file.path, file.name) as parquet:
        schema = parquet.schema_arrow
    objects = [_item_type(field.type) for field in schema if field.name == OBJECTS]
    return dict(
        columns=tuple(schema.names),
        lists=frozenset(field.name for field in schema if _is_list(field.type)),
        has_bytes=frozenset(field.name for field in schema if _has_bytes(field.type)),
        object_fields=frozenset(field.name for struct in objects if pa.types.is_struct(struct) for field in struct),
        class_names=_class_names(schema),
    )


def _is_list(column: pa.DataType) -> bool:
    return pa.types.is_list(column) or pa.types.is_large_list(column) or pa.types.is_fixed_size_list(column)


def _item_type(column: pa.DataType) -> pa.DataType:
    return column.value_type if _is_list(column) else column


def _has_bytes(column: pa.DataType) -> bool:
    """Returns whether a column contains bytes, or structs with bytes."""
    if pa.types.is_struct(column):
        return any(_has_bytes(field.type) for field in column)
    return pa.types.is_binary(column) or pa.types.is_large_binary(column) or pa.types.is_fixed_size_binary(column)


def _class_names(schema: pa.Schema) -> dict[str, tuple[str, ...]]:
    """Returns the class names of integer columns, read from the metadata that Hugging Face's libraries write.

    The name of a field inside a struct column contains a slash, such as `objects/category`.
    """
    try:
        features = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
        columns = {name: _without_lists(feature) for name, feature in features.items()}
        for name, column in [*columns.items()]:
            if "_type" not in column:
                columns |= {f"{name}/{field}": _without_lists(item) for field, item in column.items()}
        named = {name: column.get("names") for name, column in columns.items() if column.get("_type") == "ClassLabel"}
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):  # metadata of another library
        return {}
    return {name: tuple(names) for name, names in named.items() if isinstance(names, list) and all(isinstance(n, str) for n in names)}


def _without_lists(feature: Any) -> Any:
    """Returns the element type of a list feature, in any metadata format that the library has used."""
    while isinstance(feature, list) or feature.get("_type") in ("List", "LargeList", "Sequence"):
        feature = feature[0] if isinstance(feature, list) else feature["feature"]
    return feature


def parquet_rows(path: str, name: str, columns: Sequence[str]) -> Iterator[Row]:
    """Yields the rows of a file, and an `InvalidInput` for each row that is too large or contains invalid UTF-8. Raises
    `UserError` if the file cannot be read."""
    with _open_parquet(path, name) as parquet:
        fields = [parquet.schema_arrow.field(name) for name in columns]
        most = _BATCH_IMAGES if any(_has_bytes(field.type) for field in fields) else _BATCH_ROWS
        lists = [field.name for field in fields if _is_list(field.type)]
        # A column of structs is stored as several columns, such as `image.bytes` and `image.path`.
        paths = enumerate(parquet.schema.column(index).path for index in range(len(parquet.schema)))
        stored = [index for index, path in paths if any(f"{path}.".startswith(f"{name}.") for name in columns)]
        number = 1
        for group in range(parquet.num_row_groups):
            rows = parquet.metadata.row_group(group)
            list_bytes = max((_number_bytes(rows.column(index)) // max(rows.num_rows, 1) for index in stored), default=0)
            if list_bytes > MAX_LIST_BYTES:  # decoding one row may decode all rows
                cells: Iterator[Any] = itertools.repeat(_too_large(list_bytes), rows.num_rows)
            else:
                row_bytes = sum(_max_bytes(parquet, path, rows.column(index), index) for index in stored) // max(rows.num_rows, 1)
                num_rows = max(1, min(most, _BATCH_BYTES // max(row_bytes, 1)))
                batches = parquet.iter_batches(num_rows, row_groups=[group], columns=[*columns], use_threads=False)
                cells = (row for batch in batches for row in _read_in_chunks(_exact(batch), lists))
            for row in cells:
                yield number, row
                number += 1


def _number_bytes(chunk: pa.parquet.ColumnChunkMetaData) -> int:
    """Returns the decoded size of a column of numbers in a row group, or 0 for other columns."""
    return _WIDTHS.get(chunk.physical_type, 0) * chunk.num_values


def _max_bytes(parquet: pa.parquet.ParquetFile, path: str, chunk: pa.parquet.ColumnChunkMetaData, index: int) -> int:
    """Returns an upper bound on the decoded size of a column in a row group."""
    value_bytes = _WIDTHS.get(chunk.physical_type) or parquet.schema.column(index).length  # 0 for a variable length
    has_dictionary = any("DICTIONARY" in encoding for encoding in chunk.encodings)
    if not value_bytes and has_dictionary and chunk.total_uncompressed_size * chunk.num_values > _BATCH_BYTES:
        with open_file(path) as file:
            file.seek(chunk.dictionary_page_offset or chunk.data_page_offset)
            header = _PAGE_HEADER.match(file.read(16))
        # No value is larger than the dictionary. Thrift encodes its size in groups of 7 bits.
        groups = header[1] if header else b""
        size = sum((byte & 0x7F) << 7 * position for position, byte in enumerate(groups)) >> 1
        value_bytes = size if header else chunk.total_uncompressed_size
    return value_bytes * chunk.num_values + chunk.total_uncompressed_size


def _read_in_chunks(batch: pa.RecordBatch, lists: list[str]) -> Iterator[Mapping[str, Any] | InvalidInput]:
    """Splits a batch in half repeatedly until each piece has a single row or fits in memory as Python objects."""
    if batch.nbytes > _READ_BYTES and batch.num_rows > 1:
        middle = batch.num_rows // 2
        for half in (batch.slice(0, middle), batch.slice(middle)):
            yield from _read_in_chunks(half, lists)
    elif (list_bytes := sum(batch.column(name).nbytes for name in lists)) > MAX_LIST_BYTES and batch.num_rows == 1:
        yield _too_large(list_bytes)
    else:
        yield from _to_rows(batch)


def _too_large(list_bytes: int) -> InvalidInput:
    return InvalidInput("too_large", f"the lists in the row have {list_bytes:,} bytes; the limit is {MAX_LIST_BYTES:,}")


def _exact(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Converts times in nanoseconds to strings, because Python's time types have only microsecond precision."""
    columns = batch.columns
    for index, column in enumerate(columns):
        if (pa.types.is_timestamp(column.type) or pa.types.is_time(column.type)) and column.type.unit == "ns":
            columns[index] = pc.replace_substring_regex(column.cast(pa.string()), r"(?:\.0{9}|0{3})(Z|[+-][0-9]{4})?$", r"\1")
    return pa.RecordBatch.from_arrays(columns, batch.schema.names)


def _to_rows(batch: pa.RecordBatch) -> list[Mapping[str, Any] | InvalidInput]:
    try:
        return batch.to_pylist()
    except UnicodeDecodeError:
        if batch.num_rows == 1:
            return [InvalidInput("not_utf8", "a text in the row is not valid UTF-8")]
        return [row for index in range(batch.num_rows) for row in _to_rows(batch.slice(index, 1))]
    except (ValueError, OverflowError) as error:  # nanoseconds in lists, years beyond Python's limit
        raise pa.ArrowInvalid(f"a value does not fit any Python type ({error}). Convert the column to text") from error
