"""What a batch is made of: serialized examples, or the numbers of examples that are held in memory."""

import contextlib
import functools
from typing import Any, Callable, Protocol, Sequence

import numpy as np

from tf_input.epochs.mixed_order import MixedOrder
from tf_input.epochs.order import epoch_key, permuted
from tf_input.epochs.runs import Runs
from tf_input.epochs.selection import Selection
from tf_input.epochs.share import PADDING, Share
from tf_input.epochs.windows import WindowOrder
from tf_input.storage.record_reader import RecordReader
from tf_input.storage.window_reader import WindowReader

_MIN_RUN_BYTES, _MAX_RUN_BYTES = 8 << 20, 64 << 20


# What one batch is made of, part by part: serialized examples, bytes as objects [n], or numbers of what is held, int64 [n]; and int64 [n],
# their rows in the batch of all hosts, `PADDING` for those that only fill it up.
Batch = list[tuple[np.ndarray, np.ndarray]]


class Inputs(Protocol):
    """What batches are made of, one step after the other, or any of them. As a context manager it lets go of what it holds."""

    def batch(self, epoch: int, step: int) -> Batch:
        """Reads what one batch is made of.

        Args:
            epoch, step: The epoch, and the batch of it.

        Raises:
            OSError: A record could not be read.
            ValueError: A record is damaged, or all that may be left out are.
        """

    def __enter__(self) -> "Inputs": ...

    def __exit__(self, *unused: Any) -> None: ...


class SplitInputs(Inputs, Protocol):
    """The inputs of one split, at any places of its epochs."""

    def take(self, epoch: int, places: np.ndarray, follows: bool) -> np.ndarray:
        """Reads what is at some places of an epoch, int64 [n]; None for what is damaged, if that is left out.

        Args:
            epoch: The epoch of the split.
            places: The places in the epoch, int64 [n], ascending or not.
            follows: Whether they come after those that were taken before, and others after them: what will be needed is read ahead.
        """

    def fill(self, count: int) -> np.ndarray:
        """As many of any, to fill up a batch."""

    def numbers_at(self, epoch: int, places: np.ndarray) -> np.ndarray:
        """The examples at some places of an epoch, int64 [n], by their numbers in the split. Nothing is read."""

    def numbers(self, epoch: int, step: int) -> tuple[np.ndarray, np.ndarray]:
        """The numbers of the examples that one batch is made of. Nothing is read.

        Args:
            epoch, step: The epoch, and the batch of it.

        Returns:
            The numbers of the examples in the split, int64 [n], whatever was chosen of it; and their rows, as `batch` has them.
        """


class HeldInputs:
    """Numbers of examples that are held in memory.

    Args:
        share: The part of each batch that this host reads.
        seed: The seed of the order.
        shuffles: Whether each epoch has a permutation of its own.
        numbers: The numbers in the split of the examples that are held, ascending, int64 [n].
        selection: The selection of the examples that an epoch has; None: each once.
    """

    def __init__(self, share: Share, seed: int, shuffles: bool, numbers: np.ndarray, selection: Selection | None = None) -> None:
        self._share, self._seed, self._shuffles, self._held, self._selection = share, seed, shuffles, numbers, selection

    def __enter__(self) -> "HeldInputs":
        return self

    def __exit__(self, *unused: Any) -> None:
        pass

    def batch(self, epoch: int, step: int) -> Batch:
        """The places of a step's examples among those that are held, and the rows of the batch that they fill."""
        numbers, rows = self.numbers(epoch, step)
        return [(np.searchsorted(self._held, numbers), rows)]

    def take(self, epoch: int, places: np.ndarray, follows: bool = True) -> np.ndarray:
        """Places among the examples that are held, int64; see `SplitInputs`."""
        return np.searchsorted(self._held, self.numbers_at(epoch, places))

    def fill(self, count: int) -> np.ndarray:
        """Zeros, int64: the place of the first example that is held."""
        return np.zeros(count, np.int64)

    def numbers(self, epoch: int, step: int) -> tuple[np.ndarray, np.ndarray]:
        """The numbers of the examples that one batch is made of, and their rows, as `SplitInputs.numbers` gives them."""
        rows, places = self._share.rows(step)
        return _filled_up(self.numbers_at(epoch, places), rows, int(self._held[0])), rows

    def numbers_at(self, epoch: int, places: np.ndarray) -> np.ndarray:
        """The numbers of the examples at places of an epoch, as `SplitInputs.numbers_at` gives them."""
        places = permuted(epoch_key(self._seed, epoch), places, self._share.num_examples) if self._shuffles else places
        return self._held[places] if self._selection is None else self._selection.of_epoch(epoch)[places]


