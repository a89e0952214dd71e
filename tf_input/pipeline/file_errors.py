"""Reports or skips undecodable records of files without an index. Messages name the file and the record."""

from __future__ import annotations

import functools
from typing import Sequence

import numpy as np

from tf_input.decoding.example_decoder import ExampleDecoder
from tf_input.decoding.faults import find_fault
from tf_input.lazy_tensorflow import tf
from tf_input.pipeline.decode_errors import DecodeErrors, check_not_empty
from tf_input.storage.corrupt_records import SKIP, CorruptRecord, CorruptRecords

# The position of a record is one number: the index of its file, and the index of the record in the lower bits.
_RECORD_BITS = 40
RECORDS_PER_FILE = 1 << _RECORD_BITS


class FileErrors(DecodeErrors):
    """Finds the undecodable records of files. A batch consists of records, their positions, a seed and batch slots.

    Args:
        paths: The paths of the files.
        decoder: The decoder of the records. If its `on_error` is "raise", the first undecodable record is an error.
        skipped: The collection to which skipped records are added.
    """

    def __init__(self, paths: Sequence[str], decoder: ExampleDecoder, skipped: CorruptRecords) -> None:
        super().__init__()
        self._paths, self._decoder, self._skipped = paths, decoder, skipped

    def filter(self, inputs: Sequence[tf.Tensor], decodes_each: bool) -> Sequence[tf.Tensor]:
        """Returns the inputs of the decodable records; see `DecodeErrors.filter`."""
        records, positions, seed, slots = inputs
        are_good = [
            self.is_good(
                position,
                decodes_each,
                functools.partial(self._find_fault, record, seed, slot),
                functools.partial(self._reject, position),
            )
            for record, position, slot in zip(records.numpy(), positions.numpy().tolist(), slots.numpy().tolist())
        ]
        check_not_empty(sum(are_good))
        indices = np.flatnonzero(are_good)
        return [tf.gather(records, indices), tf.gather(positions, indices), seed, tf.gather(slots, indices)]

    def _find_fault(self, record: bytes, seed: tf.Tensor, slot: int) -> str:
        slots, seed = tf.constant([slot], tf.int64), seed if self._decoder.config.augment else None
        return find_fault(self._decoder, record, lambda records: self._decoder.decode(records, seed, slots))

    def _reject(self, position: int, fault: str) -> None:
        file, record = divmod(position, RECORDS_PER_FILE)
        corrupt = CorruptRecord(self._paths[file], record, None, fault)
        if self._decoder.config.on_error == "raise":
            raise ValueError(f"{corrupt}; {SKIP}")
        self._skipped.add(corrupt)
