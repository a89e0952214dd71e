"""The steps from records to batches: through the index, where there is one, else file by file."""

import os
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
    reader: RecordReader,
    order: Order,
    decode_batch: Callable[..., Any],
    config: ReadConfig,
    num_batches: int,
    position: Position,
    group: int,
) -> tf.data.Dataset:
    """Batches of records, in an order of which any part can be computed: each pass begins where its position says.

    Args:
        reader: Reads them by their numbers.
        order: In which order.
        decode_batch: What becomes of a batch of records, and of a seed if images are augmented.
        config: How to read them.
        num_batches: In a whole epoch.
        position: Where each pass begins.
        group: Batches that are read at a time.
    """
    size = _row_size(order, config)

    def cut(batch: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        return _cut(batch, seed, order, config)

    def read_group(numbers: tf.Tensor, seeds: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        records = reader.read_batch(tf.reshape(numbers, [-1]))
        return _claim(tf.reshape(records, [-1, size]), group), seeds

    def read_one(numbers: tf.Tensor, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return reader.read_batch(cut(numbers, seed)), seed

    groups = _choose_groups(order, config, num_batches, position, group)
    if config.on_error == "skip":  # which leaves batches short, each by itself
        data = groups.unbatch().take(num_batches)
        return _decode(data.map(_plain(read_one), num_parallel_calls=_NUM_READERS, deterministic=True), decode_batch, config)
    data = groups.map(_plain(read_group), num_parallel_calls=_NUM_READERS, deterministic=True).unbatch().take(num_batches)
    return _decode(data, decode_batch, config, cut)


def read_arrays(
    gather_batch: Callable[..., Any], order: Order, config: ReadConfig, num_batches: int, position: Position, group: int
) -> tf.data.Dataset:
    """The same of examples that are in memory.

    Args:
        gather_batch: What becomes of numbers, int64 [batch], and of a seed if images are augmented.
        order, config, num_batches, position: As in `read_records`.
        group: Batches whose numbers are computed at a time.
    """
    data = _choose_groups(order, config, num_batches, position, group).unbatch().take(num_batches)
    return _decode(data, gather_batch, config, lambda numbers, seed: _cut(numbers, seed, order, config))


def _choose_groups(
    order: Order, config: ReadConfig, num_batches: int, position: Position, group: int
) -> tf.data.Dataset:
    """The records of some batches, int64 [group, batch], and their seeds, int64 [group, 2].

    A last batch that is not full is filled up with its last record. Groups, because tiny images come faster than TensorFlow
    starts operations.
    """
    seed = random.SystemRandom().randrange(1 << 63) if config.seed is None else config.seed
    size = _row_size(order, config)
    num_groups = -(-num_batches // group)

    def groups_left() -> tuple[np.ndarray, np.ndarray]:
        epoch, step = position.take()
        firsts = np.arange(step // group, num_groups) * group
        firsts[:1] = step
        return np.full(len(firsts), epoch_key(seed, epoch)), firsts

    def begin(_: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return tuple(_claim(one, num_groups) for one in tf.numpy_function(groups_left, [], (tf.int64, tf.int64)))

    def choose(key: tf.Tensor, first: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        steps = tf.range(first, tf.minimum((first // group + 1) * group, num_batches))
        places = tf.range(first * size, (first + tf.size(steps, tf.int64)) * size)
        numbers = order.numbers(key, tf.minimum(places, order.num_positions - 1))
        seeds = tf.stack([tf.fill(tf.shape(steps), key), steps], axis=1)
        return _claim(tf.reshape(numbers, [-1, size]), group), _claim(seeds, group)

    return tf.data.Dataset.range(1).map(_plain(begin)).unbatch().map(_plain(choose))


def _row_size(order: Order, config: ReadConfig) -> int:
    """Records that stand for a batch: no more than there are."""
    return min(config.batch_size, order.num_positions)


def _cut(batch: tf.Tensor, seed: tf.Tensor, order: Order, config: ReadConfig) -> tf.Tensor:
    """Without what fills up a last batch."""
    if config.drop_remainder:
        return batch
    return tf.ensure_shape(batch[: order.num_positions - seed[1] * config.batch_size], [None])


def _claim(values: tf.Tensor, count: int) -> tf.Tensor:
    """Says that there are so many, where a pass that goes on with an epoch has fewer.

    The cardinality comes from this; if it were unknown for their sake, Keras would cut all later epochs to the first one's length.
    """
    values.set_shape([count, *(values.shape[1:] if values.shape.rank else [])])
    return values


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


def _decode(
    data: tf.data.Dataset,
    decode_batch: Callable[..., Any],
    config: ReadConfig,
    cut: Callable[[tf.Tensor, tf.Tensor], tf.Tensor] = lambda batch, seed: batch,
) -> tf.data.Dataset:
    """Only after batching, so that it is one call and one parse for a whole batch."""
    has_functions = config.map_example or config.map_batch

    def decode(batch: tf.Tensor, seed: tf.Tensor) -> Any:
        outputs = decode_batch(cut(batch, seed), seed if config.augment else None)
        return (outputs, seed) if has_functions else outputs

    # As many as there are cores, and from the first batch on: AUTOTUNE takes a while to find that out.
    data = data.map(_plain(decode), num_parallel_calls=_num_cores(), deterministic=True)
    return apply_functions(data, config.map_example, config.map_batch) if has_functions else data


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _plain(function: Callable) -> Callable:
    """AutoGraph would take longer to look for tensors in conditions, of which there are none, than all else here."""
    return tf.autograph.experimental.do_not_convert(function)