class RecordInputs:
    """Serialized examples of a split that is read.

    Args:
        share: The part of each batch that this host reads.
        seed: The seed of the order.
        kind: The order of an epoch: "window", "exact", "key" (that of the reader's selection), or None for the order in which records lie in the shards.
        reader: The reader of the records.
        read_buffer: The number of bytes that may be held.
        may_be_empty: Whether damaged records may all be left out of a batch.
        lanes: A function from an epoch and places of it to their lanes; None: see `WindowOrder`.
    """

    def __init__(
        self,
        share: Share,
        seed: int,
        kind: str | None,
        reader: RecordReader,
        read_buffer: int,
        *,
        may_be_empty: bool = False,
        lanes: Callable[[int, np.ndarray], np.ndarray] | None = None,
    ) -> None:
        self._may_be_empty, self._lanes = may_be_empty, lanes
        self._share, self._seed, self._kind, self._reader = share, seed, kind, reader
        self._window_bytes = window_bytes(read_buffer)
        self._windows = WindowReader(reader, self._order_of, share.hosts, read_buffer)
        self._next: tuple[int, int] | None = None
        reader.users.__enter__()

    def __enter__(self) -> "RecordInputs":
        return self

    def __exit__(self, *unused: Any) -> None:
        self._windows.close()
        self._reader.users.__exit__()

    def batch(self, epoch: int, step: int) -> Batch:
        """Reads the records of a step, bytes as objects, with the rows of the batch that they fill.

        Steps that follow each other are read ahead; any other is read record by record.
        """
        rows, places = self._share.rows(step)
        values = self.take(epoch, places, not step or self._next in (None, (epoch, step)))
        self._next = epoch, step + 1
        found = _without_damaged(np.concatenate([values, self.fill(len(rows) - len(places))]), rows)
        if not len(found[1]) and not self._may_be_empty:
            # A step without images makes the loss NaN, and one step less than was promised stops other hosts.
            shard, record, offset = self._reader.place(int(self.numbers_at(epoch, places[:1])[0]))
            message = f"all {len(places)} records of a batch are damaged: {shard}: record {record}, at byte {offset}, ..."
            raise ValueError(message)
        return [found]

    def take(self, epoch: int, places: np.ndarray, follows: bool) -> np.ndarray:
        """Records, bytes as objects; what follows is read in long runs, and else one by one. See `SplitInputs`."""
        if follows and self._kind not in ("exact", "key"):
            return self._windows.read(epoch, places)
        return self._reader.read(self.numbers_at(epoch, places))

    def fill(self, count: int) -> np.ndarray:
        """The first record again and again."""
        return self._reader.read(np.full(count, self._reader.first)) if count else np.empty(0, object)

    def numbers(self, epoch: int, step: int) -> tuple[np.ndarray, np.ndarray]:
        """The numbers of the examples that one batch is made of, and their rows, as `SplitInputs.numbers` gives them."""
        rows, places = self._share.rows(step)
        return _filled_up(self.numbers_at(epoch, places), rows, self._reader.first), rows

    def numbers_at(self, epoch: int, places: np.ndarray) -> np.ndarray:
        """The numbers of the examples at places of an epoch, as `SplitInputs.numbers_at` gives them."""
        if self._kind == "key":
            return self._reader.selection.of_epoch(epoch)[places]
        if self._kind == "exact":
            places, selection = permuted(epoch_key(self._seed, epoch), places, self._share.num_examples), self._reader.selection
            return places if selection is None else selection.of_epoch(epoch)[places]
        return self._windows.numbers(epoch, places)

    def _order_of(self, epoch: int, runs: Runs) -> WindowOrder:
        key = None if self._kind is None else epoch_key(self._seed, epoch)
        lanes = self._lanes and functools.partial(self._lanes, epoch)
        return WindowOrder(runs, self._window_bytes, key, lanes)


