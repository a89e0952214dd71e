"""Reads the records of a shard and raises an error if any record is corrupt or missing."""

from typing import Iterator

from beam_pipelines.errors import DataError, StorageError, printable
from beam_pipelines.storage.files import open_file
from beam_pipelines.tfrecord.record_reader import NoRecordsError, Record, read_records


def shard_records(path: str, num_examples: int) -> Iterator[Record]:
    """Yields the records of a shard in order. Only one record is in memory at a time.

    Raises:
        DataError: A record is corrupt, or the number of records differs from the manifest.
        StorageError: The file cannot be read, or is not a TFRecord file.
    """
    num_read = 0
    try:
        with open_file(path) as file:
            for record in read_records(file):
                if not isinstance(record, Record):
                    raise DataError(f"{printable(path)}: record {num_read}, at byte {record.offset}: {record.message}")
                num_read += 1
                yield record
    except (OSError, NoRecordsError) as error:
        raise StorageError(f"{printable(path)}: {getattr(error, 'strerror', None) or error}", path) from None
    if num_read != num_examples:
        raise DataError(
            f"{printable(path)} has {num_read} records, but the manifest states {num_examples}. Run recordmill verify."
        )
