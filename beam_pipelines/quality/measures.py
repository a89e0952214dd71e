"""How far a sequence of labels is from a shuffled one: what is measured, what chance gives, and a verdict.

Chance is a seeded permutation test. The records are permuted `NUM_PERMUTATIONS` times, and each order is measured as the one that was
found; a p-value is the share of all these orders, the found one among them, that are as bad. So it is valid whatever the classes and
their numbers are (Phipson and Smyth 2010, https://doi.org/10.2202/1544-6115.1585). The verdict is of all measures at once: of each order
the one that counts which lies the most standard deviations off (Westfall and Young 1993, max T). Where there are so many records that
fewer permutations have to do, the deviation itself bounds the p-value (Cantelli's inequality).

A data set that is shuffled is called otherwise at most once in `1 / SIGNIFICANCE` times.
"""

import dataclasses
from typing import Any, Iterator, Mapping

import numpy as np

from beam_pipelines.elements.quality import WINDOW, labels_in_windows

SIGNIFICANCE = 0.001
NUM_PERMUTATIONS = 999
WINDOWS = (32, WINDOW, 1000, 10_000)  # records
SHUFFLED, PARTLY, UNSHUFFLED, UNKNOWN = "shuffled", "partly shuffled", "not shuffled", "cannot tell"

# Of the way from chance to sorted: below the first nobody would notice, above the second little is left of chance.
_MIN_SHARE, _MOST = 0.05, 0.5
_MAX_PERMUTED = 25_000_000  # records, in all permutations: some seconds
_MIN_PERMUTATIONS = 39
_BATCH = 1 << 20  # records that are permuted at once

_ROUNDING = 1e-9  # of floats that should be equal

_MEAN_RUN, _LONGEST_RUN, _DISTANCE, _CORRELATION = "mean_run_length", "longest_run", "shard_distance", "source_correlation"


@dataclasses.dataclass(frozen=True)
class LabelOrder:
    """The records of a split, in their order.

    Attributes:
        labels: int [num_records], from 0.
        shards: int [num_records], the shard of each, ascending from 0.
        source: int [num_records], the place of each in the order of its source; None: unknown.
    """

    labels: np.ndarray
    shards: np.ndarray
    source: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class Measure:
    """One measure of an order.

    Attributes:
        name: `mean_run_length`, `longest_run`, `labels_in_128`, `shard_distance` or `source_correlation`.
        found: The measure of the order in which the records lie.
        chance: The average of the measure over random permutations.
        sorted: The measure of the same records sorted by label, or in the order of their source.
        p_value: The share of the permutations that are as bad.
        share: How far the order is on the way from chance to sorted, 0 to 1.
        counts: Whether the measure can tell anything: whether no permutation is as bad as sorted records.
    """

    name: str
    found: float
    chance: float
    sorted: float
    p_value: float
    share: float
    counts: bool

    def to_json(self) -> dict[str, Any]:
        """The measure as plain values that JSON can hold."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class Quality:
    """What was found of one order.

    Attributes:
        verdict: `shuffled`, `partly shuffled`, `not shuffled`, or `cannot tell`: even sorted records would look like chance.
        p_value: The p-value of all measures that count, taken together; None where none counts.
        measures: The measures that were taken.
        worst_shard: The shard whose labels are farthest from those of all; None where there is one shard.
        num_permutations: The number of permutations that the order was compared with.
    """

    verdict: str
    p_value: float | None
    measures: tuple[Measure, ...]
    worst_shard: int | None
    num_permutations: int


def assess(order: LabelOrder, seed: int = 0) -> Quality:
    """Compares an order with permutations of it; the same seed gives the same result."""
    num_records = len(order.labels)
    if num_records < 2:
        return Quality(UNKNOWN, None, (), None, 0)
    num_permutations = max(_MIN_PERMUTATIONS, min(NUM_PERMUTATIONS, _MAX_PERMUTED // num_records))
    order = dataclasses.replace(order, labels=_small(np.unique(order.labels, return_inverse=True)[1]))
    found = measure(order, np.arange(num_records)[np.newaxis])
    by_label = measure(order, np.argsort(order.labels, kind="stable")[np.newaxis])
    if order.source is not None:
        by_label[_CORRELATION] = np.ones(1)
    parts = [measure(order, some) for some in _permutations(num_records, num_permutations, seed)]
    permuted = {name: np.concatenate([part[name] for part in parts]) for name in found}
    measures = tuple(_compare(name, found[name], permuted[name], by_label[name]) for name in found)
    distances = shard_distances(order.labels[np.newaxis], order.shards)[0]
    worst = int(distances.argmax()) if len(distances) > 1 else None
    counting = [one for one in measures if one.counts]
    if not counting:
        return Quality(UNKNOWN, None, measures, worst, num_permutations)
    if num_permutations < NUM_PERMUTATIONS:
        p_value = min(1.0, len(counting) * min(one.p_value for one in counting))
    else:
        p_value = _joint_p_value({one.name: (found[one.name], permuted[one.name]) for one in counting})
    share = max(one.share for one in counting)
    is_chance = p_value > SIGNIFICANCE or share < _MIN_SHARE
    verdict = SHUFFLED if is_chance else PARTLY if share < _MOST else UNSHUFFLED
    return Quality(verdict, p_value, measures, worst, num_permutations)


def measure(order: LabelOrder, places: np.ndarray) -> dict[str, np.ndarray]:
    """Each measure, float [num_orders], of orders in which records lie.

    Args:
        order: The labels of the records, with their shards and their places in the source.
        places: int [num_orders, num_records], which record comes first, second, …
    """
    labels, num_records = order.labels[places], len(order.labels)
    found = dict(zip((_MEAN_RUN, _LONGEST_RUN), run_lengths(labels)))
    for window in WINDOWS:
        if window <= num_records:
            found[f"labels_in_{window}"] = labels_in_windows(labels, window).mean(axis=-1)
    if order.shards[-1]:
        found[_DISTANCE] = shard_distances(labels, order.shards).mean(axis=-1)
    if order.source is not None:
        found[_CORRELATION] = _correlations(order.source[places])
    return found


def run_lengths(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mean and the greatest length of the runs of equal labels in each row: float [num_rows], int [num_rows]."""
    begins = np.ones(labels.shape, bool)
    np.not_equal(labels[:, 1:], labels[:, :-1], out=begins[:, 1:])
    counts = np.count_nonzero(begins, axis=1)
    lengths = np.diff(np.flatnonzero(begins), append=begins.size)
    return labels.shape[1] / counts, np.maximum.reduceat(lengths, np.cumsum(counts) - counts)


