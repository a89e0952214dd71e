"""Determines the dataset and the example at each index of an epoch of a mixture.

A mixture combines several datasets, which are called its components. The component at an index is computed directly,
without iterating over the epoch. A recursive algorithm divides the list of components into halves, and assigns a
rounded, proportional number of examples to each half. Each level of the recursion can add a rounding error of 0.5
examples. Therefore, at any index of an epoch, the number of preceding examples of a component differs from its exact
share by at most 0.5 for two components, and by at most 1 for three or four components. Within a batch, the examples of
each component are spread over the slots. Therefore, the proportions of the components on each host and each replica are
nearly the same as in the whole batch.
"""

import dataclasses
import functools
import hashlib
import math
from fractions import Fraction
from typing import Sequence

import numpy as np

from tf_input.epochs.windows import NUM_VIRTUAL_SHARDS

_MAX_SUM = 1 << 30  # upper bound of the sum of weights, so that products with them stay below 2 ** 63
_GOLDEN = (5**0.5 - 1) / 2
_NUM_TRIED = 50  # strides that are tried on either side of the golden section


def to_weights(shares: Sequence[Fraction]) -> tuple[int, ...]:
    """Returns integer weights proportional to `shares`. The weights are rounded if their sum would exceed 2 ** 30."""
    scale = math.lcm(*(share.denominator for share in shares))
    weights = [int(share * scale) for share in shares]
    total, divisor = sum(weights), math.gcd(*weights)
    if total // divisor <= _MAX_SUM:
        return tuple(weight // divisor for weight in weights)
    return tuple(max(1, weight * (_MAX_SUM - len(weights)) // total) for weight in weights)


def component_seed(seed: int, name: str) -> int:
    """Derives the shuffle seed of a component from the seed of the mixture."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/part/{name}".encode(), digest_size=8).digest(), "big") >> 1


def count_components(weights: Sequence[int], indices: np.ndarray) -> np.ndarray:
    """Counts the examples of each component among the first examples of an epoch.

    Args:
        weights: Integer weights proportional to the shares of the components.
        indices: The numbers of examples, counted from the start of the epoch, int64 [n].

    Returns:
        int64 [num_components, n]. The sum of the components is `indices`.
    """
    if len(weights) == 1:
        return indices[np.newaxis]
    middle, total = len(weights) // 2, sum(weights)
    first = sum(weights[:middle])
    rounds, rest = np.divmod(indices, total)
    of_first = rounds * first + (2 * rest * first + total) // (2 * total)  # rounded to the nearest integer
    return np.concatenate([count_components(weights[:middle], of_first), count_components(weights[middle:], indices - of_first)])


def find_indices(weights: Sequence[int], component: int, numbers: np.ndarray) -> np.ndarray:
    """Converts the indices of a component's examples to indices in the mixture's epoch. Inverts `count_components`.

    Args:
        weights: Integer weights proportional to the shares of the components.
        component: The index of the component.
        numbers: The indices of the component's examples, from 0, int64 [n].
    """
    if len(weights) == 1:
        return numbers
    middle, total = len(weights) // 2, sum(weights)
    is_second = component >= middle
    half_weights = weights[middle:] if is_second else weights[:middle]
    rounds, rest = np.divmod(find_indices(half_weights, component - middle * is_second, numbers), sum(half_weights))
    return rounds * total + -(-((2 * rest + 1) * total + is_second) // (2 * sum(half_weights))) - 1


def epoch_length(weights: Sequence[int], sizes: Sequence[int], stop: str) -> int:
    """Returns the number of examples in an epoch.

    Args:
        weights: Integer weights proportional to the shares of the components.
        sizes: The number of examples of each component.
        stop: The end of an epoch. "first": the epoch ends when the first component has been read once. "all": the epoch
            ends when every component has been read at least once.
    """
    ends = [int(find_indices(weights, component, np.array([size - 1]))[0]) + 1 for component, size in enumerate(sizes)]
    return min(ends) if stop == "first" else max(ends)


@dataclasses.dataclass(frozen=True)
class MixedOrder:
    """Maps the indices of a mixture's epochs to examples of the components.

    The sequence of components is the same in each epoch of the mixture. The examples of each component form an endless
    sequence of shuffled epochs. An epoch of the mixture reads the next `counts` examples from the sequence of each
    component.

    Attributes:
        weights: Integer weights proportional to the shares of the components.
        sizes: The number of examples of each component in its own epoch.
        batch_size: The number of examples in a global batch.
        num_slots: The number of examples in an epoch of the mixture.
    """

    weights: tuple[int, ...]
    sizes: tuple[int, ...]
    batch_size: int
    num_slots: int

    @functools.cached_property
    def counts(self) -> tuple[int, ...]:
        """The number of examples that an epoch of the mixture contains from each component."""
        return tuple(count_components(self.weights, np.array([self.num_slots]))[:, 0].tolist())

    def size(self, step: int) -> int:
        """Returns the number of examples in a batch of an epoch."""
        return min(self.batch_size, self.num_slots - step * self.batch_size)

    def slots(self, step: int, hosts: tuple[int, int]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Returns the examples that a host reads from a batch.

        Args:
            step: The index of the batch in the epoch, from 0.
            hosts: The pair (number of hosts, index of this host).

        Returns:
            For each component, two arrays int64 [n]: the batch slots, and the examples in these slots, as ascending
            indices among the component's examples in the epoch.
        """
        (num_hosts, index), start, size = hosts, step * self.batch_size, self.size(step)
        begins, ends = count_components(self.weights, np.array([start, start + size])).T
        batch_slots = _spread(np.arange(size), step, size, _stride(size))
        slots_and_numbers = []
        for begin, slots in zip(begins, np.split(batch_slots, np.cumsum(ends - begins)[:-1])):
            on_this_host = np.flatnonzero((start + slots) % num_hosts == index)
            slots_and_numbers.append((slots[on_this_host], begin + on_this_host))
        return slots_and_numbers

    def component_indices(self, component: int, epoch: int, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the component's epoch, and the index in it, of each given example in a mixture's epoch."""
        return np.divmod(epoch * self.counts[component] + numbers, self.sizes[component])

    def virtual_shards(self, component: int, component_epoch: int, component_indices: np.ndarray) -> np.ndarray:
        """Returns the virtual shard of each given example of a component. The virtual shard depends on the example's
        index in the mixture's epoch."""
        numbers = (component_epoch * self.sizes[component] + component_indices) % self.counts[component]
        steps = find_indices(self.weights, component, numbers) // self.batch_size
        starts = steps * self.batch_size
        sizes = np.minimum(self.batch_size, self.num_slots - starts)
        begins = count_components(self.weights, starts)
        # examples of earlier components in the batch
        before = (count_components(self.weights, starts + sizes)[:component] - begins[:component]).sum(axis=0)
        strides = np.where(sizes == self.batch_size, _stride(self.batch_size), _stride(self.num_slots % self.batch_size or 1))
        return (starts + _spread(before + numbers - begins[component], steps, sizes, strides)) % NUM_VIRTUAL_SHARDS


def _spread(ranks: np.ndarray, steps: np.ndarray | int, sizes: np.ndarray | int, strides: np.ndarray | int) -> np.ndarray:
    """Assigns the examples of a batch to slots, so that the examples of each component are spread evenly.

    The distance between the slots of consecutive examples is a stride that is coprime to the batch size. If n hosts
    divide the batch, any n consecutive examples are therefore on different hosts. The stride is chosen so that the
    continued fraction of stride / batch size has small terms, like that of the golden ratio. This gives every range of
    slots nearly the same proportions of components as the whole batch. See Niederreiter, Random Number Generation and
    Quasi-Monte Carlo Methods, chapter 5, https://doi.org/10.1137/1.9781611970081.
    """
    return (ranks * strides + steps) % sizes


@functools.lru_cache(16)  # a cache for the whole process
def _stride(size: int) -> int:
    near = round(size * _GOLDEN)
    strides = [entry for entry in range(max(1, near - _NUM_TRIED), min(size, near + _NUM_TRIED) + 1) if math.gcd(entry, size) == 1]
    return min(strides, key=lambda item: (_largest_quotient(size, item), abs(item - near)))


def _largest_quotient(size: int, stride: int) -> int:
    largest = 0
    while stride:
        quotient, rest = divmod(size, stride)
        largest, size, stride = max(largest, quotient), stride, rest
    return largest
