"""Reads the rest of an epoch of batches."""

from typing import Any


def batches_from(data: Any, epoch: int, step: int = 0) -> Any:
    """Returns a `tf.data.Dataset` of the batches of an epoch, starting at the given step."""
    data.iterator_state.go_to(epoch, step)
    return data.take(len(data) - step)
