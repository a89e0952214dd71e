"""The order of an epoch of several parts: of each place, which part is there, and which of that part's examples.

All of it is computed, of any place alone. The parts are halved again and again, and each half has its share of the examples, rounded:
so a part has as many of the first examples of an epoch, wherever these end, as its share says, give or take a half for each time that
the parts are halved: for two parts a half, for three or four one. In a batch, the examples of each part are spread over the rows, so that
each host, and each replica that is given a stretch of rows, has its share of them, too.
"""

import dataclasses
import functools
import hashlib
import math
from fractions import Fraction
from typing import Sequence

import numpy as np

from tf_input.epochs.windows import NUM_LANES

_MOST = 1 << 30  # of the sum of weights, so that what is multiplied with them stays below 2 ** 63
_GOLDEN = (5**0.5 - 1) / 2
_NUM_TRIED = 50  # strides to either side of it


def to_weights(shares: Sequence[Fraction]) -> tuple[int, ...]:
    """Integers that are to each other as shares are: exactly, if their sum is below 2 ** 30, else to one part in 2 ** 30."""
    scale = math.lcm(*(share.denominator for share in shares))
    weights = [int(share * scale) for share in shares]
    whole, divisor = sum(weights), math.gcd(*weights)
    if whole // divisor <= _MOST:
        return tuple(weight // divisor for weight in weights)
    return tuple(max(1, weight * (_MOST - len(weights)) // whole) for weight in weights)


def part_seed(seed: int, name: str) -> int:
    """The seed of the order of a part: another one than those of the mix and of its other parts, whatever these are of."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/part/{name}".encode(), digest_size=8).digest(), "big") >> 1


def count_parts(weights: Sequence[int], places: np.ndarray) -> np.ndarray:
    """How many of the first examples of an epoch are of each part.

    Args:
        weights: The numbers to which the shares of the parts are as.
        places: The numbers of examples, int64 [n].

    Returns:
        int64 [num_parts, n], whose columns add up to `places`, and whose rows grow with them.
    """
    if len(weights) == 1:
        return places[np.newaxis]
    middle, whole = len(weights) // 2, sum(weights)
    first = sum(weights[:middle])
    rounds, rest = np.divmod(places, whole)
    of_first = rounds * first + (2 * rest * first + whole) // (2 * whole)  # rounded to the nearest
    return np.concatenate([count_parts(weights[:middle], of_first), count_parts(weights[middle:], places - of_first)])


def find_places(weights: Sequence[int], part: int, numbers: np.ndarray) -> np.ndarray:
    """Where a part's examples come: the places up to which `count_parts` has one less.

    Args:
        weights: The numbers to which the shares of the parts are as.
        part: The place of the part among all parts.
        numbers: The numbers of the part's examples, from 0, int64 [n].
    """
    if len(weights) == 1:
        return numbers
    middle, whole = len(weights) // 2, sum(weights)
    is_second = part >= middle
    own = weights[middle:] if is_second else weights[:middle]
    rounds, rest = np.divmod(find_places(own, part - middle * is_second, numbers), sum(own))
    return rounds * whole + -(-((2 * rest + 1) * whole + is_second) // (2 * sum(own))) - 1


def epoch_length(weights: Sequence[int], sizes: Sequence[int], stop: str) -> int:
    """The number of examples in an epoch.

    Args:
        weights: The numbers to which the shares of the parts are as.
        sizes: The number of examples of each part.
        stop: The end of an epoch: "first": until a part has been read once; "all": until each has been.
    """
    ends = [int(find_places(weights, part, np.array([size - 1]))[0]) + 1 for part, size in enumerate(sizes)]
    return min(ends) if stop == "first" else max(ends)


@dataclasses.dataclass(frozen=True)
class MixedOrder:
    """The order of a mix: the places of each epoch, and where its parts are in their own epochs.

    Each epoch begins with the same parts, and a part goes on where it was: what it has in its own epochs is an endless row, of which
    each epoch of the mix takes the next `counts`.

    Attributes:
        weights: The numbers to which the shares of the parts are as.
        sizes: The number of examples of each part in an epoch of its own.
        batch_size: The number of rows of a batch, of all hosts together.
        num_places: The number of examples in an epoch of the mix.
    """

    weights: tuple[int, ...]
    sizes: tuple[int, ...]
    batch_size: int
    num_places: int

    @functools.cached_property
    def counts(self) -> tuple[int, ...]:
        """Examples of each part in an epoch of the mix."""
        return tuple(count_parts(self.weights, np.array([self.num_places]))[:, 0].tolist())

    def size(self, step: int) -> int:
        """Rows of a batch."""
        return min(self.batch_size, self.num_places - step * self.batch_size)

    def rows(self, step: int, hosts: tuple[int, int]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Finds what a host reads of a batch.

        Args:
            step: The batch of the epoch, from 0.
            hosts: The (number of hosts, this one's index).

        Returns:
            For each part, int64 [n] both: rows of the batch, and which of the part's examples in this epoch are there, ascending.
        """
        (num_hosts, index), start, size = hosts, step * self.batch_size, self.size(step)
        begins, ends = count_parts(self.weights, np.array([start, start + size])).T
        rows = _spread(np.arange(size), step, size, _stride(size))
        found = []
        for begin, of_part in zip(begins, np.split(rows, np.cumsum(ends - begins)[:-1])):
            mine = np.flatnonzero((start + of_part) % num_hosts == index)
            found.append((of_part[mine], begin + mine))
        return found

    def own_places(self, part: int, epoch: int, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """For a part's examples in an epoch of the mix, the epochs of its own that they are in, and their places there."""
        return np.divmod(epoch * self.counts[part] + numbers, self.sizes[part])

    def lanes(self, part: int, own_epoch: int, own_places: np.ndarray) -> np.ndarray:
        """The lanes of places of a part's own epochs: those of the mix's places at which they are read, so that a host has the same."""
        numbers = (own_epoch * self.sizes[part] + own_places) % self.counts[part]
        steps = find_places(self.weights, part, numbers) // self.batch_size
        starts = steps * self.batch_size
        sizes = np.minimum(self.batch_size, self.num_places - starts)
        begins = count_parts(self.weights, starts)
        before = (count_parts(self.weights, starts + sizes)[:part] - begins[:part]).sum(axis=0)  # of the parts before it, in the batch
        strides = np.where(sizes == self.batch_size, _stride(self.batch_size), _stride(self.num_places % self.batch_size or 1))
        return (starts + _spread(before + numbers - begins[part], steps, sizes, strides)) % NUM_LANES


def _spread(ranks: np.ndarray, steps: np.ndarray | int, sizes: np.ndarray | int, strides: np.ndarray | int) -> np.ndarray:
    """The rows of batches at which examples are that come one after the other, part by part.

    They lie a stride apart, which is coprime to the size: so any n that follow each other are on all of n hosts, if these divide the
    batch. And stretches of rows have about as many of each part as their length says: points of a lattice are spread evenly where the
    quotients of the stride's continued fraction are small, as those of the golden section are; see Niederreiter, Random Number Generation
    and Quasi-Monte Carlo Methods, chapter 5, https://doi.org/10.1137/1.9781611970081.
    """
    return (ranks * strides + steps) % sizes


@functools.lru_cache(16)  # of the whole process, as it is of pure numbers
def _stride(size: int) -> int:
    near = round(size * _GOLDEN)
    strides = [one for one in range(max(1, near - _NUM_TRIED), min(size, near + _NUM_TRIED) + 1) if math.gcd(one, size) == 1]
    return min(strides, key=lambda one: (_largest_quotient(size, one), abs(one - near)))


def _largest_quotient(size: int, stride: int) -> int:
    largest = 0
    while stride:
        quotient, rest = divmod(size, stride)
        largest, size, stride = max(largest, quotient), stride, rest
    return largest
