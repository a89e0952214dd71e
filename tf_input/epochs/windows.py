"""Implements window shuffling, which reads chunks in random order and mixes the records of several chunks.

Consecutive chunks whose records are mixed form a window. The records of a dataset are already shuffled when they are
written, so window shuffling is as good as a permutation of the whole split. Each byte of the split is read once per
epoch, with the throughput of long sequential reads.

Virtual shards make the order independent of the number of hosts. The virtual shard of an example is its index in the
epoch (or in the mixture's epoch) modulo `NUM_VIRTUAL_SHARDS`. Each window is divided into byte slices, and
each slice contains the records of one virtual shard. Host i of n reads the examples whose index is i modulo n. If n
divides `NUM_VIRTUAL_SHARDS`, the host reads only the slices of its virtual shards, which are 1/n of the window. If n is
2, 4, 8 or 16, these slices are also adjacent.
"""

import dataclasses
import functools
from typing import Callable

import numpy as np

from tf_input.epochs.runs import Runs

# digits of a virtual shard's number; with 2, 4, 8 or 16 hosts, the slices of each host are adjacent
_RADICES = (2, 2, 2, 2, 3, 2, 2)
NUM_VIRTUAL_SHARDS = int(np.prod(_RADICES))
_RUNS, _RECORDS, _SLICES = 1, 2, 3  # purposes of hashes; hashes with different purposes are independent


@dataclasses.dataclass(frozen=True)
class Window:
    """A group of consecutive chunks in an epoch. The records of these chunks are mixed.

    Attributes:
        index: The index of the window in the epoch.
        start: The first index of the window in the epoch.
        count: The number of its records.
        runs: The indices of its chunks in the table, int64 [n].
        run_starts: The first record of each chunk, counted from the start of the window's concatenated chunks, int64 [n
            + 1].
    """

    index: int
    start: int
    count: int
    runs: np.ndarray
    run_starts: np.ndarray


