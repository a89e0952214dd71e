"""The size of a Parquet file's rows once they are decoded, known before they are.

A dictionary, or a run of equal values, can stand for a million times the bytes that the file has.
"""

import re

import pyarrow as pa
import pyarrow.parquet

from beam_pipelines.storage.files import open_file

_BATCH_BYTES = 128 << 20  # decoded at a time, unless a single row has more
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 12}

# The header of a dictionary's page, in Thrift's compact protocol: its type, which is 2, and its unpacked size.
_PAGE_HEADER = re.compile(rb"\x15\x04\x15([\x80-\xff]*[\x00-\x7f])", re.DOTALL)

# Numbers in lists become objects of Python, eight times as large.
MAX_LIST_BYTES = 32 << 20


class RowSizes:
    """Estimates the decoded size of the rows of each row group.

    Args:
        parquet: The open file.
        path: The path of the file.
        columns: The names of the columns that are read.
    """

    def __init__(self, parquet: pa.parquet.ParquetFile, path: str, columns: list[str]) -> None:
        self._metadata, self._schema, self._path = parquet.metadata, parquet.schema, path
        paths = enumerate(self._schema.column(position).path for position in range(len(self._schema)))
        # As they are stored: a column of objects is several, such as `image.bytes` and `image.path`.
        self._stored = [at for at, path in paths if any(f"{path}.".startswith(f"{name}.") for name in columns)]

    def batch_rows(self, group: int, most: int) -> int:
        """Returns how many rows of a row group to decode at a time, at most the given number and at least 1."""
        row_bytes = sum(self._mean_bytes(group, at) for at in self._stored)
        return max(1, min(most, _BATCH_BYTES // max(row_bytes, 1)))

    def list_bytes(self, group: int) -> int:
        """Returns the mean size of the numbers that a row of a row group has in its largest column."""
        return max((self._number_bytes(group, at) for at in self._stored), default=0)

    def _number_bytes(self, group: int, at: int) -> int:
        rows = self._metadata.row_group(group)
        chunk = rows.column(at)
        return _WIDTHS.get(chunk.physical_type, 0) * chunk.num_values // max(rows.num_rows, 1)

    def _mean_bytes(self, group: int, at: int) -> int:
        """Returns an upper bound for the mean size that a row has in a stored column."""
        rows = self._metadata.row_group(group)
        chunk = rows.column(at)
        width = _WIDTHS.get(chunk.physical_type) or self._schema.column(at).length  # 0 if values differ in length
        has_dictionary = any("DICTIONARY" in encoding for encoding in chunk.encodings)
        if not width and has_dictionary and chunk.total_uncompressed_size * chunk.num_values > _BATCH_BYTES:
            width = self._dictionary_bytes(chunk)
        return (width * chunk.num_values + chunk.total_uncompressed_size) // max(rows.num_rows, 1)

    def _dictionary_bytes(self, chunk: pa.parquet.ColumnChunkMetaData) -> int:
        """Returns the size of a dictionary, which each value that stands in it may have."""
        with open_file(self._path) as file:
            file.seek(chunk.dictionary_page_offset or chunk.data_page_offset)
            header = _PAGE_HEADER.match(file.read(16))
        return _varint(header[1]) if header else chunk.total_uncompressed_size


def _varint(data: bytes) -> int:
    """Reads a positive integer as Thrift's compact protocol writes it."""
    return sum((byte & 0x7F) << 7 * index for index, byte in enumerate(data)) >> 1
