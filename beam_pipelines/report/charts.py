"""Numbers of the pictures that a page draws: histograms, and the order of classes."""

from typing import NamedTuple, Sequence

import numpy as np

from beam_pipelines.report.colours import hue

_NUM_BINS = 24
_LOGARITHMIC_FROM = 20  # times the smallest value
STRIP_EXAMPLES = 200


class Bar(NamedTuple):
    """One bin of a histogram.

    Attributes:
        low, high: The smallest and the largest value that the bin takes.
        num: The number of values in the bin.
        share: The height of the bin, as a share of the largest bin of its split, 0 to 1.
    """

    low: int
    high: int
    num: int
    share: float


class Histogram(NamedTuple):
    """A quantity of the images of the sample.

    Attributes:
        title: The name of what is counted.
        low, median, high: The smallest value, that in the middle, and the largest.
        splits: The name, the place and the bars of each split with examples.
    """

    title: str
    low: int
    median: int
    high: int
    splits: list[tuple[str, int, list[Bar]]]


def make_histogram(title: str, values: np.ndarray, splits: np.ndarray, names: Sequence[str]) -> Histogram | None:
    """A histogram for each split, of the same bins; None where no value is known.

    Args:
        title: The name of what is counted.
        values: int64 [num_rows], -1 where it is not known.
        splits: int64 [num_rows], the place of each one's split.
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
    for place, name in enumerate(names):
        chosen = values[known & (splits == place)]
        if len(chosen):
            counts = np.histogram(chosen, edges)[0].tolist()
            bars = [Bar(int(edges[at]), int(edges[at + 1]) - 1, num, num / max(counts)) for at, num in enumerate(counts)]
            of_splits.append((name, place, bars))
    return Histogram(title, low, int(np.median(values[known])), high, of_splits)


class ClassRun(NamedTuple):
    """Examples in a row with one class.

    Attributes:
        start, num: The place where the run begins, and the number of its examples.
        name: The name of the class, or of the classes.
        hue: The hue of the run's colour, in degrees.
    """

    start: int
    num: int
    name: str
    hue: int


def make_strip(codes: Sequence[int], names: Sequence[str]) -> list[ClassRun]:
    """Classes in an order, as stretches of the same one."""
    codes = np.asarray(codes)
    starts = np.concatenate([[0], np.flatnonzero(np.diff(codes)) + 1]) if len(codes) else np.zeros(0, np.int64)
    ends = np.append(starts[1:], len(codes))
    return [ClassRun(int(at), int(end - at), names[codes[at]], hue(int(codes[at]))) for at, end in zip(starts, ends)]
