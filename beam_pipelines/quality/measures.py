"""Tests whether a sequence of labels is shuffled, with a permutation test.

The test computes several measures for the order of the records, and for `NUM_PERMUTATIONS` random orders from a seeded
generator. The p-value is the fraction of orders that look at least as badly shuffled as the actual order. It is valid
for any number of classes and examples (Phipson and Smyth 2010, https://doi.org/10.2202/1544-6115.1585). Each measure is
converted to a z-score: the number of standard deviations from its mean over the random orders. For the verdict, the
test uses only the most extreme measure of each order (Westfall and Young 1993, max T). Very large splits use fewer
permutations, and Cantelli's inequality gives an upper bound on the p-value.

The probability that a shuffled dataset is reported as not shuffled is at most `SIGNIFICANCE`.
"""

import dataclasses
from typing import Any, Iterator, Mapping

import numpy as np

from beam_pipelines.elements.quality import WINDOW, labels_in_windows

SIGNIFICANCE = 0.001
NUM_PERMUTATIONS = 999
WINDOWS = (32, WINDOW, 1000, 10_000)  # Window sizes in records.
SHUFFLED, PARTLY, UNSHUFFLED, UNKNOWN = "shuffled", "partly shuffled", "not shuffled", "cannot tell"

# Thresholds on a scale from random order (0) to sorted order (1). An order below the first threshold is good enough. An
# order above the second threshold is not shuffled.
_MIN_SHARE, _MOST = 0.05, 0.5
_MAX_PERMUTED = 25_000_000  # Total number of records in all permutations. The test then takes a few seconds.
_MIN_PERMUTATIONS = 39
_BATCH = 1 << 20  # Number of records to permute at a time.

_ROUNDING = 1e-9  # Tolerance for comparing floats.

_MEAN_RUN, _LONGEST_RUN, _DISTANCE, _CORRELATION = "mean_run_length", "longest_run", "shard_distance", "source_correlation"


@dataclasses.dataclass(frozen=True)
class LabelOrder:
    """The labels of a split in the order of its records.

    Attributes:
        labels: The label of each record, a non-negative int [num_records].
        shards: The shard index of each record, in ascending order from 0, int [num_records].
        source: The rank of each record in source order, int [num_records]. None if unknown.
    """

    labels: np.ndarray
    shards: np.ndarray
    source: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class Measure:
    """The value of one measure, which tells how well the records are shuffled.

    Attributes:
        name: `mean_run_length`, `longest_run`, `labels_in_128`, `shard_distance` or `source_correlation`.
        actual: The value for the actual order.
        chance: The mean value over random permutations.
        sorted: The value for records that are sorted by label, or in source order.
        share: The position of the actual order on a scale from random order (0) to sorted order (1).
        counts: Whether the measure is informative. If a random permutation is as bad as sorted records, it is not.
    """

    name: str
    actual: float
    chance: float
    sorted: float
    share: float
    counts: bool

    def to_json(self) -> dict[str, Any]:
        """Returns the measure as JSON values."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class Quality:
    """The result of the test.

    Attributes:
        verdict: `shuffled`, `partly shuffled`, `not shuffled`, or `cannot tell` if even sorted records look random.
        p_value: The combined p-value of all informative measures. None if no measure is informative.
        measures: The values of all measures.
        worst_shard: The index of the shard whose labels differ most from all labels. None for a single shard.
        num_permutations: The number of random permutations.
    """

    verdict: str
    p_value: float | None
    measures: tuple[Measure, ...]
    worst_shard: int | None
    num_permutations: int


def assess(order: LabelOrder, seed: int = 0) -> Quality:
    """Compares the order of labels with random permutations. The same seed gives the same result."""
    num_records = len(order.labels)
    if num_records < 2:
        return Quality(UNKNOWN, None, (), None, 0)
    num_permutations = max(_MIN_PERMUTATIONS, min(NUM_PERMUTATIONS, _MAX_PERMUTED // num_records))
    order = dataclasses.replace(order, labels=_small(np.unique(order.labels, return_inverse=True)[1]))
    actual = measure(order, np.arange(num_records)[np.newaxis])
    by_label = measure(order, np.argsort(order.labels, kind="stable")[np.newaxis])
    if order.source is not None:
        by_label[_CORRELATION] = np.ones(1)
    parts = [measure(order, some) for some in _permutations(num_records, num_permutations, seed)]
    permuted = {name: np.concatenate([part[name] for part in parts]) for name in actual}
    measures = tuple(_compare(name, actual[name], permuted[name], by_label[name]) for name in actual)
    distances = shard_distances(order.labels[np.newaxis], order.shards)[0]
    worst = int(distances.argmax()) if len(distances) > 1 else None
    counting = [element for element in measures if element.counts]
    if not counting:
        return Quality(UNKNOWN, None, measures, worst, num_permutations)
    p_value = _p_value({member.name: (actual[member.name], permuted[member.name]) for member in counting})
    share = max(entry.share for entry in counting)
    is_chance = p_value > SIGNIFICANCE or share < _MIN_SHARE
    verdict = SHUFFLED if is_chance else PARTLY if share < _MOST else UNSHUFFLED
    return Quality(verdict, p_value, measures, worst, num_permutations)


def measure(order: LabelOrder, indices: np.ndarray) -> dict[str, np.ndarray]:
    """Computes all measures for several orders of the same records. Each measure is float [num_orders].

    Args:
        order: The labels, shards and source ranks of the records.
        indices: For each order, the record at each position, int [num_orders, num_records].
    """
    labels, num_records = order.labels[indices], len(order.labels)
    measures = dict(zip((_MEAN_RUN, _LONGEST_RUN), run_lengths(labels)))
    for window in WINDOWS:
        if window <= num_records:
            measures[f"labels_in_{window}"] = labels_in_windows(labels, window).mean(axis=-1)
    if order.shards[-1]:
        measures[_DISTANCE] = shard_distances(labels, order.shards).mean(axis=-1)
    if order.source is not None:
        measures[_CORRELATION] = _correlations(order.source[indices])
    return measures


def run_lengths(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the mean and the maximum length of runs of equal labels in each row, each [num_rows]."""
    begins = np.ones(labels.shape, bool)
    np.not_equal(labels[:, 1:], labels[:, :-1], out=begins[:, 1:])
    counts = np.count_nonzero(begins, axis=1)
    lengths = np.diff(np.flatnonzero(begins), append=begins.size)
    return labels.shape[1] / counts, np.maximum.reduceat(lengths, np.cumsum(counts) - counts)


