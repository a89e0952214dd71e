"""The row of an index, from the record that it speaks of."""

from typing import Sequence

from beam_pipelines.tfrecord.example_encoder import is_core, stored_image
from beam_pipelines.tfrecord.example_reader import BadExampleError, ExampleReader
from beam_pipelines.tfrecord.record_reader import HEADER_BYTES, Record
from tf_input.dataset_format import LABEL, NO_LABEL, Feature


class IndexRows:
    """Makes the rows of the indexes of a data set.

    Args:
        schema: The schema of the data set.
    """

    def __init__(self, schema: Sequence[Feature]) -> None:
        self._image = stored_image(schema)
        self._has_labels = any(one.name == LABEL and is_core(one) for one in schema)

    def of(self, record: Record, example: ExampleReader) -> tuple[int, int, int, int]:
        """What `dataset_format.IndexRow` holds of a record.

        Raises:
            BadExampleError: It has not one image, or not one label, where each of the data set has.
        """
        offset, num_bytes, label = 0, len(record.data), NO_LABEL
        if self._image:
            spans = example.spans(self._image)
            if len(spans) != 1:
                raise BadExampleError(f"{len(spans)} images; expected one")
            ((offset, num_bytes),) = spans
        if self._has_labels:
            labels = example.values(LABEL)
            if len(labels) != 1:
                raise BadExampleError(f"{len(labels)} labels; expected one")
            (label,) = labels
        return record.offset, record.offset + HEADER_BYTES + offset, num_bytes, label
