"""Computes a record's row in the index file of its shard."""

from typing import Sequence

from beam_pipelines.tfrecord.example_encoder import is_core, stored_image
from beam_pipelines.tfrecord.record_reader import HEADER_BYTES, Record
from tf_input.dataset_format import LABEL, NO_LABEL, Feature
from tf_input.serialized_example import BadExampleError, SerializedExample


class IndexRows:
    """Computes the rows of index files.

    Args:
        schema: The schema of the dataset.
    """

    def __init__(self, schema: Sequence[Feature]) -> None:
        self._image = stored_image(schema)
        self._has_labels = any(item.name == LABEL and is_core(item) for item in schema)

    def of(self, record: Record, example: SerializedExample) -> tuple[int, int, int, int]:
        """Returns the values of a record's index row (see `dataset_format.IndexRow`).

        Raises:
            BadExampleError: The record does not have exactly one image or one label, although the schema requires it.
        """
        offset, num_bytes, label = 0, len(record.data), NO_LABEL
        if self._image:
            spans = example.spans(self._image)
            if len(spans) != 1:
                raise BadExampleError(f"{len(spans)} images; it must have one")
            ((offset, num_bytes),) = spans
        if self._has_labels:
            labels = example.values(LABEL)
            if len(labels) != 1:
                raise BadExampleError(f"{len(labels)} labels; it must have one")
            (label,) = labels
        return record.offset, record.offset + HEADER_BYTES + offset, num_bytes, label
