"""The steps from records to batches: through the index, where there is one, else file by file."""

import os
import random
from typing import Any, Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from tf_input.order import Order, epoch_key
from tf_input.position import Pass, Position
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

    Returns:
        Of (outputs, mark); `note_ends` takes the marks off.
    """
    size = _row_size(order, config)

    def cut(batch: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        return _cut(batch, seed, order, config)

    def read_group(numbers: tf.Tensor, seeds: tf.Tensor, marks: tf.Tensor) -> tuple[tf.Tensor, ...]:
        records = reader.read_batch(tf.reshape(numbers, [-1]))
        return _claim(tf.reshape(records, [-1, size]), group), seeds, marks

    def read_one(numbers: tf.Tensor, seed: tf.Tensor, mark: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return reader.read_batch(cut(numbers, seed)), seed, mark

    groups, count = _choose_groups(order, config, num_batches, position, group), num_batches - config.start_step
    if config.on_error == "skip":  # which leaves batches short, each by itself
        data = groups.unbatch().take(count)
        return _decode(data.map(_plain(read_one), num_parallel_calls=_NUM_READERS, deterministic=True), decode_batch, config)
    data = groups.map(_plain(read_group), num_parallel_calls=_NUM_READERS, deterministic=True).unbatch().take(count)
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
    data = _choose_groups(order, config, num_batches, position, group).unbatch().take(num_batches - config.start_step)
    return _decode(data, gather_batch, config, lambda numbers, seed: _cut(numbers, seed, order, config))


def note_ends(data: tf.data.Dataset, position: Position, num_batches: int) -> tf.data.Dataset:
    """Tells the position when the last batch of a pass is asked for; behind all that reads ahead of who asks.

    Args:
        data: Of (outputs, mark), as the others here give them.
        position: Where each pass began.
        num_batches: In a whole epoch.

    Returns:
        Of the outputs.
    """

    def end(mark: np.ndarray) -> np.int64:
        position.end(Pass(*mark.tolist()), num_batches)
        return np.int64(0)

    def note(outputs: Any, mark: tf.Tensor) -> Any:
        is_last = mark[2] > 0  # only then is Python asked
        tf.cond(is_last, lambda: tf.numpy_function(end, [mark], tf.int64), lambda: tf.constant(0, tf.int64))
        return outputs

    return data.map(_plain(note))


def _choose_groups(
    order: Order, config: ReadConfig, num_batches: int, position: Position, group: int
) -> tf.data.Dataset:
    """The records of some batches, int64 [group, batch], their seeds, int64 [group, 2], and their marks, int64 [group, 3].

    A last batch that is not full is filled up with its last record. Groups, because tiny images come faster than TensorFlow
    starts operations. The mark of a pass' last batch is its `Pass`, that of any other is 0.
    """
    seed = random.SystemRandom().randrange(1 << 63) if config.seed is None else config.seed
    size = _row_size(order, config)
    num_groups = -(-(num_batches - config.start_step) // group)

    def groups_of_pass() -> tuple[np.ndarray, ...]:
        begun = position.take(num_batches)
        epochs, firsts, counts = zip(*_cut_pass(begun, num_batches, group))
        marks = np.zeros((len(firsts), 3), np.int64)
        marks[-1] = begun
        return np.array([epoch_key(seed, epoch) for epoch in epochs]), np.array(firsts), np.array(counts), marks

    def begin(_: tf.Tensor) -> tuple[tf.Tensor, ...]:
        *groups, marks = tf.numpy_function(groups_of_pass, [], (tf.int64,) * 4)
        return *(_claim(one, num_groups) for one in groups), tf.ensure_shape(marks, [None, 3])

    def choose(key: tf.Tensor, first: tf.Tensor, count: tf.Tensor, mark: tf.Tensor) -> tuple[tf.Tensor, ...]:
        steps = tf.range(first, first + count)
        places = tf.range(first * size, (first + count) * size)
        numbers = order.numbers(key, tf.minimum(places, order.num_positions - 1))
        seeds = tf.stack([tf.fill(tf.shape(steps), key), steps], axis=1)
        marks = tf.pad(tf.reshape(mark, [1, 3]), [[count - 1, 0], [0, 0]])
        return _claim(tf.reshape(numbers, [-1, size]), group), _claim(seeds, group), _claim(marks, group)

    return tf.data.Dataset.range(1).map(_plain(begin)).unbatch().map(_plain(choose))


def _cut_pass(begun: Pass, num_batches: int, group: int) -> Iterator[tuple[int, int, int]]:
    """(epoch, first step, number of steps) of each group of a pass: none goes beyond its epoch."""
    epoch, step, left = begun
    while left:
        count = min(group - step % group, num_batches - step, left)
        yield epoch, step, count
        left -= count
        epoch, step = (epoch, step + count) if step + count < num_batches else (epoch + 1, 0)


def _row_size(order: Order, config: ReadConfig) -> int:
    """Records that stand for a batch: no more than there are."""
    return min(config.batch_size, order.num_positions)


def _cut(batch: tf.Tensor, seed: tf.Tensor, order: Order, config: ReadConfig) -> tf.Tensor:
    """Without what fills up a last batch."""
    if config.drop_remainder:
        return batch
    return tf.ensure_shape(batch[: order.num_positions - seed[1] * config.batch_size], [None])


def _claim(values: tf.Tensor, count: int) -> tf.Tensor:
    """Says that there are so many, where groups at the ends of epochs have fewer, and a pass into the next epoch has more groups.

    The cardinality comes from this: so many in all, of which no more are taken than the pass has.
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

    def decode(batch: tf.Tensor, seed: tf.Tensor, *mark: tf.Tensor) -> Any:
        outputs = decode_batch(cut(batch, seed), seed if config.augment else None)
        rest = (seed, *mark) if has_functions else mark
        return (outputs, *rest) if rest else outputs

    # As many as there are cores, and from the first batch on: AUTOTUNE takes a while to find that out.
    data = data.map(_plain(decode), num_parallel_calls=_num_cores(), deterministic=True)
    return apply_functions(data, config.map_example, config.map_batch) if has_functions else data


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _plain(function: Callable) -> Callable:
    """AutoGraph would take longer to look for tensors in conditions, of which there are none, than all else here."""
    return tf.autograph.experimental.do_not_convert(function)
