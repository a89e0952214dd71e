"""The records of a split that an epoch has: some of them, or some more often than others."""

import functools
import hashlib
from typing import Callable, Sequence

import numpy as np

from tf_input.epochs.runs import Runs
from tf_input.epochs.windows import hashes

_TURNS = 4  # what is drawn here is drawn nowhere else; see `windows`


class Balance:
    """How often each example comes in an epoch, by its class: exact numbers, and for all of a class the same in the long run.

    The examples of a class take turns. Each epoch goes on where the one before ended, so that of a class that is not read as a whole
    other examples come next, and of one that comes two and a half times an epoch each example comes five times in two. Within an
    epoch a class is spread evenly: so what comes again lies as far apart as it can, and any stretch of the epoch has the classes'
    shares.

    Args:
        classes: The class of each example, from 0, int [n].
        num_classes: The number of classes that there may be.
        count: A function from the number of examples that each class has, int64 [num_classes], to how many of it an epoch has; ValueError
            if it can't be so.
        seed: The seed by which the first epoch begins with some examples of a class.
    """

    def __init__(self, classes: np.ndarray, num_classes: int, count: Callable[[np.ndarray], np.ndarray], seed: int) -> None:
        self._arguments = num_classes, count, seed
        self._classes, self._members = classes, np.argsort(classes, kind="stable")
        self._sizes = np.bincount(classes, minlength=num_classes)
        self._counts = count(self._sizes)
        self._firsts = np.cumsum(self._sizes) - self._sizes
        draws = hashes(seed % (1 << 64), _TURNS, np.arange(num_classes))
        self._begins = (draws % np.maximum(self._sizes, 1).astype(np.uint64)).astype(np.int64)
        self.num_examples = int(self._counts.sum())

    def keep(self, is_kept: np.ndarray) -> "Balance":
        """The balance of those of the examples that are kept, bool [n]."""
        return Balance(self._classes[is_kept], *self._arguments)

    def draw(self, epoch: int) -> np.ndarray:
        """The examples of an epoch, int64 [num_examples], in the order in which they are spread."""
        sizes = np.maximum(self._sizes, 1)
        begins = (self._begins + epoch % sizes * (self._counts % sizes)) % sizes
        of_class = np.repeat(np.arange(len(self._counts)), self._counts)
        turns = np.arange(self.num_examples) - np.repeat(np.cumsum(self._counts) - self._counts, self._counts)
        examples = self._members[self._firsts[of_class] + (begins[of_class] + turns) % sizes[of_class]]
        return examples[np.argsort((turns + 0.5) / self._counts[of_class], kind="stable")]


class Selection:
    """Some records of a split.

    Args:
        numbers: The numbers of the records in the split, ascending, int64 [n].
        balance: The balance, which says how often each comes; None: once an epoch.
        order: The positions of the records in the order in which an epoch has them, int64 [n]; None: ascending. Not beside a balance.

    Attributes:
        numbers: The numbers of the records in the split, ascending, int64 [n].
        num_examples: The number of examples that an epoch has, with all that comes again.
    """

    def __init__(self, numbers: np.ndarray, balance: Balance | None = None, order: np.ndarray | None = None) -> None:
        self.numbers, self._balance, self._order = numbers, balance, order
        self.num_examples = len(numbers) if balance is None else balance.num_examples
        self._drawn: tuple[int, np.ndarray] = -1, numbers

    @functools.cached_property
    def digest(self) -> str:
        """What tells it from others: 16 hexadecimal digits."""
        return hashlib.sha256(self.numbers.astype("<i8").tobytes()).hexdigest()[:16]

    def ordered_by(self, values: np.ndarray) -> "Selection":
        """Returns the same records in ascending order of some values, one of each record, [n]."""
        return Selection(self.numbers, None, np.argsort(values, kind="stable"))

    def times(self, epoch: int, counts: Sequence[int]) -> list[np.ndarray]:
        """How often an epoch has each record: int64 [count] of each shard, of `counts` records."""
        times = np.bincount(self.of_epoch(epoch), minlength=sum(counts))
        return np.split(times, np.cumsum(counts)[:-1])

    def keep(self, is_kept: np.ndarray, numbers: np.ndarray | None = None) -> "Selection":
        """The selection of those of these records that are kept, bool [n]; `numbers` are the numbers of all, where they are others now."""
        numbers = self.numbers[is_kept] if numbers is None else numbers[is_kept]
        ranks = None if self._order is None else np.argsort(self._order)[is_kept]
        order = None if ranks is None else np.argsort(ranks, kind="stable")
        return Selection(numbers, self._balance and self._balance.keep(is_kept), order)

    def keep_first(self, counts: Sequence[int], kept: Sequence[int]) -> "Selection":
        """What is left where shards have lost records at their ends, by the numbers of those that are there.

        Args:
            counts, kept: Records of each shard, and of these those that are there, the first so many.
        """
        stops, lost = np.cumsum(counts), np.subtract(counts, kept)
        shards = np.searchsorted(stops, self.numbers, side="right")
        is_kept = self.numbers < (stops - lost)[shards]
        return self.keep(is_kept, self.numbers - (np.cumsum(lost) - lost)[shards])

    def of_epoch(self, epoch: int) -> np.ndarray:
        """The numbers in the split of an epoch's records: int64 [num_examples], what an order then permutes."""
        if self._balance is None:
            return self.numbers if self._order is None else self.numbers[self._order]
        drawn = self._drawn  # one tuple, as several threads may ask
        if drawn[0] != epoch:
            drawn = self._drawn = epoch, self.numbers[self._balance.draw(epoch)]
        return drawn[1]


def cut_selection(numbers: np.ndarray, counts: Sequence[int], num_bytes: Sequence[int], run_bytes: int) -> Runs:
    """Cuts an epoch's records into runs of about equal length.

    Args:
        numbers: The numbers of the records in the split, int64 [n].
        counts, num_bytes: The numbers of records and of bytes of each shard.
        run_bytes: The length that a run should have, in bytes.
    """
    records, sizes = np.asarray(counts, np.int64), np.asarray(num_bytes, np.int64)
    each = sizes // np.maximum(records, 1)
    ends = np.cumsum(each[np.searchsorted(np.cumsum(records), numbers, side="right")])
    num_runs = max(1, round(int(ends[-1]) / run_bytes)) if len(ends) else 0
    edges = np.searchsorted(ends, ends[-1] * np.arange(1, num_runs) / num_runs) if num_runs else []
    bounds = np.unique(np.concatenate([[0], edges, [len(numbers)]])).astype(np.int64)
    lengths = np.diff(np.concatenate([[0], ends])[bounds])
    return Runs(np.diff(bounds), lengths, bounds[:-1])
