"""What differs between epochs, and a permutation of a whole split of which any part can be computed alone.

That is what lets a training go on in the middle of an epoch without reading what came before, and 300 million records be
permuted without a table of them.
"""

import functools
import hashlib

import numpy as np
import tensorflow as tf

# Of the cipher by which TensorFlow permutes, up to 2 ** 16 values and beyond. With 4, as tf.random.experimental.index_shuffle has it,
# records that lie together keep a distance; with these, no test that we know tells it from a shuffled table.
_NUM_ROUNDS, _NUM_ROUNDS_OF_MANY = 8, 16
_TABLE_SIZE = 1024  # up to here a table is quicker: the cipher draws from 65536 at least until it hits what is small
_PURPOSE = 3  # other permutations by the same key are none of ours
_CHUNK = 1 << 14  # places that are computed at a time: TensorFlow takes a moment to be asked


def epoch_key(seed: int, epoch: int) -> int:
    """A number of 63 bits on which all depends that differs between epochs: order, crops, flips, colours."""
    digest = hashlib.blake2b(f"{seed}/{epoch}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def permuted(key: int, places: np.ndarray, num_examples: int) -> np.ndarray:
    """The records at places of an epoch in which any permutation of all is as likely.

    Args:
        key: The key of the epoch, as `epoch_key` gives it.
        places: The places in the epoch, int64 [n], each below `num_examples`.
        num_examples: The number of records of the split.

    Returns:
        The numbers of the records in the split, int64 [n].
    """
    chunks = places // _CHUNK
    found = np.empty_like(places)
    for chunk in np.unique(chunks).tolist():
        is_here = chunks == chunk
        found[is_here] = _permuted_chunk(key, chunk, num_examples)[places[is_here] - chunk * _CHUNK]
    return found


@functools.lru_cache(8)  # of the whole process, as it is of pure numbers: 1 MB
def _permuted_chunk(key: int, chunk: int, num_examples: int) -> np.ndarray:
    with tf.device("CPU:0"):
        places = tf.range(chunk * _CHUNK, min((chunk + 1) * _CHUNK, num_examples), dtype=tf.int64)
        return _permute(places, tf.constant(key, tf.int64), num_examples).numpy()


def _permute(values: tf.Tensor, key: tf.Tensor, size: int) -> tf.Tensor:
    """Where a permutation of 0 .. size - 1 takes each value: int64 [n] of int64 [n]."""
    if size <= _TABLE_SIZE:
        table = tf.random.experimental.stateless_shuffle(tf.range(size, dtype=tf.int64), tf.stack([key, _PURPOSE]))
        return tf.gather(table, values)
    bits = _mix(key)
    # Of each word, only as many bits count as a third of what is permuted needs.
    words = tf.stack([tf.cast(_right_shift(bits, by), tf.int64) for by in (0, 21, 42)])
    rounds = _NUM_ROUNDS if size <= 1 << 16 else _NUM_ROUNDS_OF_MANY
    return tf.raw_ops.RandomIndexShuffle(index=values, seed=words, max_index=tf.constant(size - 1, tf.int64), rounds=rounds)


def _mix(key: tf.Tensor) -> tf.Tensor:
    """64 bits that each depend on all of the key's: the last steps of SplitMix64, https://doi.org/10.1145/2714064.2660195."""
    bits = tf.cast(key, tf.uint64) + tf.constant(_PURPOSE, tf.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = tf.bitwise.bitwise_xor(bits, _right_shift(bits, shift)) * tf.constant(factor, tf.uint64)
    return tf.bitwise.bitwise_xor(bits, _right_shift(bits, 31))


def _right_shift(bits: tf.Tensor, by: int) -> tf.Tensor:
    return tf.bitwise.right_shift(bits, tf.constant(by, tf.uint64))
