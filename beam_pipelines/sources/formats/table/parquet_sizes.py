"""Estimates how much memory the rows of a Parquet file take after decoding.

A column with many equal values can be a million times larger in memory than in the file.
"""

import re

import pyarrow as pa
import pyarrow.parquet

from beam_pipelines.storage.files import open_file

_BATCH_BYTES = 128 << 20  # the size of the rows to decode at a time, unless a single row is larger
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 12}

# The header of a dictionary page in Thrift's compact protocol: its type (2) and its uncompressed size.
_PAGE_HEADER = re.compile(rb"\x15\x04\x15([\x80-\xff]*[\x00-\x7f])", re.DOTALL)

# The maximum size of a list of numbers in a row. As Python objects, the numbers are eight times as large.
MAX_LIST_BYTES = 32 << 20


class RowSizes:
    """Estimates the size of decoded rows for each row group of a file.

    Args:
        parquet: The open file.
        path: The path of the file.
        columns: The names of the columns to read.
    """

    def __init__(self, parquet: pa.parquet.ParquetFile, path: str, columns: list[str]) -> None:
        self._metadata, self._schema, self._path = parquet.metadata, parquet.schema, path
        paths = enumerate(self._schema.column(position).path for position in range(len(self._schema)))
        # A column of objects is stored as several columns, such as `image.bytes` and `image.path`.
        self._stored = [at for at, path in paths if any(f"{path}.".startswith(f"{name}.") for name in columns)]

    def batch_rows(self, group: int, most: int) -> int:
        """Returns how many rows of a row group to decode at a time, between 1 and `most`."""
        row_bytes = sum(self._mean_bytes(group, at) for at in self._stored)
        return max(1, min(most, _BATCH_BYTES // max(row_bytes, 1)))

    def list_bytes(self, group: int) -> int:
        """Returns the mean bytes per row in the largest column of numbers of a row group."""
        return max((self._number_bytes(group, at) for at in self._stored), default=0)

    def _number_bytes(self, group: int, at: int) -> int:
        rows = self._metadata.row_group(group)
        chunk = rows.column(at)
        return _WIDTHS.get(chunk.physical_type, 0) * chunk.num_values // max(rows.num_rows, 1)

    def _mean_bytes(self, group: int, at: int) -> int:
        """Returns an upper bound for the mean size per row of a stored column, in bytes."""
        rows = self._metadata.row_group(group)
        chunk = rows.column(at)
        width = _WIDTHS.get(chunk.physical_type) or self._schema.column(at).length  # 0 for values of variable length
        has_dictionary = any("DICTIONARY" in encoding for encoding in chunk.encodings)
        if not width and has_dictionary and chunk.total_uncompressed_size * chunk.num_values > _BATCH_BYTES:
            width = self._dictionary_bytes(chunk)
        return (width * chunk.num_values + chunk.total_uncompressed_size) // max(rows.num_rows, 1)

    def _dictionary_bytes(self, chunk: pa.parquet.ColumnChunkMetaData) -> int:
        """Returns the size of a column's dictionary in bytes, which is an upper bound for the size of each value."""
        with open_file(self._path) as file:
            file.seek(chunk.dictionary_page_offset or chunk.data_page_offset)
            header = _PAGE_HEADER.match(file.read(16))
        return _varint(header[1]) if header else chunk.total_uncompressed_size


def _varint(data: bytes) -> int:
    """Decodes a positive integer from Thrift's compact protocol."""
    return sum((byte & 0x7F) << 7 * index for index, byte in enumerate(data)) >> 1
