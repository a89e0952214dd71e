"""How well a sequence of labels is shuffled, against what a true permutation of the same labels would give.

A run is a stretch of equal labels. Labels sorted by class have a few enormous runs; a model trained on them sees one
class at a time. A buffer that is smaller than the runs does not end them.
"""

import dataclasses
from collections import Counter
from typing import Any, Iterable, Mapping

import numpy as np

WINDOW = 128  # records: about a batch


@dataclasses.dataclass(frozen=True)
class LabelSequence:
    """What is kept of the labels of consecutive records.

    Attributes:
        num_labels: Records.
        num_runs: Stretches of equal labels.
        first: The first label.
        last: The last.
        num_windows: Whole windows of `WINDOW` records.
        num_in_windows: Distinct labels in each of them, summed.
    """

    num_labels: int
    num_runs: int
    first: int
    last: int
    num_windows: int
    num_in_windows: int

    @classmethod
    def of(cls, labels: np.ndarray) -> "LabelSequence":
        """Of integer labels [num_labels], one or more, in the order of their records."""
        num_windows = len(labels) // WINDOW
        windows = np.sort(labels[: num_windows * WINDOW].reshape(num_windows, WINDOW), axis=1)
        num_in_windows = num_windows + int(np.count_nonzero(windows[:, 1:] != windows[:, :-1]))
        num_runs = 1 + int(np.count_nonzero(labels[1:] != labels[:-1]))
        return cls(len(labels), num_runs, int(labels[0]), int(labels[-1]), num_windows, num_in_windows)


def expected_run_length(label_counts: Iterable[int]) -> float:
    """Mean length of a run in a uniformly random permutation of that many records of each label."""
    counts = list(label_counts)
    num = sum(counts)
    return num * num / (num * num - sum(count * (count - 1) for count in counts))


def shuffle_quality(shards: Iterable[LabelSequence], label_counts: Mapping[int, int] | Counter[int]) -> dict[str, Any]:
    """The shuffle quality of a split, from its shards in order, as `statistics.json` has it."""
    sequences = list(shards)
    num_labels = sum(sequence.num_labels for sequence in sequences)
    joined = sum(1 for one, next_one in zip(sequences, sequences[1:]) if one.last == next_one.first)
    num_windows = sum(sequence.num_windows for sequence in sequences)
    num_in_windows = sum(sequence.num_in_windows for sequence in sequences)
    return {
        "mean_run_length": num_labels / (sum(sequence.num_runs for sequence in sequences) - joined),
        "expected_mean_run_length": expected_run_length(label_counts.values()),
        f"mean_labels_in_{WINDOW}": num_in_windows / num_windows if num_windows else None,
    }
