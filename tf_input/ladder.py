"""The steps from records to batches: through the index, where there is one, else file by file."""

import random
from typing import Any, Callable, Sequence

import numpy as np
import tensorflow as tf

from tf_input.order import Order, epoch_key
from tf_input.position import Position
from tf_input.read_config import ReadConfig
from tf_input.records import RecordReader
from tf_input.user_functions import apply_functions

_NUM_READERS = 2  # batches that are read at a time; more would only hold memory
_CYCLE_LENGTH = 16  # files that are read at a time
_DEALT_CYCLE_LENGTH = 4
_BLOCK_LENGTH = 32  # records from one before the next has its turn: tiny records feel each change
_SHUFFLE_RECORDS, _SHUFFLE_BYTES = 2048, 128 << 20


def read_records(
    reader: RecordReader, order: Order, decode_batch: Callable[..., Any], config: ReadConfig, num_batches: int, position: Position
) -> tf.data.Dataset:
    """Batches of records, in an order of which any part can be computed: each pass begins where its position says.

    Args:
        reader: Reads them by their numbers.
        order: In which order.
        decode_batch: What becomes of a batch of records, and of a seed if images are augmented.
        config: How to read them.
        num_batches: In a whole epoch.
        position: Where each pass begins.
    """

    def read(numbers: tf.Tensor, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        records = reader.read_batch(numbers)
        records.set_shape([config.batch_size if config.drop_remainder else None])
        return records, seed

    numbers = _read_numbers(order, config, num_batches, position)
    return _decode(numbers.map(read, num_parallel_calls=_NUM_READERS, deterministic=True), decode_batch, config)


def read_arrays(
    gather_batch: Callable[..., Any], order: Order, config: ReadConfig, num_batches: int, position: Position
) -> tf.data.Dataset:
    """The same of examples that are in memory.

    Args:
        gather_batch: What becomes of numbers, int64 [batch], and of a seed if images are augmented.
        order, config, num_batches, position: As in `read_records`.
    """
    return _decode(_read_all_numbers(order, config, num_batches, position), gather_batch, config)


def _read_numbers(order: Order, config: ReadConfig, num_batches: int, position: Position) -> tf.data.Dataset:
    """The records of each batch, int64 [batch], and its seed, int64 [2]."""
    take = _starts(config, position)

    def steps_left() -> tuple[np.ndarray, np.ndarray]:
        key, step = take()
        steps = np.arange(step, num_batches)
        return np.full(len(steps), key), steps

    def begin(_: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return tuple(_claim(one, num_batches) for one in tf.numpy_function(steps_left, [], (tf.int64, tf.int64)))

    def choose(key: tf.Tensor, step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return _one_batch(order.batch_numbers(key, step, config.batch_size), config), tf.stack([key, step])

    return tf.data.Dataset.range(1).map(_plain(begin)).unbatch().map(_plain(choose))


def _read_all_numbers(order: Order, config: ReadConfig, num_batches: int, position: Position) -> tf.data.Dataset:
    """The same, where an epoch is short enough to be ordered at once: tiny images come faster than TensorFlow starts operations."""
    take = _starts(config, position)
    size, count = config.batch_size, order.num_positions

    def begin(_: tf.Tensor) -> tuple[tf.Tensor, ...]:
        key, step = (tf.ensure_shape(one, []) for one in tf.numpy_function(take, [], (tf.int64, tf.int64)))
        steps = tf.range(step, num_batches)
        numbers = order.numbers(key, tf.range(step * size, tf.minimum(num_batches * size, count)))
        numbers = tf.pad(numbers, [[0, tf.size(steps) * size - tf.size(numbers)]])
        seeds = tf.stack([tf.fill(tf.shape(steps), key), steps], axis=1)
        return _claim(tf.reshape(numbers, [-1, size]), num_batches), _claim(seeds, num_batches)

    def cut(numbers: tf.Tensor, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return _one_batch(numbers[: count - seed[1] * size], config), seed

    data = tf.data.Dataset.range(1).map(_plain(begin)).unbatch()
    return data if count % size == 0 or config.drop_remainder else data.map(_plain(cut))


def _starts(config: ReadConfig, position: Position) -> Callable[[], tuple[np.int64, np.int64]]:
    """Where each pass begins: the key of its epoch, and a step."""
    seed = random.SystemRandom().randrange(1 << 63) if config.seed is None else config.seed

    def take() -> tuple[np.int64, np.int64]:
        epoch, step = position.take()
        return np.int64(epoch_key(seed, epoch)), np.int64(step)

    return take


def _claim(steps: tf.Tensor, num_batches: int) -> tf.Tensor:
    """Says of the steps that are left in an epoch that they are all.

    The cardinality comes from this. A pass that goes on with an epoch has fewer; if the cardinality were unknown for its sake,
    Keras would cut all later epochs to its length.
    """
    steps.set_shape([num_batches, *steps.shape[1:]] if steps.shape.rank else [num_batches])
    return steps


def _one_batch(numbers: tf.Tensor, config: ReadConfig) -> tf.Tensor:
    numbers.set_shape([config.batch_size if config.drop_remainder else None])
    return numbers


def read_files(
    paths: Sequence[str],
    decode_batch: Callable[..., Any],
    config: ReadConfig,
    split: str,
    shuffle_buffer: int,
    *,
    compression: str = "",
    dealt: bool = False,
) -> tf.data.Dataset:
    """Batches of the records in files, of which nobody knows where each lies.

    Args:
        paths: TFRecord files.
        decode_batch: What becomes of a batch of records, and of a seed if images are augmented.
        config: How to read them.
        split: Whether they are shuffled may depend on it.
        shuffle_buffer: Records that are dealt out anew while they are read, if they are shuffled.
        compression: Of the files: "", "GZIP" or "ZLIB".
        dealt: Whether many readers are dealt the files one by one: each then opens few, and leaves the others to the rest.
    """
    paths, shuffles = list(paths), config.order(split) is not None
    if shuffles and dealt:
        random.Random(config.seed).shuffle(paths)  # here, as a shuffle buffer would draw all that are left at once
    data = tf.data.Dataset.from_tensor_slices(paths)
    if shuffles and not dealt:
        data = data.shuffle(len(paths), config.seed)  # anew in each epoch, like the records below
    # AUTOTUNE only sets how many threads read: with any number of them, the order is the same.
    data = data.interleave(
        lambda path: tf.data.TFRecordDataset(path, compression),
        cycle_length=(_DEALT_CYCLE_LENGTH if dealt else _CYCLE_LENGTH) if shuffles else 1,
        block_length=_BLOCK_LENGTH,
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )
    if shuffles:
        data = data.shuffle(shuffle_buffer, config.seed)
    data = data.batch(config.batch_size, drop_remainder=config.drop_remainder)
    # Numbers for each batch, other ones in each epoch: all that its augmentation depends on.
    seeds = tf.data.Dataset.random(config.seed, rerandomize_each_iteration=True).batch(2, drop_remainder=True)
    return _decode(tf.data.Dataset.zip(data, seeds), decode_batch, config)


def shuffle_buffer(num_records: int, num_bytes: int) -> int:
    """How many records to hold in memory, of which so many have so many bytes."""
    return max(1, min(_SHUFFLE_RECORDS, _SHUFFLE_BYTES * num_records // max(1, num_bytes)))


def example_spec(decode_batch: Callable[..., Any], config: ReadConfig) -> Any:
    """The shapes and dtypes of the batches; nothing is read for it."""
    shape = [config.batch_size if config.drop_remainder else None]
    specs = tf.TensorSpec(shape, tf.string), tf.TensorSpec([2], tf.int64)
    data = tf.data.Dataset.from_generator(lambda: iter(()), output_signature=specs)
    return _decode(data, decode_batch, config).element_spec


def _decode(data: tf.data.Dataset, decode_batch: Callable[..., Any], config: ReadConfig) -> tf.data.Dataset:
    """Only after batching, so that it is one call and one parse for a whole batch."""
    has_functions = config.map_example or config.map_batch

    def decode(batch: tf.Tensor, seed: tf.Tensor) -> Any:
        outputs = decode_batch(batch, seed if config.augment else None)
        return (outputs, seed) if has_functions else outputs

    data = data.map(_plain(decode), num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    return apply_functions(data, config.map_example, config.map_batch) if has_functions else data


def _plain(function: Callable) -> Callable:
    """AutoGraph would take longer to look for tensors in conditions, of which there are none, than all else here."""
    return tf.autograph.experimental.do_not_convert(function)
