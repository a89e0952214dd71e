"""How well a sequence of labels is shuffled, against what a true permutation of the same labels would give.

A run is a stretch of equal labels. Labels sorted by class have a few enormous runs; a model trained on them sees one
class at a time. A buffer that is smaller than the runs does not end them.

For an example with any number of labels, or objects, the set of its classes stands: see `one_label`.
"""

import dataclasses
import hashlib
from collections import Counter
from typing import Any, Iterable, Mapping, Sequence

import numpy as np

from tf_input.dataset_format import NO_LABEL

WINDOW = 128  # records: about a batch
_NUM_SETS = 256  # of classes, that are told from each other
_MIN_TELLING = 1.05  # times as long a run is seen


@dataclasses.dataclass(frozen=True)
class LabelSequence:
    """What is kept of the labels of consecutive records.

    Attributes:
        num_labels: The number of records.
        num_runs: The number of stretches of equal labels.
        first: The label of the first record.
        last: The label of the last record.
        num_windows: The number of whole windows of `WINDOW` records.
        num_in_windows: The number of distinct labels in each of these windows, summed.
        counts: How often each label occurs: (label, records), by label in ascending order.
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
        """Summarizes integer labels [num_labels], in the order of their records."""
        if not len(labels):
            return cls(0, 0, NO_LABEL, NO_LABEL, 0, 0, ())
        num_windows, num_in_windows = len(labels) // WINDOW, int(labels_in_windows(labels, WINDOW).sum())
        num_runs = 1 + int(np.count_nonzero(labels[1:] != labels[:-1]))
        counts = zip(*(one.tolist() for one in np.unique(labels, return_counts=True)))
        return cls(len(labels), num_runs, int(labels[0]), int(labels[-1]), num_windows, num_in_windows, tuple(counts))


def one_label(labels: Sequence[int]) -> int:
    """One number for all labels of an example, whatever their order.

    Returns:
        The label itself if there is one class, `NO_LABEL` if there is none, else one of `_NUM_SETS` other numbers, so that counting them
        stays cheap: examples with different sets that share a number make runs longer, and those of a perfect shuffle alike.
    """
    classes = sorted(set(labels))
    if len(classes) < 2:
        return classes[0] if classes else NO_LABEL
    digest = hashlib.blake2b(repr(classes).encode(), digest_size=8).digest()
    return NO_LABEL - 1 - int.from_bytes(digest, "little") % _NUM_SETS


def labels_in_windows(labels: np.ndarray, window: int) -> np.ndarray:
    """The number of distinct labels in each whole window of records that lie together: int64 [..., num_windows].

    Args:
        labels: The labels of records, integers [..., num_labels].
        window: The number of records of a window.
    """
    num_windows = labels.shape[-1] // window
    windows = np.sort(labels[..., : num_windows * window].reshape(*labels.shape[:-1], num_windows, window), axis=-1, kind="stable")
    return 1 + np.count_nonzero(windows[..., 1:] != windows[..., :-1], axis=-1)


def expected_run_length(label_counts: Iterable[int]) -> float:
    """The mean length of a run in a uniformly random permutation of that many records of each label."""
    counts = list(label_counts)
    num = sum(counts)
    return num * num / (num * num - sum(count * (count - 1) for count in counts))


class ShuffleQualities:
    """The shuffle quality of a split, shard by shard in order, of each feature with class names."""

    def __init__(self) -> None:
        self._features: dict[str, _Joined] = {}

    def add(self, labels: Mapping[str, LabelSequence]) -> None:
        """Adds the labels of the next shard, by feature."""
        for name, sequence in labels.items():
            self._features.setdefault(name, _Joined()).add(sequence)

    def to_json(self) -> dict[str, Any] | None:
        """The shuffle quality of each feature by its name, as `statistics.json` has it; None without any."""
        return {name: self._features[name].to_json() for name in sorted(self._features)} or None


class _Joined:
    """Sequences that follow each other."""

    def __init__(self) -> None:
        self._num_labels = self._num_runs = self._num_windows = self._num_in_windows = 0
        self._last: int | None = None
        self._counts: Counter[int] = Counter()

    def add(self, sequence: LabelSequence) -> None:
        if not sequence.num_labels:
            return
        self._num_labels += sequence.num_labels
        self._num_runs += sequence.num_runs - (sequence.first == self._last)
        self._num_windows += sequence.num_windows
        self._num_in_windows += sequence.num_in_windows
        self._last = sequence.last
        self._counts.update(dict(sequence.counts))

    def to_json(self) -> dict[str, Any]:
        """The shuffle quality of all labels together, as `statistics.json` has it.

            mean_run_length             as the records lie
            expected_mean_run_length    of a uniformly random permutation of them
            sorted_mean_run_length      of them sorted by class: where it is hardly more, runs prove nothing; see `proves_nothing`
            mean_labels_in_128          distinct labels in 128 records that lie together; None where no shard has so many
        """
        return {
            "mean_run_length": self._num_labels / self._num_runs,
            "expected_mean_run_length": expected_run_length(self._counts.values()),
            "sorted_mean_run_length": self._num_labels / len(self._counts),
            f"mean_labels_in_{WINDOW}": self._num_in_windows / self._num_windows if self._num_windows else None,
        }


def proves_nothing(quality: Mapping[str, Any]) -> bool:
    """Whether records sorted by class would have runs as short: each class has one example, or all examples have one class."""
    return quality["sorted_mean_run_length"] < _MIN_TELLING * quality["expected_mean_run_length"]
