"""What a batch is made of: serialized examples, or the numbers of examples that are held in memory."""

from typing import Any, Protocol

import numpy as np

from tf_input.epochs.order import epoch_key, permuted
from tf_input.epochs.runs import Runs
from tf_input.epochs.selection import Selection
from tf_input.epochs.share import Share
from tf_input.epochs.windows import WindowOrder
from tf_input.storage.record_reader import RecordReader
from tf_input.storage.window_reader import WindowReader

_MIN_RUN_BYTES, _MAX_RUN_BYTES = 8 << 20, 64 << 20


class Inputs(Protocol):
    """What batches are made of, one step after the other, or any of them. As a context manager it lets go of what it holds."""

    def batch(self, epoch: int, step: int) -> tuple[np.ndarray, np.ndarray]:
        """What one batch is made of.

        Args:
            epoch, step: Which batch.

        Returns:
            Serialized examples, bytes as objects [n], or numbers of what is held, int64 [n]; and int64 [n], their rows in the batch
            of all hosts, `PADDING` for those that only fill it up.

        Raises:
            OSError: A record could not be read.
            ValueError: A record is damaged, or all that may be left out are.
        """

    def numbers(self, epoch: int, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Which examples one batch is made of. Nothing is read.

        Args:
            epoch, step: Which batch.

        Returns:
            int64 [n], their numbers in the split, whatever was chosen of it; and their rows, as `batch` has them.
        """

    def __enter__(self) -> "Inputs": ...

    def __exit__(self, *unused: Any) -> None: ...


class HeldInputs:
    """Numbers of examples that are held in memory.

    Args:
        share: This host's part.
        seed: Of the order.
        shuffles: Whether each epoch has a permutation of its own.
        numbers: int64 [n], the numbers in the split of those that are held, ascending.
        selection: Which of them an epoch has; None: each once.
    """

    def __init__(self, share: Share, seed: int, shuffles: bool, numbers: np.ndarray, selection: Selection | None = None) -> None:
        self._share, self._seed, self._shuffles, self._held, self._selection = share, seed, shuffles, numbers, selection

    def __enter__(self) -> "HeldInputs":
        return self

    def __exit__(self, *unused: Any) -> None:
        pass

    def batch(self, epoch: int, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the numbers of a step's examples among those that are held, int64, and the rows of the batch that they fill."""
        numbers, rows = self.numbers(epoch, step)
        return np.searchsorted(self._held, numbers), rows

    def numbers(self, epoch: int, step: int) -> tuple[np.ndarray, np.ndarray]:
        """As `Inputs.numbers`."""
        rows, places = self._share.rows(step)
        places = permuted(epoch_key(self._seed, epoch), places, self._share.num_examples) if self._shuffles else places
        numbers = self._held[places] if self._selection is None else self._selection.of_epoch(epoch)[places]
        return _filled_up(numbers, rows, int(self._held[0])), rows


class RecordInputs:
    """Serialized examples of a split that is read.

    Args:
        share: This host's part.
        seed: Of the order.
        kind: "window", "exact", or None for the order in which records lie in the shards.
        reader: Reads them.
        read_buffer: Bytes that may be held.
        may_be_empty: Whether damaged records may all be left out of a batch.
    """

    def __init__(
        self, share: Share, seed: int, kind: str | None, reader: RecordReader, read_buffer: int, *, may_be_empty: bool = False
    ) -> None:
        self._may_be_empty = may_be_empty
        self._share, self._seed, self._kind, self._reader = share, seed, kind, reader
        self._window_bytes = window_bytes(read_buffer)
        self._windows = WindowReader(reader, self._order_of, share.hosts, read_buffer)
        self._next: tuple[int, int] | None = None

    def __enter__(self) -> "RecordInputs":
        return self

    def __exit__(self, *unused: Any) -> None:
        self._windows.close()
        self._reader.release()

    def batch(self, epoch: int, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Reads the records of a step, bytes as objects, with the rows of the batch that they fill.

        Steps that follow each other are read ahead; any other is read record by record.
        """
        rows, places = self._share.rows(step)
        follows = not step or self._next in (None, (epoch, step))
        if follows and self._kind != "exact":
            found = self._windows.read(epoch, places)
        else:
            found = self._reader.read(self._numbers(epoch, places))
        if padding := len(rows) - len(places):
            found = np.concatenate([found, self._reader.read(np.full(padding, self._reader.first))])
        self._next = epoch, step + 1
        if None not in found.tolist():
            return found, rows
        is_there = np.array([one is not None for one in found])
        if not is_there.any() and not self._may_be_empty:
            # A step without images makes the loss NaN, and one step less than was promised stops other hosts.
            shard, record, offset = self._reader.place(int(self._numbers(epoch, places[:1])[0]))
            message = f"all {len(places)} records of a batch are damaged: {shard}: record {record}, at byte {offset}, ..."
            raise ValueError(message)
        return found[is_there], rows[is_there]

    def numbers(self, epoch: int, step: int) -> tuple[np.ndarray, np.ndarray]:
        """As `Inputs.numbers`."""
        rows, places = self._share.rows(step)
        return _filled_up(self._numbers(epoch, places), rows, self._reader.first), rows

    def _numbers(self, epoch: int, places: np.ndarray) -> np.ndarray:
        """The records at places of an epoch, by their numbers in the split."""
        if self._kind == "exact":
            places, selection = permuted(epoch_key(self._seed, epoch), places, self._share.num_examples), self._reader.selection
            return places if selection is None else selection.of_epoch(epoch)[places]
        return self._windows.numbers(epoch, places)

    def _order_of(self, epoch: int, runs: Runs) -> WindowOrder:
        return WindowOrder(runs, self._window_bytes, None if self._kind is None else epoch_key(self._seed, epoch))


def _filled_up(numbers: np.ndarray, rows: np.ndarray, number: int) -> np.ndarray:
    """With another number in the rows that only fill up a batch, which come last."""
    return np.concatenate([numbers, np.full(len(rows) - len(numbers), number)])


def run_bytes(read_buffer: int) -> int:
    """How long runs are, so that a window has some: from 8 to 64 MB, but where the buffer is too small for four of them."""
    return max(1, min(max(_MIN_RUN_BYTES, min(read_buffer // 16, _MAX_RUN_BYTES)), read_buffer // 4))


def window_bytes(read_buffer: int) -> int:
    """How long windows are, so that the buffer holds two: they end with a run."""
    return max(1, read_buffer // 2 - run_bytes(read_buffer))
