"""Computes the data for the charts in the report, such as histograms of the image size."""

from typing import NamedTuple, Sequence

import numpy as np

from beam_pipelines.report.colours import hue

_NUM_BINS = 24
# Histograms use a logarithmic scale if the largest value is at least this multiple of the smallest value.
_LOGARITHMIC_FROM = 20
STRIP_EXAMPLES = 200


class Bar(NamedTuple):
    """One bin of a histogram.

    Attributes:
        low, high: The smallest and the largest value of the bin.
        num: The number of values in the bin.
        share: The height of the bin relative to the highest bin of its split, from 0 to 1.
    """

    low: int
    high: int
    num: int
    share: float


class Histogram(NamedTuple):
    """The histograms of an image property, such as the height, for each split.

    Attributes:
        title: The name of the image property.
        low, median, high: The smallest, the median and the largest value.
        splits: The name, index and bars of each split with examples.
    """

    title: str
    low: int
    median: int
    high: int
    splits: list[tuple[str, int, list[Bar]]]


def make_histogram(title: str, values: np.ndarray, splits: np.ndarray, names: Sequence[str]) -> Histogram | None:
    """Computes a histogram for each split, with the same bins. Returns None if no value is known.

    Args:
        title: The name of the image property.
        values: The value of each example, int64 [num_rows]. -1 means unknown.
        splits: The index of each example's split, int64 [num_rows].
        names: The names of the splits.
    """
    known = values >= 0
    if not known.any():
        return None
    low, high = int(values[known].min()), int(values[known].max())
    if high >= _LOGARITHMIC_FROM * max(low, 1):
        edges = np.geomspace(max(low, 1), high + 1, _NUM_BINS + 1)
    else:
        edges = np.linspace(low, high + 1, min(_NUM_BINS, high - low + 1) + 1)
    edges = np.unique(np.concatenate([[low], np.floor(edges[1:-1]), [high + 1]])).astype(np.int64)
    of_splits = []
    for split_number, name in enumerate(names):
        chosen = values[known & (splits == split_number)]
        if len(chosen):
            counts = np.histogram(chosen, edges)[0].tolist()
            bars = [Bar(int(edges[at]), int(edges[at + 1]) - 1, num, num / max(counts)) for at, num in enumerate(counts)]
            of_splits.append((name, split_number, bars))
    return Histogram(title, low, int(np.median(values[known])), high, of_splits)


class ClassRun(NamedTuple):
    """A sequence of consecutive examples with the same class.

    Attributes:
        start, num: The index of the first example, and the number of examples.
        name: The name of the class, or of the set of classes.
        hue: The hue of the run's color, in degrees.
    """

    start: int
    num: int
    name: str
    hue: int


def make_strip(codes: Sequence[int], names: Sequence[str]) -> list[ClassRun]:
    """Divides the examples of a split into sequences of consecutive examples with the same class."""
    codes = np.asarray(codes)
    starts = np.concatenate([[0], np.flatnonzero(np.diff(codes)) + 1]) if len(codes) else np.zeros(0, np.int64)
    ends = np.append(starts[1:], len(codes))
    return [ClassRun(int(at), int(end - at), names[codes[at]], hue(int(codes[at]))) for at, end in zip(starts, ends)]