class MixedInputs:
    """The inputs that batches of a mix are made of.

    Args:
        order: The order of the mix, which says what examples of what part are where.
        hosts: The (number of hosts, this one's index).
        make_parts: Functions that make the inputs of each part.
    """

    def __init__(self, order: MixedOrder, hosts: tuple[int, int], make_parts: Sequence[Callable[[], SplitInputs]]) -> None:
        self._order, self._hosts = order, hosts
        self._parts: list[SplitInputs] = []
        with contextlib.ExitStack() as opened:
            for make in make_parts:
                self._parts.append(opened.enter_context(make()))
            opened.pop_all()  # all parts are open: `__exit__` closes them
        self._next: tuple[int, int] | None = None

    def __enter__(self) -> "MixedInputs":
        return self

    def __exit__(self, *unused: Any) -> None:
        for part in self._parts:
            part.__exit__()

    def batch(self, epoch: int, step: int) -> Batch:
        """What each part has of a batch, which may be nothing; the first part fills it up."""
        follows, self._next = not step or self._next in (None, (epoch, step)), (epoch, step + 1)
        wanted = self._order.rows(step, self._hosts)
        padding = -(-self._order.size(step) // self._hosts[0]) - sum(len(rows) for rows, _ in wanted)
        found = []
        for part, (inputs, (rows, numbers)) in enumerate(zip(self._parts, wanted)):
            own_epochs, places = self._order.own_places(part, epoch, numbers)
            taken = [inputs.take(own, places[own_epochs == own], follows) for own in np.unique(own_epochs).tolist()]
            values = np.concatenate([*taken, inputs.fill(padding)])
            found.append(_without_damaged(values, np.concatenate([rows, np.full(padding, PADDING)])))
            padding = 0
        if not any(len(rows) for _, rows in found):
            num_records = sum(len(rows) for rows, _ in wanted)
            raise ValueError(f"all {num_records} records of a batch are damaged, of all parts; `skipped` of their data sets names them")
        return found

    def numbers(self, epoch: int, step: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """For each part, the numbers in its split of the examples that one batch is made of, int64 [n], and their rows. Nothing is read."""
        found = []
        for part, (inputs, (rows, numbers)) in enumerate(zip(self._parts, self._order.rows(step, self._hosts))):
            own_epochs, places = self._order.own_places(part, epoch, numbers)
            taken = [inputs.numbers_at(own, places[own_epochs == own]) for own in np.unique(own_epochs).tolist()]
            found.append((np.concatenate([np.zeros(0, np.int64), *taken]), rows))
        return found


def _without_damaged(values: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if values.dtype != object:
        return values, rows
    is_there = [one is not None for one in values.tolist()]  # by what they are: to compare each takes longer
    if all(is_there):
        return values, rows
    return values[is_there], rows[is_there]


def _filled_up(numbers: np.ndarray, rows: np.ndarray, number: int) -> np.ndarray:
    """With another number in the rows that only fill up a batch, which come last."""
    return np.concatenate([numbers, np.full(len(rows) - len(numbers), number)])


def run_bytes(read_buffer: int) -> int:
    """How long runs are, so that a window has some: from 8 to 64 MB, but where the buffer is too small for four of them."""
    return max(1, min(max(_MIN_RUN_BYTES, min(read_buffer // 16, _MAX_RUN_BYTES)), read_buffer // 4))


def window_bytes(read_buffer: int) -> int:
    """How long windows are, so that the buffer holds two: they end with a run."""
    return max(1, read_buffer // 2 - run_bytes(read_buffer))
