"""Splits that are small enough to be held in memory, decoded."""

from typing import Any, Iterator, Mapping

import numpy as np
import tensorflow as tf

from tf_input.cores import num_cores
from tf_input.decoding.example_decoder import ExampleDecoder
from tf_input.epochs.share import Share
from tf_input.pipeline.inputs import RecordInputs
from tf_input.storage.record_reader import RecordReader

_CHUNK_BYTES = 16 << 20  # of decoded images that are on their way into memory at a time


def decoded_bytes(decoder: ExampleDecoder, num_examples: int) -> int | None:
    """What the images of a split take, decoded; None if they can't be held: they differ in size, or none is asked for."""
    num_bytes = decoder.num_held_bytes
    return None if num_bytes is None else num_examples * num_bytes


def load(reader: RecordReader, decoder: ExampleDecoder, num_bytes: int, read_buffer: int) -> dict[str, Any]:
    """All examples of a split, as `ExampleDecoder.decode_stored` gives them.

    Args:
        reader: Reads its records.
        decoder: Decodes them.
        num_bytes: What the images will take.
        read_buffer: Bytes of records that may be held meanwhile.

    Returns:
        By name: [num_examples, ...], on the CPU. While they are read, they take up to twice their memory.

    Raises:
        ValueError, OSError: As in `Inputs.batch`.
    """
    num_examples = reader.num_examples
    size = max(1, min(num_examples, _CHUNK_BYTES * num_examples // max(1, num_bytes)))
    failures: list[Exception] = []

    def read() -> Iterator[np.ndarray]:
        share = Share("", num_examples, size, False)
        with RecordInputs(share, 0, None, reader, read_buffer, may_be_empty=True) as inputs:
            for step in range(share.num_batches):
                try:
                    yield inputs.batch(0, step)[0]
                except (OSError, ValueError) as error:  # which TensorFlow would make another of
                    failures.append(error)
                    return

    def decode(records: tf.Tensor) -> dict[str, Any]:
        return decoder.decode_stored(decoder.parse_batch(records))

    if not num_examples:
        with tf.device("CPU:0"):
            return decode(tf.zeros([0], tf.string))
    data = tf.data.Dataset.from_generator(read, output_signature=tf.TensorSpec([None], tf.string))
    chunks = list(data.map(tf.autograph.experimental.do_not_convert(decode), num_parallel_calls=num_cores()))
    if failures:
        raise failures[0]
    with tf.device("CPU:0"):
        return {name: tf.concat([chunk.pop(name) for chunk in chunks], axis=0) for name in list(chunks[0])}


def gather(held: Mapping[str, Any], numbers: tf.Tensor) -> dict[str, Any]:
    """Some of the examples that `load` gave: [batch, ...] by name."""
    return {name: _gather(values, numbers) for name, values in held.items()}


def _gather(values: tf.Tensor | tf.RaggedTensor, numbers: tf.Tensor) -> tf.Tensor | tf.RaggedTensor:
    found = tf.gather(values, numbers)
    if isinstance(found, tf.RaggedTensor) and numbers.shape[0] is not None:  # which tf.gather forgets of ragged tensors
        splits = tf.ensure_shape(found.row_splits, [numbers.shape[0] + 1])
        found = tf.RaggedTensor.from_row_splits(found.values, splits, validate=False)
    return found


def num_examples(held: Mapping[str, Any]) -> int:
    """How many examples `load` gave: fewer than there should be where damaged ones were left out."""
    values = next(iter(held.values()))
    return int(values.nrows() if isinstance(values, tf.RaggedTensor) else len(values))
