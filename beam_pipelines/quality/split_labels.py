"""The labels of a split, in the order of its records, and how values become labels."""

import dataclasses
import hashlib
from typing import Hashable, Sequence

import numpy as np

from beam_pipelines.elements.quality import one_label
from beam_pipelines.quality.measures import LabelOrder
from tf_input.dataset_format import NO_LABEL

NUM_PARTS = 16  # that numbers which are no classes are divided into
_MAX_KEPT_BYTES = 64


@dataclasses.dataclass(frozen=True)
class SplitLabels:
    """What is looked at of a split.

    Attributes:
        split: The name of the split; empty where nobody named one.
        labels_are: What the labels are, for people: `label`, or the sixteenths of what is no class.
        order: The labels, the shards and the places in the source.
        shard_names: The names of all shards that have records.
        notes: The notes for people about what else was found.
    """

    split: str
    labels_are: str
    order: LabelOrder
    shard_names: tuple[str, ...]
    notes: tuple[str, ...] = ()


def parts_of(values: np.ndarray) -> np.ndarray:
    """Numbers, such as lengths, as labels: the sixteenth of all in which each lies; equal ones in the same."""
    edges = np.unique(np.quantile(values, np.arange(1, NUM_PARTS) / NUM_PARTS)) if len(values) else values
    return np.searchsorted(edges, values, side="right")


def label_of_set(codes: Sequence[int]) -> int:
    """One label for the classes of an example: its class, or one that stands for their set."""
    return codes[0] if len(codes) == 1 else one_label(codes)


class Codes:
    """Numbers values from 0, in the order in which they come."""

    def __init__(self) -> None:
        self._codes: dict[Hashable, int] = {}

    def of(self, value: Hashable) -> int:
        """The number of a value; of long bytes, which may be an image, a digest is kept."""
        if isinstance(value, bytes) and len(value) > _MAX_KEPT_BYTES:
            value = hashlib.blake2b(value, digest_size=_MAX_KEPT_BYTES).digest()
        return self._codes.setdefault(value, len(self._codes))

    @property
    def values(self) -> list[Hashable]:
        """In the order of their numbers."""
        return list(self._codes)


def shards_of(counts: Sequence[int]) -> np.ndarray:
    """int32 [num_records], the place of each record's shard among those that have any."""
    some = [count for count in counts if count]
    return np.repeat(np.arange(len(some), dtype=np.int32), some)


NOTHING = NO_LABEL  # of a record without a label
