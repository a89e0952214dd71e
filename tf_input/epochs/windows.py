"""The order of an epoch that is read in long runs: windows of some runs each, and the records of a window mixed.

The runs of a split are permuted, some that follow each other are a window, and the records of each window are permuted. As the data
set was shuffled before it was written, this is as good as a permutation of the whole split, and reads each byte once, at the speed
at which long runs can be read.

Lanes make that so for any number of hosts. The place of a record in the epoch (of a part of a mix: in the mix's epoch), modulo
`NUM_LANES`, is its lane, and a window deals its records out to the lanes by where they lie: each lane has one slice of the window's bytes.
Of n hosts, number i reads the places that are i modulo n, whose lanes, for most n, lie together: an n-th of the window. Which record is
at a place does not depend on n.
"""

import dataclasses
import functools
from typing import Callable

import numpy as np

from tf_input.epochs.runs import Runs

_RADICES = (2, 2, 2, 2, 3, 2, 2)  # of a lane's number; with 2, 4, 8, 16 hosts the slices of each are one
NUM_LANES = int(np.prod(_RADICES))
_RUNS, _RECORDS, _LANES = 1, 2, 3  # what is permuted: each by numbers of its own


@dataclasses.dataclass(frozen=True)
class Window:
    """Some runs, whose records are mixed.

    Attributes:
        index: The place of the window among those of the epoch.
        start: The first place of the window in the epoch.
        count: The number of its records, and of its places.
        runs: The numbers of its runs in the table, int64 [n].
        run_starts: The first record of each run, counted through the window as its runs lie one after the other, int64 [n + 1].
    """

    index: int
    start: int
    count: int
    runs: np.ndarray
    run_starts: np.ndarray


