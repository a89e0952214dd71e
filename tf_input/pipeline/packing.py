"""Packs the inputs of a batch into a single tensor, because each additional tensor from a generator takes time."""

from __future__ import annotations

import itertools
from typing import Iterable, Iterator, Sequence

import numpy as np

from tf_input.lazy_tensorflow import tf

NUM_NOTED = 2  # length of the note of a batch
_NUM_TOGETHER = 8  # largest number of stacked batches
_ALIGNED = 8  # TensorFlow copies rows of strings unless the length of a row is a multiple of this
_KEY_LENGTH = np.dtype("<u4")  # of the length of a key

# The inputs of a batch, for each component: serialized examples, bytes as objects [n], or indices of cached examples,
# int64 [n]; and their slots in the global batch, int64 [n], which are `PADDING` for padding.
Batch = list[tuple[np.ndarray, np.ndarray]]


def pack(note: Sequence[int], batch: Batch) -> np.ndarray:
    """Packs the note and the inputs of a batch into one array.

    If the batch has no records, the array is int64. Otherwise, the array contains the records, padding, and a byte
    string with all numbers. Its length is then a multiple of 8.

    Args:
        note: The key of the epoch, and the step of the batch in the epoch.
        batch: The inputs of the batch.
    """
    records = [values for values, _ in batch if values.dtype == object]
    numeric = [values for values, _ in batch if values.dtype != object]
    numbers = np.concatenate([note, [len(slots) for _, slots in batch], *(slots for _, slots in batch), *numeric]).astype(np.int64)
    if not records:
        return numbers
    padding = -(sum(map(len, records)) + 1) % _ALIGNED
    # records come first, so that they need not be copied
    return np.concatenate([*records, np.array([b""] * padding + [numbers.tobytes()], object)])


def take_apart(packed: np.ndarray, are_cached: Sequence[bool]) -> tuple[list[int], Batch]:
    """Unpacks the note and the batch. At least one component must not be cached."""
    numbers, num_components = np.frombuffer(packed[-1], np.int64), len(are_cached)
    sizes = numbers[NUM_NOTED : NUM_NOTED + num_components].tolist()
    rest, batch = iter(np.split(numbers[NUM_NOTED + num_components :], np.cumsum([*sizes, *itertools.compress(sizes, are_cached)]))), []
    slots = [next(rest) for _ in sizes]
    first = 0
    for size, is_cached, component_slots in zip(sizes, are_cached, slots):
        batch.append((next(rest) if is_cached else packed[first : first + size], component_slots))
        first += 0 if is_cached else size
    return numbers[:NUM_NOTED].tolist(), batch


def pack_error(error: Exception) -> np.ndarray:
    """Packs an error message in place of a batch. If an exception were raised, TensorFlow would print the traceback."""
    return np.array([str(error).encode(), b""], object)


def together(batches: Iterable[np.ndarray], num_bytes: int) -> Iterator[np.ndarray]:
    """Stacks consecutive batches, because a call from TensorFlow to Python takes as long as reading a hundred tiny
    records.

    Args:
        batches: The batches, from `pack` and `pack_error`.
        num_bytes: The size at which a stack is complete, in bytes.

    Returns:
        Stacks [num_batches, length] of consecutive batches with the same length. The first batch is alone, because the
        model waits for it.
    """
    waiting, left = [], 0
    try:
        for packed in batches:
            if waiting and len(packed) != len(waiting[0]):
                yield np.stack(waiting)
                waiting, left = [], num_bytes
            waiting.append(packed)
            left -= sum(map(len, packed)) if packed.dtype == object else packed.nbytes
            if left <= 0 or len(waiting) == _NUM_TOGETHER:
                yield np.stack(waiting)
                waiting, left = [], num_bytes
    except Exception:  # earlier batches are delivered before the error
        if waiting:
            yield np.stack(waiting)
        raise
    if waiting:
        yield np.stack(waiting)


def packed_spec(are_cached: Sequence[bool]) -> tf.TensorSpec:
    """Returns the tensor spec of stacked batches: int64 if all components are cached in memory, otherwise string."""
    return tf.TensorSpec([None, None], tf.int64 if all(are_cached) else tf.string)


def unpack(packed: tf.Tensor, are_cached: Sequence[bool]) -> tuple[tf.Tensor, list[tf.Tensor], list[tf.Tensor]]:
    """Unpacks a batch in a TensorFlow graph.

    Args:
        packed: The tensor, from `pack` or `pack_error`.
        are_cached: Whether each component is cached in memory.

    Returns:
        The note, int64 [NUM_NOTED], and for each component its inputs, string or int64 [n], and their batch slots,
        int64 [n].

    Raises:
        tf.errors.InvalidArgumentError: The tensor is from `pack_error`. Raised when the tensors are computed.
    """
    # The indices are static, because a mask would make up a fourth of the graph of a batch.
    of_records, of_cached = (
        [component for component, is_cached in enumerate(are_cached) if is_cached is wanted] for wanted in (False, True)
    )
    numbers, num_components, records = packed, len(are_cached), []
    if of_records:
        last = packed[-1]
        with tf.control_dependencies([tf.debugging.Assert(tf.not_equal(last, ""), [packed[0]])]):
            numbers = tf.io.decode_raw(last, tf.int64)
    note, sizes = numbers[:NUM_NOTED], numbers[NUM_NOTED : NUM_NOTED + num_components]
    if num_components == len(of_records) == 1:  # all remaining numbers are its slots
        return note, [packed[: sizes[0]]], [numbers[NUM_NOTED + num_components :]]
    if of_records:
        of_chunks = tf.gather(sizes, of_records)
        records = tf.split(packed[: tf.reduce_sum(of_chunks)], of_chunks, num=len(of_records))
    of_chunks = tf.gather(sizes, [*range(num_components), *of_cached])
    chunks = tf.split(numbers[NUM_NOTED + num_components :], of_chunks, num=num_components + len(of_cached))
    slots, inputs = chunks[:num_components], dict(zip([*of_records, *of_cached], [*records, *chunks[num_components:]]))
    return note, [inputs[component] for component in range(num_components)], slots


def add_keys(records: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Joins each record and its key into one byte string. Used if the records do not contain their keys.

    Args:
        records: The records, bytes as objects [n], or None for corrupt records.
        keys: The keys, bytes as objects [n].

    Returns:
        The length of the key, the key and the record as one byte string, as objects [n].
    """
    joined = np.empty(len(records), object)
    joined[:] = [
        None if record is None else b"".join((len(key).to_bytes(_KEY_LENGTH.itemsize, "little"), key, record))
        for record, key in zip(records, keys)
    ]
    return joined


def split_keys(records: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Splits the results of `add_keys` into keys and records, two tensors string [n]."""
    size = _KEY_LENGTH.itemsize
    lengths = tf.reshape(tf.io.decode_raw(tf.strings.substr(records, 0, size), tf.int32), [-1])
    ends = size + lengths
    rest = tf.strings.length(records) - ends
    return tf.strings.substr(records, tf.fill(tf.shape(records), size), lengths), tf.strings.substr(records, ends, rest)
