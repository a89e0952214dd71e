"""Computes the random key of an epoch, and randomly permutes a split without a table in memory.

The record at any index of the permutation is computed directly. Therefore, a training run can resume in the middle of
an epoch without reading earlier records, even if a split has 300 million records.
"""

import functools
import hashlib

import numpy as np

_NUM_ROUNDS = 8  # Rounds of the cipher. No statistical test that we tried distinguishes the result from a shuffled table.
_TABLE_SIZE = 1024  # Up to this size a table is used, because a cipher of few values is not random enough.
_PURPOSE = 3  # Makes the permutation independent of other uses of the key.
_CHUNK = 1 << 14  # The number of indices that are permuted together, to reduce the overhead of NumPy calls.

# The multipliers of the SplitMix64 generator (https://doi.org/10.1145/2714064.2660195), which mix the bits of a number.
_FACTORS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


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
    if num_examples <= _TABLE_SIZE:
        return np.argsort(_random_words(key, num_examples), kind="stable")
    start = chunk * _CHUNK
    return _encrypt(np.arange(start, min(start + _CHUNK, num_examples), dtype=np.uint64), key, num_examples)


def _random_words(key: int, num: int) -> np.ndarray:
    """Returns random numbers that depend only on the key, uint64 [num]. NumPy guarantees this sequence."""
    return np.random.Philox(key=[key, _PURPOSE]).random_raw(num)


def _encrypt(values: np.ndarray, key: int, size: int) -> np.ndarray:
    """Permutes the numbers below `size` with a Feistel cipher.

    The cipher permutes the numbers below a power of two. A result that is not below `size` is encrypted again until it
    is below `size`, so all results remain distinct.

    Args:
        values: The numbers to permute, uint64 [n].
        key: The key of the permutation.
        size: The size of the permuted range.

    Returns:
        The permuted numbers, int64 [n].
    """
    num_bits = (size - 1).bit_length()
    words = _random_words(key, _NUM_ROUNDS)
    permuted_values, waiting = _encrypt_bits(values, words, num_bits), np.arange(len(values))
    while len(waiting := waiting[permuted_values[waiting] >= size]):
        permuted_values[waiting] = _encrypt_bits(permuted_values[waiting], words, num_bits)
    return permuted_values.astype(np.int64)


def _encrypt_bits(values: np.ndarray, words: np.ndarray, num_bits: int) -> np.ndarray:
    """Applies the rounds of the cipher to numbers of `num_bits` bits, uint64 [n]. `words` has one key for each round."""
    low_bits, high_bits = num_bits // 2, num_bits - num_bits // 2
    low, high = values & np.uint64((1 << low_bits) - 1), values >> np.uint64(low_bits)
    for word in words:
        mixed = (low + word) * _FACTORS[0]
        mixed ^= mixed >> np.uint64(32)
        mixed *= _FACTORS[1]
        # The upper bits of a product depend on all bits of its factors.
        low, high = high ^ (mixed >> np.uint64(64 - high_bits)), low
        low_bits, high_bits = high_bits, low_bits
    return high << np.uint64(low_bits) | low
