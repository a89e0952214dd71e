"""The records of a shard that is part of a data set: all of them, or an error."""

from typing import Iterator

from beam_pipelines.errors import DataError, StorageError, printable
from beam_pipelines.storage.files import open_file
from beam_pipelines.tfrecord.record_reader import NoRecordsError, Record, read_records


def shard_records(path: str, num_examples: int) -> Iterator[Record]:
    """The records of a shard, in order. Of all of them one at a time is in memory.

    Raises:
        DataError: One is damaged, or there are not as many as its manifest says.
        StorageError: The file can't be read, or is no TFRecord file.
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
        raise DataError(f"{printable(path)} has {num_read} records; expected {num_examples}")