def shard_distances(labels: np.ndarray, shards: np.ndarray) -> np.ndarray:
    """The total variation distance of each shard's labels from those of all, 0 to 1: float [num_rows, num_shards]."""
    num_rows, num_shards, num_labels = len(labels), int(shards[-1]) + 1, int(labels.max()) + 1
    cells = np.sort(shards.astype(np.int64) * num_labels + labels, axis=1)
    begins = np.ones(cells.shape, bool)
    np.not_equal(cells[:, 1:], cells[:, :-1], out=begins[:, 1:])
    first = np.flatnonzero(begins)
    shard, label = np.divmod(cells.reshape(-1)[first], num_labels)
    there = np.diff(first, append=cells.size) / np.bincount(shards)[shard]
    excess = np.maximum(there - (np.bincount(labels[0]) / labels.shape[1])[label], 0)
    row = first // labels.shape[1]
    return np.bincount(row * num_shards + shard, excess, num_rows * num_shards).reshape(num_rows, num_shards)


def _correlations(source: np.ndarray) -> np.ndarray:
    """The rank correlation of the places in the source with those here, -1 to 1, for each row (Spearman's, as both are ranks)."""
    here = np.arange(source.shape[1]) - (source.shape[1] - 1) / 2
    there = source - source[0].mean()
    return there @ here / np.sqrt((there[0] @ there[0]) * (here @ here))


def _permutations(num_records: int, num_permutations: int, seed: int) -> Iterator[np.ndarray]:
    """Some at a time: int32 [num_orders, num_records]."""
    generator = np.random.Generator(np.random.SFC64(seed))
    at_once = max(1, _BATCH // num_records)
    for first in range(0, num_permutations, at_once):
        orders = np.tile(np.arange(num_records, dtype=np.int32), (min(at_once, num_permutations - first), 1))
        yield generator.permuted(orders, axis=1, out=orders)


def _small(labels: np.ndarray) -> np.ndarray:
    """In 16 bits where they suffice: these are sorted three times as fast."""
    return labels.astype(np.int16 if len(labels) and labels.max() < 1 << 15 else np.int32)


def _badness(name: str, values: np.ndarray) -> np.ndarray:
    """More is worse, on a scale on which a step is as bad anywhere."""
    if name == _MEAN_RUN:
        return 1 - 1 / values  # the share of records whose neighbour has their label, about
    if name == _LONGEST_RUN:
        return np.log(values)
    return np.abs(values) if name == _CORRELATION else values if name == _DISTANCE else -values


def _compare(name: str, found: np.ndarray, permuted: np.ndarray, by_label: np.ndarray) -> Measure:
    (bad,), others, (worst,) = (_badness(name, values) for values in (found, permuted, by_label))
    chance = others.mean()
    share = min(1.0, max(0.0, (bad - chance) / (worst - chance))) if worst > chance else 0.0
    counts = bool(worst > others.max() + _ROUNDING)
    return Measure(name, float(found[0]), float(np.abs(permuted).mean()), float(by_label[0]), _p_value(bad, others), float(share), counts)


def _p_value(bad: float, others: np.ndarray) -> float:
    """The p-value of a badness among those of permutations; where they are few and none is as bad, by its distance from them."""
    as_bad = int(np.count_nonzero(others >= bad - _ROUNDING))
    p_value = (1 + as_bad) / (1 + len(others))
    if as_bad or len(others) >= NUM_PERMUTATIONS:
        return p_value
    deviation = float((bad - others.mean()) / max(others.std(), _ROUNDING))
    return min(p_value, 1 / (1 + deviation**2))


def _joint_p_value(measures: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> float:
    """The p-value of several measures, found and permuted, at once: each order counts by the measure that deviates most."""
    badness = [_badness(name, np.concatenate(both)) for name, both in measures.items()]
    largest = np.max([(bad - bad.mean()) / max(bad.std(), _ROUNDING) for bad in badness], axis=0)
    return _p_value(largest[0], largest[1:])
