"""Defines the labels for the shuffle test and converts feature values to labels."""

import dataclasses
import hashlib
from typing import Hashable, Sequence

import numpy as np

from beam_pipelines.elements.quality import one_label
from beam_pipelines.quality.measures import LabelOrder
from tf_input.dataset_format import NO_LABEL

NUM_PARTS = 16  # Number of quantiles into which numeric values are divided.
_MAX_KEPT_BYTES = 64


@dataclasses.dataclass(frozen=True)
class SplitLabels:
    """The labels of a split for the shuffle test.

    Attributes:
        split: The name of the split, or an empty string.
        labels_are: A description of the labels, such as `label` or the quantiles of a number.
        order: The labels, shards and source ranks of the records.
        shard_names: The names of the shards that have records.
        notes: Additional messages for the user.
    """

    split: str
    labels_are: str
    order: LabelOrder
    shard_names: tuple[str, ...]
    notes: tuple[str, ...] = ()


def parts_of(values: np.ndarray) -> np.ndarray:
    """Converts numbers, such as lengths, to labels by dividing them into 16 quantiles."""
    edges = np.unique(np.quantile(values, np.arange(1, NUM_PARTS) / NUM_PARTS)) if len(values) else values
    return np.searchsorted(edges, values, side="right")


def label_of_set(codes: Sequence[int]) -> int:
    """Returns the class of an example, or a number that represents a set of classes."""
    return codes[0] if len(codes) == 1 else one_label(codes)


class Codes:
    """Assigns consecutive numbers to values, in the order of their first occurrence."""

    def __init__(self) -> None:
        self._codes: dict[Hashable, int] = {}

    def of(self, value: Hashable) -> int:
        """Returns the number of a value. Long byte strings, such as images, are stored as a digest."""
        if isinstance(value, bytes) and len(value) > _MAX_KEPT_BYTES:
            value = hashlib.blake2b(value, digest_size=_MAX_KEPT_BYTES).digest()
        return self._codes.setdefault(value, len(self._codes))

    @property
    def values(self) -> list[Hashable]:
        """The distinct values, in the order of their numbers."""
        return list(self._codes)


def shards_of(counts: Sequence[int]) -> np.ndarray:
    """Returns the shard index of each record, int32 [num_records]. Empty shards are not counted."""
    some = [count for count in counts if count]
    return np.repeat(np.arange(len(some), dtype=np.int32), some)


NOTHING = NO_LABEL  # Placeholder for records without a label.
