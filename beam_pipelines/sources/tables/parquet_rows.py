"""The rows of a Parquet file, a few at a time: what is in memory is a page of each column, and fewer rows where these are large."""

import contextlib
import itertools
import json
from typing import Any, Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from beam_pipelines.errors import Refusal, printable
from beam_pipelines.sources.tables.parquet_sizes import MAX_LIST_BYTES, RowSizes
from beam_pipelines.storage.files import open_file
from beam_pipelines.storage.input_errors import listing_error

# Rows in memory at a time. Those with images in them have some hundred kilobytes each.
_BATCH_ROWS = 1024
_BATCH_IMAGES = 32

# Bytes of Arrow's of which Python's objects are made at a time: a list of float32 takes eight times as many as those.
_READ_BYTES = 1 << 20


@contextlib.contextmanager
def open_parquet(path: str, name: str) -> Iterator[pa.parquet.ParquetFile]:
    """Opens a Parquet file for a block.

    Raises:
        UserError: It cannot be read, or is no Parquet file; reading on in the block may raise it too.
    """
    try:
        with open_file(path) as file, pa.parquet.ParquetFile(file, pre_buffer=False, buffer_size=1 << 20) as parquet:
            yield parquet
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:  # text: in the names of its columns
        problem = " ".join(str(getattr(error, "strerror", None) or error).split())[:300]
        raise listing_error(error, path, f"{printable(name)}: cannot be read as Parquet: {printable(problem)}") from error


def is_list(column: pa.DataType) -> bool:
    """Whether a column holds lists."""
    return pa.types.is_list(column) or pa.types.is_large_list(column) or pa.types.is_fixed_size_list(column)


def is_struct(column: pa.DataType) -> bool:
    """Whether it holds objects, or lists of them."""
    return pa.types.is_struct(column) or (is_list(column) and pa.types.is_struct(column.value_type))


def struct_fields(schema: pa.Schema, name: str) -> frozenset[str]:
    """What the objects in a column have; empty where it holds none."""
    types = [field.type for field in schema if field.name == name and is_struct(field.type)]
    structs = [one.value_type if is_list(one) else one for one in types]
    return frozenset(field.name for struct in structs for field in struct)


def has_bytes(column: pa.DataType) -> bool:
    """Whether it holds bytes, or objects with bytes in them."""
    if pa.types.is_struct(column):
        return any(has_bytes(field.type) for field in column)
    return pa.types.is_binary(column) or pa.types.is_large_binary(column) or pa.types.is_fixed_size_binary(column)


def class_names(schema: pa.Schema) -> dict[str, tuple[str, ...]]:
    """Column of integers, or of lists of them -> the names that they stand for, where Hugging Face's libraries noted them in the file.

    Of a field of the objects in a column, `objects/category`.
    """
    try:
        features = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
        named = {name: _names(feature) for name, feature in features.items()}
        for name, feature in features.items():
            fields = _without_lists(feature)
            named |= {f"{name}/{field}": _names(one) for field, one in fields.items() if "_type" not in fields}
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):  # someone else's metadata
        return {}
    return {name: tuple(names) for name, names in named.items() if isinstance(names, list) and all(isinstance(n, str) for n in names)}


def _names(feature: Any) -> Any:
    """What a feature of integers, or of lists of them, has for their names."""
    feature = _without_lists(feature)
    return feature.get("names") if feature.get("_type") == "ClassLabel" else None


def _without_lists(feature: Any) -> Any:
    """A feature, or what its lists are of, as the library has written it through the years."""
    while isinstance(feature, list) or feature.get("_type") in ("List", "LargeList", "Sequence"):
        feature = feature[0] if isinstance(feature, list) else feature["feature"]
    return feature


def parquet_rows(parquet: pa.parquet.ParquetFile, path: str, columns: list[str]) -> Iterator[Mapping[str, Any] | Refusal]:
    """Yields the rows of a file, or the Refusal of a row that has too many numbers, or text that is not UTF-8."""
    fields = [parquet.schema_arrow.field(name) for name in columns]
    most = _BATCH_IMAGES if any(has_bytes(field.type) for field in fields) else _BATCH_ROWS
    lists = [field.name for field in fields if is_list(field.type)]
    sizes = RowSizes(parquet, path, columns)
    for group in range(parquet.num_row_groups):
        if (list_bytes := sizes.list_bytes(group)) > MAX_LIST_BYTES:  # decoding one row may decode them all
            yield from itertools.repeat(_too_large(list_bytes), parquet.metadata.row_group(group).num_rows)
            continue
        num_rows = sizes.batch_rows(group, most)
        for batch in parquet.iter_batches(num_rows, row_groups=[group], columns=columns, use_threads=False):
            exact = pa.RecordBatch.from_arrays([*map(_exact, batch.columns)], batch.schema.names)
            yield from _read_in_pieces(exact, lists)


def _read_in_pieces(batch: pa.RecordBatch, lists: list[str]) -> Iterator[Mapping[str, Any] | Refusal]:
    """Halves a batch until a piece is small enough to become objects of Python, or has one row."""
    if batch.nbytes > _READ_BYTES and batch.num_rows > 1:
        middle = batch.num_rows // 2
        for piece in (batch.slice(0, middle), batch.slice(middle)):
            yield from _read_in_pieces(piece, lists)
    elif (list_bytes := sum(batch.column(name).nbytes for name in lists)) > MAX_LIST_BYTES and batch.num_rows == 1:
        yield _too_large(list_bytes)
    else:
        yield from _read(batch)


def _too_large(list_bytes: int) -> Refusal:
    return Refusal("too_large", f"lists of {list_bytes:,} bytes in a row; expected at most {MAX_LIST_BYTES:,}")


def _exact(column: pa.Array) -> pa.Array:
    """A column; times of nanoseconds as texts, like those of Python's times, which have microseconds alone."""
    if not ((pa.types.is_timestamp(column.type) or pa.types.is_time(column.type)) and column.type.unit == "ns"):
        return column
    return pc.replace_substring_regex(column.cast(pa.string()), r"(?:\.0{9}|0{3})(Z|[+-][0-9]{4})?$", r"\1")


def _read(batch: pa.RecordBatch) -> list[Mapping[str, Any] | Refusal]:
    try:
        return batch.to_pylist()
    except UnicodeDecodeError:
        if batch.num_rows == 1:
            return [Refusal("not_utf8", "text that is not UTF-8")]
        return [row for index in range(batch.num_rows) for row in _read(batch.slice(index, 1))]
    except (ValueError, OverflowError) as error:  # nanoseconds in lists, years beyond Python's
        raise pa.ArrowInvalid(f"found a value that Python has no type for ({error}); expected none") from error
