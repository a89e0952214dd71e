"""Handles examples that can't be decoded, either by reporting their keys or by removing the examples from their batch.

TensorFlow has no op that reports whether an image can be decoded. Therefore, a Python function calls the decoder of a
batch and catches errors. If an error occurs, each example of the batch is decoded separately. The Python call has no
measurable cost, because no tensor is copied.
"""

from __future__ import annotations

import abc
import functools
from typing import Any, Callable, Sequence

from tf_input.decoding.faults import find_fault
from tf_input.lazy_tensorflow import tf
from tf_input.pipeline.inputs import Inputs
from tf_input.pipeline.packing import pack, take_apart
from tf_input.pipeline.plan import Plan

# Returns the index of an example in its split, given the note of a batch, a component and a batch slot.
FindNumber = Callable[[Sequence[int], int, int], int]


def find_number(make_inputs: Callable[[], Inputs], epoch: int, step: int, component: int, slot: int) -> int:
    """Returns the index of an example in the split, given its batch slot."""
    with make_inputs() as inputs:
        numbers_and_slots = inputs.numbers(epoch, step)
    numbers, slots = numbers_and_slots if isinstance(numbers_and_slots, tuple) else numbers_and_slots[component]
    return int(numbers[slots.tolist().index(slot)])


class DecodeErrors(abc.ABC):
    """Finds the undecodable examples of a batch. Subclasses define the inputs of a batch."""

    def __init__(self) -> None:
        self._bad: set[int] = set()  # fingerprints of the undecodable examples that were detected before

    def decode(self, inputs: Sequence[tf.Tensor], function: Callable[..., Any]) -> Any:
        """Decodes the inputs of a batch. If `skip_corrupt` is set, undecodable examples are left out.

        Raises:
            ValueError, OSError: An example can't be decoded, no example is left, or the inputs are from
                `packing.pack_error`.
            tf.errors.InvalidArgumentError: An operation fails for a reason other than an undecodable example.
        """
        for decodes_each in (False, True):
            try:
                return function(*inputs)
            except (tf.errors.InvalidArgumentError, UnicodeDecodeError):  # a message may quote a record
                inputs = self.filter(inputs, decodes_each)
        return function(*inputs)

    @abc.abstractmethod
    def filter(self, inputs: Sequence[tf.Tensor], decodes_each: bool) -> Sequence[tf.Tensor]:
        """Returns the inputs of the decodable examples.

        Args:
            inputs: The inputs of a batch.
            decodes_each: Whether to decode each example separately. If False, only the undecodable examples that were
                detected before are removed.

        Raises:
            ValueError: An example can't be decoded and is not skipped, or no example is left.
        """

    def is_good(
        self, fingerprint: int, decodes: bool, find_fault: Callable[[], str], reject: Callable[[str], None]
    ) -> bool:
        """Returns whether an example can be decoded.

        Args:
            fingerprint: A number that identifies the example.
            decodes: Whether to decode the example, unless it is known to be undecodable.
            find_fault: A function that decodes the example and returns the reason if decoding fails.
            reject: A function that records an undecodable example, given the reason. It raises ValueError unless
                undecodable examples are skipped.
        """
        if fingerprint in self._bad:
            return False
        if not decodes or not (fault := find_fault()):
            return True
        reject(fault)
        self._bad.add(fingerprint)
        return False


def check_not_empty(num_examples: int) -> None:
    """Raises ValueError if no example of a batch is left, because an empty batch would make the loss NaN."""
    if not num_examples:
        raise ValueError("all examples of a batch are corrupt. The `skipped` list of the dataset names them.")


class PackedErrors(DecodeErrors):
    """Finds the undecodable examples of batches from `packing.pack`.

    Args:
        components: The plans of the components of the batch.
        find_number: A function that returns the index of an example.
    """

    def __init__(self, components: Sequence[Plan], find_number: FindNumber) -> None:
        super().__init__()
        self._decoders = [component.decoder for component in components]
        self._readers = [component.reader for component in components]
        self._find_number = find_number

    def filter(self, inputs: Sequence[tf.Tensor], decodes_each: bool) -> Sequence[tf.Tensor]:
        """Removes undecodable examples from a packed batch; see `DecodeErrors.filter`."""
        packed = inputs[0].numpy()
        if not packed[-1]:
            raise ValueError(packed[0].decode())
        note, batch = take_apart(packed, [reader is None for reader in self._readers])
        for component, (values, slots) in enumerate(batch):
            if self._readers[component] is not None:
                are_good = [
                    self.is_good(
                        hash(record),
                        decodes_each,
                        functools.partial(self._find_fault, note, component, record, slot),
                        functools.partial(self._reject, note, component, slot),
                    )
                    for record, slot in zip(values, slots.tolist())
                ]
                batch[component] = values[are_good], slots[are_good]
        check_not_empty(sum(len(slots) for _, slots in batch))
        return [tf.constant(pack(note, batch))]

    def _find_fault(self, note: Sequence[int], component: int, record: bytes, slot: int) -> str:
        decoder, slots = self._decoders[component], tf.constant([slot], tf.int64)
        return find_fault(decoder, record, lambda records: decoder.decode(records, tf.constant(note, tf.int64), slots))

    def _reject(self, note: Sequence[int], component: int, slot: int, fault: str) -> None:
        self._readers[component].reject(self._find_number(note, component, slot), fault)


def decode_with_errors(errors: DecodeErrors, decode: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that decodes the inputs of a batch like `decode`, and reports undecodable examples."""

    def call(*inputs: tf.Tensor) -> Any:
        with tf.device("CPU:0"):  # an eager call might choose another device
            signature = [tf.TensorSpec(item.shape, item.dtype) for item in inputs]
            function = tf.function(decode, autograph=False).get_concrete_function(*signature)
        specs = tf.nest.map_structure(tf.type_spec_from_value, function.structured_outputs)
        leaves = tf.nest.flatten(specs, expand_composites=True)

        def run(*inputs: tf.Tensor) -> list[Any]:
            try:
                with tf.device("CPU:0"):
                    return ["", *tf.nest.flatten(errors.decode(inputs, function), expand_composites=True)]
            except (tf.errors.OpError, ValueError, OSError) as error:  # TensorFlow would print exceptions with a traceback
                message = error.message if isinstance(error, tf.errors.OpError) else str(error)
                return [message, *(tf.zeros([size or 0 for size in leaf.shape], leaf.dtype) for leaf in leaves)]

        message, *values = tf.py_function(run, inputs, [tf.string, *(leaf.dtype for leaf in leaves)])
        with tf.control_dependencies([tf.debugging.Assert(tf.equal(message, ""), [message])]):
            values = [tf.ensure_shape(tf.identity(value), leaf.shape) for value, leaf in zip(values, leaves)]
        return tf.nest.pack_sequence_as(specs, values, expand_composites=True)

    return call
