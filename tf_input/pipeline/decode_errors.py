"""Handles examples that can't be decoded: reports their keys, or leaves them out of their batch.

TensorFlow has no op that reports whether an image can be decoded. Therefore a Python function calls the decoder of a
batch, and catches errors. If an error occurs, each example of the batch is decoded separately. The detour through
Python has no measurable cost, because no tensor is copied.
"""

from typing import Any, Callable, Sequence

import numpy as np
import tensorflow as tf

from tf_input.decoding.faults import find_fault
from tf_input.pipeline.inputs import Inputs
from tf_input.pipeline.packing import pack, take_apart
from tf_input.pipeline.plan import Plan

# A function from a note, the index of a component and a batch slot to the index of the example in its split.
FindNumber = Callable[[Sequence[int], int, int], int]


def find_number(make_inputs: Callable[[], Inputs], epoch: int, step: int, part: int, row: int) -> int:
    """Returns the index of the example in a batch slot. The index refers to the split from which the example was
    read."""
    with make_inputs() as inputs:
        found = inputs.numbers(epoch, step)
    numbers, rows = found if isinstance(found, tuple) else found[part]
    return int(numbers[rows.tolist().index(row)])


class DecodeErrors:
    """Finds the examples of a batch that can't be decoded.

    Args:
        parts: The plans of the components of the batch.
        find_number: A function that returns the index of an example.
    """

    def __init__(self, parts: Sequence[Plan], find_number: FindNumber) -> None:
        self._decoders = [part.decoder for part in parts]
        self._readers = [part.reader for part in parts]
        self._find_number = find_number
        self._bad: set[int] = set()  # hashes of undecodable records that were found before

    def decode(self, packed: tf.Tensor, function: Callable[[tf.Tensor], Any]) -> Any:
        """Decodes a packed batch. If `on_error` is "skip", the function leaves out undecodable examples.

        Raises:
            ValueError, OSError: An example can't be decoded, or no example is left, or an error was packed.
            tf.errors.InvalidArgumentError: An operation fails for a reason other than an undecodable example.
        """
        for is_good in (self._is_known_good, self._decodes):
            try:
                return function(packed)
            except tf.errors.InvalidArgumentError:
                packed = tf.constant(self._filter(packed.numpy(), is_good))
        return function(packed)

    def _filter(self, packed: np.ndarray, is_good: Callable[[Sequence[int], int, bytes, int], bool]) -> np.ndarray:
        if not packed[-1]:
            raise ValueError(packed[0].decode())
        note, batch = take_apart(packed, [reader is None for reader in self._readers])
        for part, (values, rows) in enumerate(batch):
            if self._readers[part] is not None:
                are_good = [is_good(note, part, record, row) for record, row in zip(values, rows.tolist())]
                batch[part] = values[are_good], rows[are_good]
        if not any(len(rows) for _, rows in batch):
            raise ValueError("all examples of a batch are corrupt. The `skipped` list of the dataset names them.")
        return pack(note, batch)

    def _is_known_good(self, note: Sequence[int], part: int, record: bytes, row: int) -> bool:
        return hash(record) not in self._bad

    def _decodes(self, note: Sequence[int], part: int, record: bytes, row: int) -> bool:
        decoder = self._decoders[part]
        rows = tf.constant([row], tf.int64)
        if not (fault := find_fault(decoder, record, lambda records: decoder.decode(records, tf.constant(note, tf.int64), rows))):
            return True
        self._readers[part].refuse(self._find_number(note, part, row), fault)
        self._bad.add(hash(record))
        return False


def decode_with_errors(errors: DecodeErrors, decode: Callable[[tf.Tensor], Any]) -> Callable[[tf.Tensor], Any]:
    """Returns a function that decodes a packed batch like `decode`, and reports undecodable examples."""

    def call(packed: tf.Tensor) -> Any:
        with tf.device("CPU:0"):  # an eager call might choose another device
            function = tf.function(decode, autograph=False).get_concrete_function(tf.TensorSpec(packed.shape, packed.dtype))
        specs = tf.nest.map_structure(tf.type_spec_from_value, function.structured_outputs)
        leaves = tf.nest.flatten(specs, expand_composites=True)

        def run(packed: tf.Tensor) -> list[Any]:
            try:
                with tf.device("CPU:0"):
                    return ["", *tf.nest.flatten(errors.decode(packed, function), expand_composites=True)]
            except (tf.errors.OpError, ValueError, OSError) as error:  # an exception would be shown with a traceback
                message = error.message if isinstance(error, tf.errors.OpError) else str(error)
                return [message, *(tf.zeros([size or 0 for size in leaf.shape], leaf.dtype) for leaf in leaves)]

        message, *values = tf.py_function(run, [packed], [tf.string, *(leaf.dtype for leaf in leaves)])
        with tf.control_dependencies([tf.debugging.Assert(tf.equal(message, ""), [message])]):
            values = [tf.ensure_shape(tf.identity(value), leaf.shape) for value, leaf in zip(values, leaves)]
        return tf.nest.pack_sequence_as(specs, values, expand_composites=True)

    return call
