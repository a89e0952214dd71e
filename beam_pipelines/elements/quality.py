"""Measures how well records are shuffled: compares the order of their labels with random orders of the same labels.

In this module, a run is a sequence of consecutive records with equal labels. If records are sorted by class, the runs
are long, and a model is trained on one class at a time. An example with several labels or objects is represented by its
set of classes (see `one_label`).
"""

import dataclasses
import hashlib
import itertools
from collections import Counter
from typing import Any, Iterable, Mapping, Sequence

import numpy as np

from tf_input.dataset_format import NO_LABEL

WINDOW = 128  # Number of records in a window, which is about the size of a batch.
_NUM_SETS = 256  # Number of distinct codes for sets of classes.
_MIN_INFORMATIVE_RATIO = 1.05  # Minimum ratio of run lengths, sorted to shuffled, at which run lengths are informative.


@dataclasses.dataclass(frozen=True)
class LabelSequence:
    """A summary of the labels of consecutive records.

    Attributes:
        num_labels: The number of records.
        num_runs: The number of runs of equal labels.
        first: The label of the first record.
        last: The label of the last record.
        num_windows: The number of complete windows of `WINDOW` records.
        num_in_windows: The number of distinct labels in a window, summed over all complete windows.
        counts: Pairs of a label and its number of records, in ascending order of labels.
    """

    num_labels: int
    num_runs: int
    first: int
    last: int
    num_windows: int
    num_in_windows: int
    counts: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, labels: np.ndarray) -> "LabelSequence":
        """Summarizes the labels of consecutive records, an integer array of shape [num_labels]."""
        if not len(labels):
            return cls(0, 0, NO_LABEL, NO_LABEL, 0, 0, ())
        num_windows, num_in_windows = len(labels) // WINDOW, int(labels_in_windows(labels, WINDOW).sum())
        num_runs = 1 + int(np.count_nonzero(labels[1:] != labels[:-1]))
        counts = zip(*(item.tolist() for item in np.unique(labels, return_counts=True)))
        return cls(len(labels), num_runs, int(labels[0]), int(labels[-1]), num_windows, num_in_windows, tuple(counts))

    @classmethod
    def of_examples(cls, values: Sequence[Any]) -> "LabelSequence":
        """Summarizes examples, given the label or the list of labels of each example. See `one_label`."""
        is_list = bool(values) and isinstance(values[0], list)
        return cls.of(np.array(list(map(one_label, values)) if is_list else values, np.int64))


def one_label(labels: Sequence[int]) -> int:
    """Returns a number that is equal for examples with the same set of labels.

    Returns:
        The label for a single class, `NO_LABEL` for no class, and otherwise one of `_NUM_SETS` numbers. The small number
        of codes keeps counting fast. Different sets can share a code, which makes runs longer in any order of records.
    """
    classes = sorted(set(labels))
    if len(classes) < 2:
        return classes[0] if classes else NO_LABEL
    digest = hashlib.blake2b(repr(classes).encode(), digest_size=8).digest()
    return NO_LABEL - 1 - int.from_bytes(digest, "little") % _NUM_SETS


def labels_in_windows(labels: np.ndarray, window: int) -> np.ndarray:
    """Returns the number of distinct labels in each complete window, int64 [..., num_windows].

    Args:
        labels: The labels of consecutive records, integers [..., num_labels].
        window: The number of records in a window.
    """
    num_windows = labels.shape[-1] // window
    windows = np.sort(labels[..., : num_windows * window].reshape(*labels.shape[:-1], num_windows, window), axis=-1, kind="stable")
    return 1 + np.count_nonzero(windows[..., 1:] != windows[..., :-1], axis=-1)


def expected_run_length(label_counts: Iterable[int]) -> float:
    """Returns the expected mean length of runs of equal labels if the records are shuffled uniformly."""
    counts = list(label_counts)
    num = sum(counts)
    return num * num / (num * num - sum(count * (count - 1) for count in counts))


class ShuffleQualities:
    """Computes the shuffle quality of each class feature in a split. Shards can be added in any order.

    To save memory, label counts are summed immediately, because a shard can contain a million classes.
    """

    def __init__(self) -> None:
        self._sequences: dict[str, dict[int, LabelSequence]] = {}
        self._counts: dict[str, Counter[int]] = {}

    def add(self, shard: int, labels: Mapping[str, LabelSequence]) -> None:
        """Adds the labels of a shard for each class feature. `shard` is a number that increases with the shards."""
        for name, sequence in labels.items():
            self._counts.setdefault(name, Counter()).update(dict(sequence.counts))
            self._sequences.setdefault(name, {})[shard] = dataclasses.replace(sequence, counts=())

    def to_json(self) -> dict[str, Any] | None:
        """Returns the shuffle quality of each class feature, by name, as in `statistics.json`. Returns None if there are
        no class features."""
        return {name: self._quality(name) for name in sorted(self._sequences)} or None

    def _quality(self, name: str) -> dict[str, Any]:
        """Returns the shuffle quality of a class feature in the format of `statistics.json`.

            mean_run_length             in the actual order
            expected_mean_run_length    in a uniformly random permutation
            sorted_mean_run_length      in records that are sorted by class; see `is_inconclusive`
            mean_labels_in_128          distinct labels in 128 consecutive records; None if all shards are smaller
        """
        sequences = [sequence for _, sequence in sorted(self._sequences[name].items()) if sequence.num_labels]
        num_joined = sum(one.last == other.first for one, other in itertools.pairwise(sequences))
        num_labels = sum(sequence.num_labels for sequence in sequences)
        num_windows = sum(sequence.num_windows for sequence in sequences)
        num_in_windows = sum(sequence.num_in_windows for sequence in sequences)
        return {
            "mean_run_length": num_labels / (sum(sequence.num_runs for sequence in sequences) - num_joined),
            "expected_mean_run_length": expected_run_length(self._counts[name].values()),
            "sorted_mean_run_length": num_labels / len(self._counts[name]),
            f"mean_labels_in_{WINDOW}": num_in_windows / num_windows if num_windows else None,
        }


def is_inconclusive(quality: Mapping[str, Any]) -> bool:
    """Returns whether even sorted records would have short runs, for example because each class has only one record. In
    this case, run lengths do not show whether records are shuffled."""
    return quality["sorted_mean_run_length"] < _MIN_INFORMATIVE_RATIO * quality["expected_mean_run_length"]
