"""Reads the rows of a Parquet file in batches that fit in memory."""

import contextlib
import itertools
import json
from typing import Any, Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from beam_pipelines.errors import InvalidInput, printable
from beam_pipelines.sources.formats.table.parquet_sizes import MAX_LIST_BYTES, RowSizes
from beam_pipelines.storage.files import open_file
from beam_pipelines.storage.input_errors import listing_error

# The maximum number of rows in memory at a time. A row with an image takes some hundred kilobytes.
_BATCH_ROWS = 1024
_BATCH_IMAGES = 32

# Size of the Arrow data to convert to Python objects at a time. A list of float32 takes eight times as much in Python.
_READ_BYTES = 1 << 20


@contextlib.contextmanager
def open_parquet(path: str, name: str) -> Iterator[pa.parquet.ParquetFile]:
    """Context manager that opens a Parquet file. Entering it and reading in its block raise `UserError` if the file
    cannot be read, or is not a Parquet file."""
    try:
        with open_file(path) as file, pa.parquet.ParquetFile(file, pre_buffer=False, buffer_size=1 << 20) as parquet:
            yield parquet
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:  # UnicodeDecodeError: column names
        problem = " ".join(str(getattr(error, "strerror", None) or error).split())[:300]
        raise listing_error(error, path, f"{printable(name)}: cannot be read as Parquet: {printable(problem)}") from error


def is_list(column: pa.DataType) -> bool:
    """Returns whether a column contains lists."""
    return pa.types.is_list(column) or pa.types.is_large_list(column) or pa.types.is_fixed_size_list(column)


def is_struct(column: pa.DataType) -> bool:
    """Returns whether a column contains structs, or lists of structs."""
    return pa.types.is_struct(column) or (is_list(column) and pa.types.is_struct(column.value_type))


def struct_fields(schema: pa.Schema, name: str) -> frozenset[str]:
    """Returns the field names of the structs in a column, or an empty collection if the column has no structs."""
    types = [field.type for field in schema if field.name == name and is_struct(field.type)]
    structs = [item.value_type if is_list(item) else item for item in types]
    return frozenset(field.name for struct in structs for field in struct)


def has_bytes(column: pa.DataType) -> bool:
    """Returns whether a column contains bytes, or structs with bytes."""
    if pa.types.is_struct(column):
        return any(has_bytes(field.type) for field in column)
    return pa.types.is_binary(column) or pa.types.is_large_binary(column) or pa.types.is_fixed_size_binary(column)


def class_names(schema: pa.Schema) -> dict[str, tuple[str, ...]]:
    """Returns the class names of integer columns, read from the metadata that Hugging Face's libraries write.

    The name of a field inside a struct column contains a slash, such as `objects/category`.
    """
    try:
        features = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
        named = {name: _names(feature) for name, feature in features.items()}
        for name, feature in features.items():
            fields = _without_lists(feature)
            named |= {f"{name}/{field}": _names(item) for field, item in fields.items() if "_type" not in fields}
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):  # metadata of another library
        return {}
    return {name: tuple(names) for name, names in named.items() if isinstance(names, list) and all(isinstance(n, str) for n in names)}


def _names(feature: Any) -> Any:
    """Returns the class names of an integer or integer-list feature, or None if class names are unknown."""
    feature = _without_lists(feature)
    return feature.get("names") if feature.get("_type") == "ClassLabel" else None


def _without_lists(feature: Any) -> Any:
    """Returns the element type of a list feature, in any metadata format that the library has used."""
    while isinstance(feature, list) or feature.get("_type") in ("List", "LargeList", "Sequence"):
        feature = feature[0] if isinstance(feature, list) else feature["feature"]
    return feature


def parquet_rows(parquet: pa.parquet.ParquetFile, path: str, columns: list[str]) -> Iterator[Mapping[str, Any] | InvalidInput]:
    """Yields the rows of a file, and an `InvalidInput` for each row that is too large or contains invalid UTF-8."""
    fields = [parquet.schema_arrow.field(name) for name in columns]
    most = _BATCH_IMAGES if any(has_bytes(field.type) for field in fields) else _BATCH_ROWS
    lists = [field.name for field in fields if is_list(field.type)]
    sizes = RowSizes(parquet, path, columns)
    for group in range(parquet.num_row_groups):
        if (list_bytes := sizes.list_bytes(group)) > MAX_LIST_BYTES:  # decoding one row may decode all rows
            yield from itertools.repeat(_too_large(list_bytes), parquet.metadata.row_group(group).num_rows)
            continue
        num_rows = sizes.batch_rows(group, most)
        for batch in parquet.iter_batches(num_rows, row_groups=[group], columns=columns, use_threads=False):
            exact = pa.RecordBatch.from_arrays([*map(_exact, batch.columns)], batch.schema.names)
            yield from _read_in_chunks(exact, lists)


def _read_in_chunks(batch: pa.RecordBatch, lists: list[str]) -> Iterator[Mapping[str, Any] | InvalidInput]:
    """Splits a batch in half repeatedly until each piece has a single row or fits in memory as Python objects."""
    if batch.nbytes > _READ_BYTES and batch.num_rows > 1:
        middle = batch.num_rows // 2
        for half in (batch.slice(0, middle), batch.slice(middle)):
            yield from _read_in_chunks(half, lists)
    elif (list_bytes := sum(batch.column(name).nbytes for name in lists)) > MAX_LIST_BYTES and batch.num_rows == 1:
        yield _too_large(list_bytes)
    else:
        yield from _read(batch)


def _too_large(list_bytes: int) -> InvalidInput:
    return InvalidInput("too_large", f"the lists in the row have {list_bytes:,} bytes; the limit is {MAX_LIST_BYTES:,}")


def _exact(column: pa.Array) -> pa.Array:
    """Converts times in nanoseconds to strings, because Python's time types have only microsecond precision."""
    if not ((pa.types.is_timestamp(column.type) or pa.types.is_time(column.type)) and column.type.unit == "ns"):
        return column
    return pc.replace_substring_regex(column.cast(pa.string()), r"(?:\.0{9}|0{3})(Z|[+-][0-9]{4})?$", r"\1")


def _read(batch: pa.RecordBatch) -> list[Mapping[str, Any] | InvalidInput]:
    try:
        return batch.to_pylist()
    except UnicodeDecodeError:
        if batch.num_rows == 1:
            return [InvalidInput("not_utf8", "a text in the row is not valid UTF-8")]
        return [row for index in range(batch.num_rows) for row in _read(batch.slice(index, 1))]
    except (ValueError, OverflowError) as error:  # nanoseconds in lists, years beyond Python's limit
        raise pa.ArrowInvalid(f"a value does not fit any Python type ({error}). Convert the column to text") from error
