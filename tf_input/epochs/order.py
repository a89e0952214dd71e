"""Computes the random key of an epoch, and permutes a split at random without a table in memory.

The record at any index of the permutation is computed directly. Therefore a training run can resume in the middle of an
epoch without reading earlier records, even with 300 million records.
"""

import functools
import hashlib

import numpy as np
import tensorflow as tf

# Rounds of TensorFlow's permutation cipher, for up to 2 ** 16 values and for more. With 4 rounds, as in
# tf.random.experimental.index_shuffle, the new positions of adjacent records are correlated. With these numbers, no
# statistical test that we tried distinguishes the result from a shuffled table.
_NUM_ROUNDS, _NUM_ROUNDS_OF_MANY = 8, 16
_TABLE_SIZE = 1024  # up to this size a table is faster, because the cipher draws from at least 65536 values
_PURPOSE = 3  # makes the permutation independent of other uses of the key
_CHUNK = 1 << 14  # indices that are computed together, to reduce the overhead of TensorFlow calls


def epoch_key(seed: int, epoch: int) -> int:
    """Returns the 63-bit random key of an epoch, which determines the order, crops, flips and color changes."""
    digest = hashlib.blake2b(f"{seed}/{epoch}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def permuted(key: int, indices: np.ndarray, num_examples: int) -> np.ndarray:
    """Returns the records at the given indices of a uniformly random permutation.

    Args:
        key: The key of the epoch, from `epoch_key`.
        indices: The indices in the epoch, int64 [n], each below `num_examples`.
        num_examples: The number of records in the split.

    Returns:
        The indices of the records in the split, int64 [n].
    """
    chunks = indices // _CHUNK
    permuted_indices = np.empty_like(indices)
    for chunk in np.unique(chunks).tolist():
        is_here = chunks == chunk
        permuted_indices[is_here] = _permuted_chunk(key, chunk, num_examples)[indices[is_here] - chunk * _CHUNK]
    return permuted_indices


@functools.lru_cache(8)  # a cache of 1 MB for the whole process
def _permuted_chunk(key: int, chunk: int, num_examples: int) -> np.ndarray:
    with tf.device("CPU:0"):
        indices = tf.range(chunk * _CHUNK, min((chunk + 1) * _CHUNK, num_examples), dtype=tf.int64)
        return _permute(indices, tf.constant(key, tf.int64), num_examples).numpy()


def _permute(values: tf.Tensor, key: tf.Tensor, size: int) -> tf.Tensor:
    """Applies a permutation of 0 .. size - 1 to values, and returns int64 [n]."""
    if size <= _TABLE_SIZE:
        table = tf.random.experimental.stateless_shuffle(tf.range(size, dtype=tf.int64), tf.stack([key, _PURPOSE]))
        return tf.gather(table, values)
    bits = _mix(key)
    # The cipher uses a limited number of bits of each word: a third of those needed for the permuted range.
    words = tf.stack([tf.cast(_right_shift(bits, by), tf.int64) for by in (0, 21, 42)])
    rounds = _NUM_ROUNDS if size <= 1 << 16 else _NUM_ROUNDS_OF_MANY
    return tf.raw_ops.RandomIndexShuffle(index=values, seed=words, max_index=tf.constant(size - 1, tf.int64), rounds=rounds)


def _mix(key: tf.Tensor) -> tf.Tensor:
    """Mixes the bits of a key with the final steps of the SplitMix64 generator.

    SplitMix64 is described in https://doi.org/10.1145/2714064.2660195.
    """
    bits = tf.cast(key, tf.uint64) + tf.constant(_PURPOSE, tf.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = tf.bitwise.bitwise_xor(bits, _right_shift(bits, shift)) * tf.constant(factor, tf.uint64)
    return tf.bitwise.bitwise_xor(bits, _right_shift(bits, 31))


def _right_shift(bits: tf.Tensor, by: int) -> tf.Tensor:
    return tf.bitwise.right_shift(bits, tf.constant(by, tf.uint64))