class WindowOrder:
    """The order of one epoch.

    Args:
        runs: The runs of the split.
        window_bytes: The size that a window has, about, in bytes.
        key: The key of the epoch, as `epoch_key` gives it; None: records have the order in which they lie in the shards.
        lanes: A function from places of the epoch to their lanes; None: the places modulo `NUM_LANES`.
    """

    def __init__(
        self, runs: Runs, window_bytes: int, key: int | None, lanes: Callable[[np.ndarray], np.ndarray] | None = None
    ) -> None:
        self._key, self._lanes = key, lanes
        order = np.arange(len(runs)) if key is None else np.argsort(hashes(key, _RUNS, np.arange(len(runs))), kind="stable")
        ends = np.cumsum(runs.num_bytes[order])
        # The first ones are smaller, so that an epoch begins soon: an eighth, a quarter, a half.
        edges = np.arange(1, 2 + int(ends[-1] if len(ends) else 0) // max(1, window_bytes)) * max(1, window_bytes)
        edges = np.concatenate([[window_bytes // 8, window_bytes * 3 // 8, window_bytes * 7 // 8], edges + window_bytes * 7 // 8])
        window_of = np.searchsorted(edges, ends - runs.num_bytes[order], side="right")  # that in which a run begins
        self._bounds = np.flatnonzero(np.diff(window_of, prepend=-1, append=np.iinfo(np.int64).max))  # of runs
        self._order = order
        self._places = np.concatenate([[0], np.cumsum(runs.counts[order])])  # of runs
        self._starts = self._places[self._bounds]  # of windows
        self.num_windows = len(self._bounds) - 1

    def windows_of(self, places: np.ndarray) -> np.ndarray:
        """The window in which each place of the epoch lies: int64 [n]."""
        return np.searchsorted(self._starts, places, side="right") - 1

    def window(self, index: int) -> Window:
        """Returns the window at a position among those of the epoch."""
        first, stop = self._bounds[index], self._bounds[index + 1]
        start, count = int(self._starts[index]), int(self._starts[index + 1] - self._starts[index])
        return Window(index, start, count, self._order[first:stop], self._places[first : stop + 1] - start)

    def mix(self, window: Window) -> np.ndarray:
        """The record at each place of a window, counted as in `Window.run_starts`: int64 [window.count]."""
        if self._key is None:
            return np.arange(window.count)
        draws = hashes(self._key, _RECORDS + (window.index << 8), np.arange(window.count))
        if self.num_windows == 1:
            return np.argsort(draws, kind="stable")
        slices = self._slice_numbers(window)[self._lanes_of(window)]  # of places
        of_record = np.repeat(np.arange(NUM_LANES, dtype=np.uint64), np.bincount(slices, minlength=NUM_LANES))
        found = np.empty(window.count, np.int64)
        # The places of each lane in turn, and the records of its slice, mixed.
        found[np.argsort(slices, kind="stable")] = np.argsort(of_record << np.uint64(56) | draws >> np.uint64(8), kind="stable")
        return found

    def slices(self, window: Window, hosts: tuple[int, int]) -> list[tuple[int, int]]:
        """Where the records lie that a host reads of a window: (first, stop) of stretches, counted as in `Window.run_starts`.

        Args:
            window: One of the epoch's.
            hosts: (number of hosts, this one's index).
        """
        divisor = np.gcd(hosts[0], NUM_LANES)
        if self._key is None or self.num_windows == 1 or divisor == 1:
            return [(0, window.count)]
        numbers = self._slice_numbers(window)
        is_wanted = np.zeros(NUM_LANES, bool)
        is_wanted[numbers[hosts[1] % divisor :: divisor]] = True
        stops = np.cumsum(np.bincount(numbers[self._lanes_of(window)], minlength=NUM_LANES))
        edges = np.flatnonzero(np.diff(is_wanted, prepend=False, append=False))
        bounds = np.concatenate([[0], stops])[edges].reshape(-1, 2)
        return [(first, stop) for first, stop in bounds.tolist() if first < stop]

    def _slice_numbers(self, window: Window) -> np.ndarray:
        """For each lane the number of its slice in the window: uint8 [NUM_LANES], of which so many are sorted quickest."""
        return _scramble(hashes(self._key, _LANES + (window.index << 8), np.arange(NUM_LANES))).astype(np.uint8)

    def _lanes_of(self, window: Window) -> np.ndarray:
        """The lanes of a window's places: int64 [window.count]."""
        places = window.start + np.arange(window.count)
        return places % NUM_LANES if self._lanes is None else self._lanes(places)


def _scramble(draws: np.ndarray) -> np.ndarray:
    """For each residue the number of a slice: digits in reverse, and each turned by a draw that depends on those before it.

    So residues that are alike modulo a product of the first radices lie together, and nothing else of their order is fixed:
    the nested scrambling of Owen, https://doi.org/10.1007/978-1-4612-2552-2_19, with turns in place of permutations.
    """
    left, slices, size = np.arange(NUM_LANES), np.zeros(NUM_LANES, np.int64), 1
    for radix in _RADICES:
        turn = (draws[size - 1 + slices % size] >> np.uint64(32)).astype(np.int64) if size < NUM_LANES else 0
        digit = (left + turn) % radix
        left, slices, size = left // radix, slices * radix + digit, size * radix
    return slices


@functools.cache
def _constants() -> tuple[np.uint64, ...]:
    return tuple(np.uint64(one) for one in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 30, 27, 31))


def hashes(key: int, what: int, numbers: np.ndarray) -> np.ndarray:
    """64 bits for each number, which depend on all of these: SplitMix64, https://doi.org/10.1145/2714064.2660195, twice."""
    golden, first, second, *shifts = _constants()

    def mix(bits: np.ndarray) -> np.ndarray:
        bits = (bits ^ bits >> shifts[0]) * first
        bits = (bits ^ bits >> shifts[1]) * second
        return bits ^ bits >> shifts[2]

    with np.errstate(over="ignore"):
        seed = mix(np.array([key], np.uint64) + np.array([what], np.uint64) * golden)
        return mix(seed + numbers.astype(np.uint64) * golden)
