"""Selects the records that an epoch contains, such as a subset, or a class-balanced sample with repetitions."""

import functools
import hashlib
from typing import Callable, Sequence

import numpy as np

from tf_input.epochs.runs import Runs
from tf_input.epochs.windows import hashes

_CLASS_TURNS = 4  # the purpose of the hashes in this module; see `windows`


class Balance:
    """Balances classes by resampling. Every epoch contains the requested number of examples of each class, and all
    examples of a class are used equally often.

    The examples of a class are used in turn, and each epoch continues where the previous epoch ended. If an epoch
    contains only some examples of a class, the next epoch contains the next examples. For example, if an example occurs
    2.5 times per epoch on average, it occurs exactly five times in two epochs. The examples of each class are spread
    evenly over the epoch. Therefore, repetitions of an example are far apart, and any range of the epoch has balanced
    classes.

    Args:
        classes: The class of each example, int [n], from 0.
        num_classes: The number of possible classes.
        count: A function that returns the number of examples of each class in an epoch, given the number of existing
            examples of each class, int64 [num_classes]. It may raise ValueError.
        seed: The seed, which determines the first examples of each class in the first epoch.
    """

    def __init__(self, classes: np.ndarray, num_classes: int, count: Callable[[np.ndarray], np.ndarray], seed: int) -> None:
        self._arguments = num_classes, count, seed
        self._classes, self._members = classes, np.argsort(classes, kind="stable")
        self._sizes = np.bincount(classes, minlength=num_classes)
        self._counts = count(self._sizes)
        self._firsts = np.cumsum(self._sizes) - self._sizes
        draws = hashes(seed % (1 << 64), _CLASS_TURNS, np.arange(num_classes))
        self._begins = (draws % np.maximum(self._sizes, 1).astype(np.uint64)).astype(np.int64)
        self.num_examples = int(self._counts.sum())

    def keep(self, is_kept: np.ndarray) -> "Balance":
        """Returns the class balancing of a subset. The mask, bool [n], is True for the examples of the subset."""
        return Balance(self._classes[is_kept], *self._arguments)

    def draw(self, epoch: int) -> np.ndarray:
        """Returns the examples of an epoch, int64 [num_examples], in which the classes are spread evenly."""
        sizes = np.maximum(self._sizes, 1)
        begins = (self._begins + epoch % sizes * (self._counts % sizes)) % sizes
        of_class = np.repeat(np.arange(len(self._counts)), self._counts)
        rotations = np.arange(self.num_examples) - np.repeat(np.cumsum(self._counts) - self._counts, self._counts)
        examples = self._members[self._firsts[of_class] + (begins[of_class] + rotations) % sizes[of_class]]
        return examples[np.argsort((rotations + 0.5) / self._counts[of_class], kind="stable")]


class Selection:
    """The selected records of a split.

    Args:
        numbers: The indices of the records in the split, ascending, int64 [n].
        balance: The class balancing, which determines how often each record occurs. Default: None, once per epoch.
        order: The positions in `numbers` in the order of an epoch, int64 [n]. Default: None, ascending. It can't be
            combined with a balance.

    Attributes:
        numbers: The indices of the records in the split, ascending, int64 [n].
        num_examples: The number of examples in an epoch, including repetitions.
    """

    def __init__(self, numbers: np.ndarray, balance: Balance | None = None, order: np.ndarray | None = None) -> None:
        self.numbers, self._balance, self._order = numbers, balance, order
        self.num_examples = len(numbers) if balance is None else balance.num_examples
        self._drawn: tuple[int, np.ndarray] = -1, numbers

    @functools.cached_property
    def digest(self) -> str:
        """The hash that identifies the selection, 16 hexadecimal digits."""
        return hashlib.sha256(self.numbers.astype("<i8").tobytes()).hexdigest()[:16]

    def ordered_by(self, values: np.ndarray) -> "Selection":
        """Returns a selection of the same records in ascending order of the given values, [n]."""
        return Selection(self.numbers, None, np.argsort(values, kind="stable"))

    def keep(self, is_kept: np.ndarray, numbers: np.ndarray | None = None) -> "Selection":
        """Returns the subset where the mask `is_kept`, bool [n], is True. `numbers` are new indices of all records."""
        numbers = self.numbers[is_kept] if numbers is None else numbers[is_kept]
        ranks = None if self._order is None else np.argsort(self._order)[is_kept]
        order = None if ranks is None else np.argsort(ranks, kind="stable")
        return Selection(numbers, self._balance and self._balance.keep(is_kept), order)

    def keep_first(self, counts: Sequence[int], kept: Sequence[int]) -> "Selection":
        """Returns the selection without the records that are missing from truncated shards.

        Args:
            counts, kept: For each shard, the number of records in the manifest, and the number of remaining records.
        """
        stops, lost = np.cumsum(counts), np.subtract(counts, kept)
        shards = np.searchsorted(stops, self.numbers, side="right")
        is_kept = self.numbers < (stops - lost)[shards]
        return self.keep(is_kept, self.numbers - (np.cumsum(lost) - lost)[shards])

    def of_epoch(self, epoch: int) -> np.ndarray:
        """Returns the records of an epoch before shuffling, as indices in the split, int64 [num_examples]."""
        if self._balance is None:
            return self.numbers if self._order is None else self.numbers[self._order]
        drawn = self._drawn  # a single assignment of a tuple is thread-safe
        if drawn[0] != epoch:
            drawn = self._drawn = epoch, self.numbers[self._balance.draw(epoch)]
        return drawn[1]


def cut_selection(numbers: np.ndarray, counts: Sequence[int], num_bytes: Sequence[int], run_bytes: int) -> Runs:
    """Divides an epoch's records into chunks of about equal size.

    Args:
        numbers: The indices of the records in the split, int64 [n].
        counts, num_bytes: The numbers of records and of bytes of each shard.
        run_bytes: The target size of a chunk, in bytes.
    """
    records, sizes = np.asarray(counts, np.int64), np.asarray(num_bytes, np.int64)
    each = sizes // np.maximum(records, 1)
    ends = np.cumsum(each[np.searchsorted(np.cumsum(records), numbers, side="right")])
    num_runs = max(1, round(int(ends[-1]) / run_bytes)) if len(ends) else 0
    edges = np.searchsorted(ends, ends[-1] * np.arange(1, num_runs) / num_runs) if num_runs else []
    bounds = np.unique(np.concatenate([[0], edges, [len(numbers)]])).astype(np.int64)
    lengths = np.diff(np.concatenate([[0], ends])[bounds])
    return Runs(np.diff(bounds), lengths, bounds[:-1])
