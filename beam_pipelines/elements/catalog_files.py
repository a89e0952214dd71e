"""Reads the catalog files of datasets."""

from typing import TYPE_CHECKING, Sequence

from beam_pipelines.storage.files import files_at

if TYPE_CHECKING:
    import pyarrow as pa


def read_catalog(path: str, num_rows: int | None = None, columns: Sequence[str] | None = None) -> "pa.Table":
    """Reads the catalog file of a shard. See `parse_catalog`. Raises `OSError` if the file cannot be read."""
    return parse_catalog(files_at(path).read(path), num_rows, columns)


def parse_catalog(data: bytes, num_rows: int | None = None, columns: Sequence[str] | None = None) -> "pa.Table":
    """Parses a catalog file.

    Args:
        data: The bytes of the file.
        num_rows: The expected number of rows. None accepts any number.
        columns: The names of the columns to read, if they exist. None reads all columns.

    Raises:
        ValueError: The file is corrupt, or has another number of rows. The message has one line.
    """
    import pyarrow as pa  # Worker processes that check only sizes do not need it.
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(pa.BufferReader(data))  # `read_table` would import pandas.
        names = file.schema_arrow.names
        table = file.read(columns and [name for name in columns if name in names], use_threads=False)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ValueError(f"not a valid catalog: {' '.join(str(error).split())[:200]}") from None
    if num_rows is not None and table.num_rows != num_rows:
        raise ValueError(f"{table.num_rows} rows instead of {num_rows}")
    return table
