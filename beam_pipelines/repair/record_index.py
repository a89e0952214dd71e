"""Computes the index of a shard by reading its records."""

from typing import Iterator, Sequence

from beam_pipelines.storage.files import open_file
from beam_pipelines.tfrecord.index_row import IndexRows
from beam_pipelines.tfrecord.record_reader import Record, read_records
from tf_input.dataset_format import Feature, Fingerprint, encode_index
from tf_input.serialized_example import read_example


def index_of_records(path: str, schema: Sequence[Feature], fingerprint: Fingerprint) -> bytes:
    """Returns the bytes of the index.

    Args:
        path: The path of a shard whose records are complete.
        schema: The schema of the dataset.
        fingerprint: The fingerprint of the shard.
    """
    return encode_index(_rows(path, schema), fingerprint)


def _rows(path: str, schema: Sequence[Feature]) -> Iterator[tuple[int, int, int, int]]:
    rows = IndexRows(schema)
    with open_file(path) as file:
        for record in read_records(file):
            if isinstance(record, Record):
                yield rows.of(record, read_example(record.data, schema))
