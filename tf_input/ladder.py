"""The steps from files of records to batches."""

import random
from typing import Any, Callable, Sequence

import tensorflow as tf

from tf_input.read_config import ReadConfig

_CYCLE_LENGTH = 16  # shards that are read at a time
_DEALT_CYCLE_LENGTH = 4
_BLOCK_LENGTH = 32  # records from one before the next has its turn: tiny records feel each change
_SHUFFLE_RECORDS, _SHUFFLE_BYTES = 2048, 128 << 20


def read(
    paths: Sequence[str],
    decode_batch: Callable[..., Any],
    config: ReadConfig,
    split: str,
    shuffle_buffer: int,
    *,
    compression: str = "",
    dealt: bool = False,
) -> tf.data.Dataset:
    """Batches of the records in files.

    Args:
        paths: TFRecord files.
        decode_batch: What becomes of a batch of records, and of a number if images are augmented.
        config: How to read them.
        split: Whether they are shuffled may depend on it.
        shuffle_buffer: Records that are dealt out anew while they are read, if they are shuffled.
        compression: Of the files: "", "GZIP" or "ZLIB".
        dealt: Whether many readers are dealt the files one by one: each then opens few, and leaves the others to the rest.
    """
    paths, shuffles = list(paths), config.shuffles(split)
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
        # Small, because a prepared data set was shuffled as a whole before it was written: records that lie together are a fair
        # sample already, and the buffer only has to deal them out differently in each epoch.
        data = data.shuffle(shuffle_buffer, config.seed)
    data = data.batch(config.batch_size, drop_remainder=config.drop_remainder)
    if config.augment:
        # A number for each batch, other ones in each epoch: all that its crops and flips depend on.
        data = tf.data.Dataset.zip(data, tf.data.Dataset.random(config.seed, rerandomize_each_iteration=True))
    # AutoGraph would take longer to look for tensors in its conditions, of which there are none, than all else here.
    decode_batch = tf.autograph.experimental.do_not_convert(decode_batch)
    # Only after batching, so that it is one call and one parse for a whole batch.
    return data.map(decode_batch, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


def shuffle_buffer(num_records: int, num_bytes: int) -> int:
    """How many records to hold in memory, of which so many have so many bytes."""
    return max(1, min(_SHUFFLE_RECORDS, _SHUFFLE_BYTES * num_records // max(1, num_bytes)))


def example_spec(decode_batch: Callable[..., Any], config: ReadConfig, split: str) -> Any:
    """The shapes and dtypes of what `read` gives; nothing is read for it."""
    return read(["no file"], decode_batch, config, split, 1).element_spec
