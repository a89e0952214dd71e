"""The index of a shard, from its records alone."""

from typing import Iterator, Sequence

from beam_pipelines.storage.files import open_file
from beam_pipelines.tfrecord.example_encoder import is_core
from beam_pipelines.tfrecord.example_reader import ExampleReader
from beam_pipelines.tfrecord.record_reader import HEADER_BYTES, Record, read_records
from tf_input.dataset_format import IMAGE, LABEL, NO_LABEL, Feature, encode_index


def index_of_records(path: str, schema: Sequence[Feature]) -> bytes:
    """The bytes of an index.

    Args:
        path: Of a shard that is well.
        schema: Of the data set.
    """
    has_labels = any(feature.name == LABEL and is_core(feature) for feature in schema)
    return encode_index(_rows(path, has_labels))


def _rows(path: str, has_labels: bool) -> Iterator[tuple[int, int, int, int]]:
    with open_file(path) as file:
        for record in read_records(file):
            if isinstance(record, Record):
                example = ExampleReader(record.data)
                ((offset, num_bytes),) = example.spans(IMAGE)
                label = example.values(LABEL)[0] if has_labels else NO_LABEL
                yield record.offset, record.offset + HEADER_BYTES + offset, num_bytes, label
