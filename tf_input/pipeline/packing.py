"""What a batch is made of, in one tensor: each more that a generator gives takes TensorFlow a while."""

import itertools
from typing import Iterable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from tf_input.pipeline.inputs import Batch

NUM_NOTED = 2  # numbers that go with a batch
_NUM_TOGETHER = 8  # batches
_ALIGNED = 8  # strings: rows of a multiple of these begin where TensorFlow takes them as they lie, and copies those of any other length


def pack(note: Sequence[int], batch: Batch) -> np.ndarray:
    """Records, and behind them, at the end of a row of a multiple of 8, all numbers as bytes; or numbers alone, int64, of no records.

    Args:
        note: The numbers that go with the batch, NUM_NOTED of them.
        batch: The inputs that the batch is made of.
    """
    records = [values for values, _ in batch if values.dtype == object]
    held = [values for values, _ in batch if values.dtype != object]
    numbers = np.concatenate([note, [len(rows) for _, rows in batch], *(rows for _, rows in batch), *held]).astype(np.int64)
    if not records:
        return numbers
    padding = -(sum(map(len, records)) + 1) % _ALIGNED
    return np.concatenate([*records, np.array([b""] * padding + [numbers.tobytes()], object)])  # what comes first can stay where it is


def take_apart(packed: np.ndarray, are_held: Sequence[bool]) -> tuple[list[int], Batch]:
    """Returns the note and the batch that were packed; at least one part is not held in memory."""
    numbers, num_parts = np.frombuffer(packed[-1], np.int64), len(are_held)
    sizes = numbers[NUM_NOTED : NUM_NOTED + num_parts].tolist()
    rest, batch = iter(np.split(numbers[NUM_NOTED + num_parts :], np.cumsum([*sizes, *itertools.compress(sizes, are_held)]))), []
    rows = [next(rest) for _ in sizes]
    first = 0
    for size, is_held, of_part in zip(sizes, are_held, rows):
        batch.append((next(rest) if is_held else packed[first : first + size], of_part))
        first += 0 if is_held else size
    return numbers[:NUM_NOTED].tolist(), batch


def pack_error(error: Exception) -> np.ndarray:
    """In the place of a batch with records: an exception would come with a traceback."""
    return np.array([str(error).encode(), b""], object)


def together(batches: Iterable[np.ndarray], num_bytes: int) -> Iterator[np.ndarray]:
    """Batches, some at a time: to ask Python once takes TensorFlow as long as to read a hundred tiny records.

    Args:
        batches: The batches, as `pack` and `pack_error` give them.
        num_bytes: With the batch in which they have so many, no other goes together.

    Returns:
        [num_batches, length], of those that follow each other and have one length; the first is alone, as somebody waits for it.
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
    except Exception:  # what came before it comes before it
        if waiting:
            yield np.stack(waiting)
        raise
    if waiting:
        yield np.stack(waiting)


def packed_spec(are_held: Sequence[bool]) -> tf.TensorSpec:
    """The spec of what `together` gives, of parts that are held in memory or not."""
    return tf.TensorSpec([None, None], tf.int64 if all(are_held) else tf.string)


def unpack(packed: tf.Tensor, are_held: Sequence[bool]) -> tuple[tf.Tensor, list[tf.Tensor], list[tf.Tensor]]:
    """Takes apart what was packed.

    Args:
        packed: The tensor, as `pack` or `pack_error` gives it.
        are_held: Whether each part is held in memory.

    Returns:
        The note, int64 [NUM_NOTED], and for each part its inputs, string or int64 [n], and their rows, int64 [n].

    Raises:
        tf.errors.InvalidArgumentError: It is an error. Raised when the tensors are computed.
    """
    # By their places: a mask, of what is known here, would make up a fourth of the graph of a batch.
    of_records, of_held = ([part for part, is_held in enumerate(are_held) if is_held is wanted] for wanted in (False, True))
    numbers, num_parts, records = packed, len(are_held), []
    if of_records:
        last = packed[-1]
        with tf.control_dependencies([tf.debugging.Assert(tf.not_equal(last, ""), [packed[0]])]):
            numbers = tf.io.decode_raw(last, tf.int64)
    note, sizes = numbers[:NUM_NOTED], numbers[NUM_NOTED : NUM_NOTED + num_parts]
    if num_parts == len(of_records) == 1:  # has all that is left
        return note, [packed[: sizes[0]]], [numbers[NUM_NOTED + num_parts :]]
    if of_records:
        of_pieces = tf.gather(sizes, of_records)
        records = tf.split(packed[: tf.reduce_sum(of_pieces)], of_pieces, num=len(of_records))
    of_pieces = tf.gather(sizes, [*range(num_parts), *of_held])
    pieces = tf.split(numbers[NUM_NOTED + num_parts :], of_pieces, num=num_parts + len(of_held))
    rows, inputs = pieces[:num_parts], dict(zip([*of_records, *of_held], [*records, *pieces[num_parts:]]))
    return note, [inputs[part] for part in range(num_parts)], rows
