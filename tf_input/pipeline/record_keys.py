"""Joins each record with its key in one byte string, for batches with keys that the records do not contain."""

from __future__ import annotations

import numpy as np

from tf_input.lazy_tensorflow import tf

_LENGTH = np.dtype("<u4")


def add_keys(records: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Joins each record with its key.

    Args:
        records: The records, bytes as objects [n], or None for corrupt records.
        keys: The keys, bytes as objects [n].

    Returns:
        The length of the key, the key and the record as one byte string, as objects [n].
    """
    joined = np.empty(len(records), object)
    joined[:] = [
        None if record is None else b"".join((len(key).to_bytes(_LENGTH.itemsize, "little"), key, record))
        for record, key in zip(records, keys)
    ]
    return joined


def split_keys(records: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Splits the results of `add_keys` into keys and records, two tensors string [n]."""
    size = _LENGTH.itemsize
    lengths = tf.reshape(tf.io.decode_raw(tf.strings.substr(records, 0, size), tf.int32), [-1])
    ends = size + lengths
    rest = tf.strings.length(records) - ends
    return tf.strings.substr(records, tf.fill(tf.shape(records), size), lengths), tf.strings.substr(records, ends, rest)