def shard_distances(labels: np.ndarray, shards: np.ndarray) -> np.ndarray:
    """Returns the total variation distance between the labels of each shard and of all records.

    The result is float [num_rows, num_shards].
    """
    num_rows, num_shards, num_labels = len(labels), int(shards[-1]) + 1, int(labels.max()) + 1
    cells = np.sort(shards.astype(np.int64) * num_labels + labels, axis=1)
    begins = np.ones(cells.shape, bool)
    np.not_equal(cells[:, 1:], cells[:, :-1], out=begins[:, 1:])
    first = np.flatnonzero(begins)
    shard, label = np.divmod(cells.reshape(-1)[first], num_labels)
    shares_in_shard = np.diff(first, append=cells.size) / np.bincount(shards)[shard]
    excess = np.maximum(shares_in_shard - (np.bincount(labels[0]) / labels.shape[1])[label], 0)
    row = first // labels.shape[1]
    return np.bincount(row * num_shards + shard, excess, num_rows * num_shards).reshape(num_rows, num_shards)


def _correlations(source: np.ndarray) -> np.ndarray:
    """Returns Spearman's rank correlation between source order and record order, float [num_rows]."""
    here = np.arange(source.shape[1]) - (source.shape[1] - 1) / 2
    deviations = source - source[0].mean()
    return deviations @ here / np.sqrt((deviations[0] @ deviations[0]) * (here @ here))


def _permutations(num_records: int, num_permutations: int, seed: int) -> Iterator[np.ndarray]:
    """Yields batches of random permutations, int32 [num_orders, num_records]."""
    generator = np.random.Generator(np.random.SFC64(seed))
    at_once = max(1, _BATCH // num_records)
    for first in range(0, num_permutations, at_once):
        orders = np.tile(np.arange(num_records, dtype=np.int32), (min(at_once, num_permutations - first), 1))
        yield generator.permuted(orders, axis=1, out=orders)


def _small(labels: np.ndarray) -> np.ndarray:
    """Converts labels to 16 bits if possible, which makes sorting three times as fast."""
    return labels.astype(np.int16 if len(labels) and labels.max() < 1 << 15 else np.int32)


def _badness(name: str, values: np.ndarray) -> np.ndarray:
    """Transforms a measure so that larger values always mean a worse shuffle."""
    if name == _MEAN_RUN:
        return 1 - 1 / values  # Approximately the fraction of records whose neighbor has the same label.
    if name == _LONGEST_RUN:
        return np.log(values)
    return np.abs(values) if name == _CORRELATION else values if name == _DISTANCE else -values


def _compare(name: str, actual: np.ndarray, permuted: np.ndarray, by_label: np.ndarray) -> Measure:
    (bad,), others, (worst,) = (_badness(name, values) for values in (actual, permuted, by_label))
    chance = others.mean()
    share = min(1.0, max(0.0, (bad - chance) / (worst - chance))) if worst > chance else 0.0
    counts = bool(worst > others.max() + _ROUNDING)
    return Measure(name, float(actual[0]), float(np.abs(permuted).mean()), float(by_label[0]), float(share), counts)


def _p_value(measures: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> float:
    """Returns the p-value of the most extreme of several measures. With few permutations, Cantelli's inequality is used.

    Args:
        measures: For each measure, its value for the actual order, [1], and for the permutations, [num_permutations].
    """
    deviations = []
    for name, (actual, permuted) in measures.items():
        bad = _badness(name, permuted)
        deviations.append((_badness(name, np.concatenate([actual, permuted])) - bad.mean()) / max(bad.std(), _ROUNDING))
    largest, *others = np.max(deviations, axis=0)
    as_bad = int(np.count_nonzero(others >= largest - _ROUNDING))
    p_value = (1 + as_bad) / (1 + len(others))
    if as_bad or len(others) >= NUM_PERMUTATIONS:
        return p_value
    deviation = float((largest - np.mean(others)) / max(np.std(others), _ROUNDING))
    return min(p_value, 1 / (1 + deviation**2))