class WindowOrder:
    """The order of one epoch.

    Args:
        runs: The chunks of the split.
        window_bytes: The approximate size of a window, in bytes.
        key: The key of the epoch, from `epoch_key`. None reads the records in the order of the shards.
        virtual_shards: A function from indices of the epoch to their virtual shards. Default: None, the indices modulo
            `NUM_VIRTUAL_SHARDS`.
    """

    def __init__(
        self, runs: Runs, window_bytes: int, key: int | None, virtual_shards: Callable[[np.ndarray], np.ndarray] | None = None
    ) -> None:
        self._key, self._virtual_shards = key, virtual_shards
        order = np.arange(len(runs)) if key is None else np.argsort(hashes(key, _RUNS, np.arange(len(runs))), kind="stable")
        ends = np.cumsum(runs.num_bytes[order])
        # The first windows are smaller, so that an epoch starts quickly: an eighth, a quarter, a half.
        edges = np.arange(1, 2 + int(ends[-1] if len(ends) else 0) // max(1, window_bytes)) * max(1, window_bytes)
        edges = np.concatenate([[window_bytes // 8, window_bytes * 3 // 8, window_bytes * 7 // 8], edges + window_bytes * 7 // 8])
        # the window in which each chunk begins
        window_of = np.searchsorted(edges, ends - runs.num_bytes[order], side="right")
        self._bounds = np.flatnonzero(np.diff(window_of, prepend=-1, append=np.iinfo(np.int64).max))  # of chunks
        self._order = order
        self._chunk_starts = np.concatenate([[0], np.cumsum(runs.counts[order])])  # of chunks
        self._starts = self._chunk_starts[self._bounds]  # of windows
        self.num_windows = len(self._bounds) - 1

    def windows_of(self, indices: np.ndarray) -> np.ndarray:
        """Returns the windows that contain the given indices of the epoch, int64 [n]."""
        return np.searchsorted(self._starts, indices, side="right") - 1

    def window(self, index: int) -> Window:
        """Returns the window with the given index in the epoch."""
        first, stop = self._bounds[index], self._bounds[index + 1]
        start, count = int(self._starts[index]), int(self._starts[index + 1] - self._starts[index])
        return Window(index, start, count, self._order[first:stop], self._chunk_starts[first : stop + 1] - start)

    def mix(self, window: Window) -> np.ndarray:
        """Returns the record at each index of a window, int64 [window.count], numbered as in `Window.run_starts`."""
        if self._key is None:
            return np.arange(window.count)
        draws = hashes(self._key, _RECORDS + (window.index << 8), np.arange(window.count))
        if self.num_windows == 1:
            return np.argsort(draws, kind="stable")
        slices = self._slice_numbers(window)[self._virtual_shards_of(window)]  # of indices
        of_record = np.repeat(np.arange(NUM_VIRTUAL_SHARDS, dtype=np.uint64), np.bincount(slices, minlength=NUM_VIRTUAL_SHARDS))
        records = np.empty(window.count, np.int64)
        # For each virtual shard in turn: its indices get the records of its slice, mixed.
        records[np.argsort(slices, kind="stable")] = np.argsort(of_record << np.uint64(56) | draws >> np.uint64(8), kind="stable")
        return records

    def slices(self, window: Window, hosts: tuple[int, int]) -> list[tuple[int, int]]:
        """Returns the ranges (first, stop) of records that a host reads from a window.

        Records are counted as in `Window.run_starts`.

        Args:
            window: A window of the epoch.
            hosts: The pair (number of hosts, index of this host).
        """
        divisor = np.gcd(hosts[0], NUM_VIRTUAL_SHARDS)
        if self._key is None or self.num_windows == 1 or divisor == 1:
            return [(0, window.count)]
        numbers = self._slice_numbers(window)
        is_wanted = np.zeros(NUM_VIRTUAL_SHARDS, bool)
        is_wanted[numbers[hosts[1] % divisor :: divisor]] = True
        stops = np.cumsum(np.bincount(numbers[self._virtual_shards_of(window)], minlength=NUM_VIRTUAL_SHARDS))
        edges = np.flatnonzero(np.diff(is_wanted, prepend=False, append=False))
        bounds = np.concatenate([[0], stops])[edges].reshape(-1, 2)
        return [(first, stop) for first, stop in bounds.tolist() if first < stop]

    def _slice_numbers(self, window: Window) -> np.ndarray:
        """Returns the slice number of each virtual shard, uint8 [NUM_VIRTUAL_SHARDS]. This dtype sorts fastest."""
        return _scramble(hashes(self._key, _SLICES + (window.index << 8), np.arange(NUM_VIRTUAL_SHARDS))).astype(np.uint8)

    def _virtual_shards_of(self, window: Window) -> np.ndarray:
        """Returns the virtual shard of each index in a window, int64 [window.count]."""
        indices = window.start + np.arange(window.count)
        return indices % NUM_VIRTUAL_SHARDS if self._virtual_shards is None else self._virtual_shards(indices)


def _scramble(draws: np.ndarray) -> np.ndarray:
    """Returns the number of each virtual shard's byte slice.

    The number of the virtual shard is written with one digit for each radix in `_RADICES`. Each digit is then shifted
    cyclically by a random number that depends on the preceding digits, and the order of the digits is reversed.
    Therefore, virtual shards whose numbers are equal modulo 2, 4, 8 or 16 have adjacent slices. The method is Owen's
    nested scrambling, https://doi.org/10.1007/978-1-4612-2552-2_19, with cyclic shifts instead of permutations.
    """
    left, slices, size = np.arange(NUM_VIRTUAL_SHARDS), np.zeros(NUM_VIRTUAL_SHARDS, np.int64), 1
    for radix in _RADICES:
        turn = (draws[size - 1 + slices % size] >> np.uint64(32)).astype(np.int64) if size < NUM_VIRTUAL_SHARDS else 0
        digit = (left + turn) % radix
        left, slices, size = left // radix, slices * radix + digit, size * radix
    return slices


@functools.cache
def _constants() -> tuple[np.uint64, ...]:
    return tuple(np.uint64(item) for item in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 30, 27, 31))


def hashes(key: int, purpose: int, numbers: np.ndarray) -> np.ndarray:
    """Returns a 64-bit hash of each number, computed with two rounds of SplitMix64. Hashes with different purposes are
    independent.

    SplitMix64 is described in https://doi.org/10.1145/2714064.2660195.
    """
    golden, first, second, *shifts = _constants()

    def mix(bits: np.ndarray) -> np.ndarray:
        bits = (bits ^ bits >> shifts[0]) * first
        bits = (bits ^ bits >> shifts[1]) * second
        return bits ^ bits >> shifts[2]

    with np.errstate(over="ignore"):
        seed = mix(np.array([key], np.uint64) + np.array([purpose], np.uint64) * golden)
        return mix(seed + numbers.astype(np.uint64) * golden)
