"""Reads the inputs of batches, which are serialized examples or indices of cached examples."""

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
from tf_input.pipeline.packing import Batch, add_keys
from tf_input.storage.record_reader import RecordReader
from tf_input.storage.window_reader import WindowReader

_MIN_RUN_BYTES, _MAX_RUN_BYTES = 8 << 20, 64 << 20


class Inputs(Protocol):
    """An interface for reading the inputs of batches in any order. Instances are context managers."""

    def batch(self, epoch: int, step: int) -> Batch:
        """Reads the inputs of a batch.

        Args:
            epoch, step: The epoch, and the index of the batch in it.

        Raises:
            OSError: A record can't be read.
            ValueError: A record is corrupt, or all records of the batch are corrupt and left out.
        """

    def __enter__(self) -> "Inputs": ...

    def __exit__(self, *unused: Any) -> None: ...


class SplitInputs(Inputs, Protocol):
    """An interface for reading the inputs at arbitrary indices of any epoch of a split."""

    def take(self, epoch: int, indices: np.ndarray, follows: bool) -> np.ndarray:
        """Reads the inputs at the given indices of an epoch. Corrupt records that are skipped are returned as None.

        Args:
            epoch: The epoch of the split.
            indices: The indices in the epoch, int64 [n], in any order.
            follows: Whether the indices continue the previous call, and later calls continue this one. If so, records
                are read ahead.
        """

    def fill(self, count: int) -> np.ndarray:
        """Returns `count` padding examples."""

    def numbers_at(self, epoch: int, indices: np.ndarray) -> np.ndarray:
        """Converts indices of an epoch to indices of examples in the split, int64 [n]. Nothing is read."""

    def numbers(self, epoch: int, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the examples of a batch. Nothing is read.

        Args:
            epoch, step: The epoch, and the index of the batch in it.

        Returns:
            The indices of the examples in the whole split, int64 [n], and their batch slots; see `Share`.
        """


class CachedInputs:
    """Inputs for a split that is cached in memory: indices of cached examples.

    Args:
        share: The part of each batch that this host reads.
        seed: The seed of the order.
        shuffles: Whether each epoch has its own permutation.
        numbers: The indices of the cached examples in the split, ascending, int64 [n].
        selection: The selection of examples for an epoch; None selects each example once.
    """

    def __init__(self, share: Share, seed: int, shuffles: bool, numbers: np.ndarray, selection: Selection | None = None) -> None:
        self._share, self._seed, self._shuffles, self._cached, self._selection = share, seed, shuffles, numbers, selection

    def __enter__(self) -> "CachedInputs":
        return self

    def __exit__(self, *unused: Any) -> None:
        pass

    def batch(self, epoch: int, step: int) -> Batch:
        """Returns the cache indices of the examples in a batch, and their batch slots."""
        numbers, slots = self.numbers(epoch, step)
        return [(np.searchsorted(self._cached, numbers), slots)]

    def take(self, epoch: int, indices: np.ndarray, follows: bool = True) -> np.ndarray:
        """Returns indices of cached examples, int64; see `SplitInputs`."""
        return np.searchsorted(self._cached, self.numbers_at(epoch, indices))

    def fill(self, count: int) -> np.ndarray:
        """Returns `count` padding examples, int64 [count]. Each is 0, the index of the first cached example."""
        return np.zeros(count, np.int64)

    def numbers(self, epoch: int, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the examples of a batch; see `SplitInputs.numbers`."""
        slots, indices = self._share.slots(step)
        return _pad_numbers(self.numbers_at(epoch, indices), slots, int(self._cached[0])), slots

    def numbers_at(self, epoch: int, indices: np.ndarray) -> np.ndarray:
        """Converts indices of an epoch to indices of examples; see `SplitInputs.numbers_at`."""
        indices = permuted(epoch_key(self._seed, epoch), indices, self._share.num_examples) if self._shuffles else indices
        return self._cached[indices] if self._selection is None else self._selection.of_epoch(epoch)[indices]


class RecordInputs:
    """Inputs for a split that is read from files: serialized examples.

    Args:
        share: The part of each batch that this host reads.
        seed: The seed of the order.
        kind: The order of an epoch: "window", "exact", "key" (the order of the reader's selection), or None for the
            order of the shards.
        reader: The reader of the records.
        read_buffer: The memory for records, in bytes.
        may_be_empty: Whether a batch may be empty because all of its records are corrupt. Default: False.
        virtual_shards: A function from an epoch and indices in it to virtual shards. Default: None, as in
            `WindowOrder`.
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
        virtual_shards: Callable[[int, np.ndarray], np.ndarray] | None = None,
    ) -> None:
        self._may_be_empty, self._virtual_shards = may_be_empty, virtual_shards
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
        """Reads the records of a batch as an object array of bytes, together with their batch slots.

        Consecutive batches are read ahead. Other batches are read record by record.
        """
        slots, indices = self._share.slots(step)
        values = self.take(epoch, indices, not step or self._next in (None, (epoch, step)))
        self._next = epoch, step + 1
        records_and_slots = _without_corrupt(np.concatenate([values, self.fill(len(slots) - len(indices))]), slots)
        if not len(records_and_slots[1]) and not self._may_be_empty:
            # An empty batch makes the loss NaN, and a missing step would stop other hosts.
            shard, record, offset = self._reader.locate(int(self.numbers_at(epoch, indices[:1])[0]))
            first = f"{shard}: record {record}, at byte {offset}"
            message = f"all {len(indices)} records of a batch are corrupt, the first in {first}"
            raise ValueError(message)
        return [records_and_slots]

    def take(self, epoch: int, indices: np.ndarray, follows: bool) -> np.ndarray:
        """Returns records as an object array of bytes. Consecutive records are read in long chunks."""
        if follows and self._kind not in ("exact", "key"):
            records = self._windows.read(epoch, indices)
        else:
            records = self._reader.read(self.numbers_at(epoch, indices))
        keys = self._reader.keys
        return records if keys is None else add_keys(records, keys[self.numbers_at(epoch, indices)])

    def fill(self, count: int) -> np.ndarray:
        """Returns copies of the first record."""
        if not count:
            return np.empty(0, object)
        numbers, keys = np.full(count, self._reader.first), self._reader.keys
        return self._reader.read(numbers) if keys is None else add_keys(self._reader.read(numbers), keys[numbers])

    def numbers(self, epoch: int, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the examples of a batch; see `SplitInputs.numbers`."""
        slots, indices = self._share.slots(step)
        return _pad_numbers(self.numbers_at(epoch, indices), slots, self._reader.first), slots

    def numbers_at(self, epoch: int, indices: np.ndarray) -> np.ndarray:
        """Converts indices of an epoch to indices of examples; see `SplitInputs.numbers_at`."""
        if self._kind == "key":
            return self._reader.selection.of_epoch(epoch)[indices]
        if self._kind == "exact":
            indices, selection = permuted(epoch_key(self._seed, epoch), indices, self._share.num_examples), self._reader.selection
            return indices if selection is None else selection.of_epoch(epoch)[indices]
        return self._windows.numbers(epoch, indices)

    def _order_of(self, epoch: int, runs: Runs) -> WindowOrder:
        key = None if self._kind is None else epoch_key(self._seed, epoch)
        virtual_shards = self._virtual_shards and functools.partial(self._virtual_shards, epoch)
        return WindowOrder(runs, self._window_bytes, key, virtual_shards)


class MixedInputs:
    """Inputs for the batches of a mixture.

    Args:
        order: The order of the mixture, which defines the examples of each component in each batch.
        hosts: The pair (number of hosts, index of this host).
        make_parts: Functions that create the inputs of each component.
    """

    def __init__(self, order: MixedOrder, hosts: tuple[int, int], make_parts: Sequence[Callable[[], SplitInputs]]) -> None:
        self._order, self._hosts = order, hosts
        self._components: list[SplitInputs] = []
        with contextlib.ExitStack() as opened:
            for make in make_parts:
                self._components.append(opened.enter_context(make()))
            opened.pop_all()  # all components are open, and `__exit__` closes them
        self._next: tuple[int, int] | None = None

    def __enter__(self) -> "MixedInputs":
        return self

    def __exit__(self, *unused: Any) -> None:
        for part in self._components:
            part.__exit__()

    def batch(self, epoch: int, step: int) -> Batch:
        """Returns the inputs of each component, which may be empty. The first component also provides the padding."""
        follows, self._next = not step or self._next in (None, (epoch, step)), (epoch, step + 1)
        wanted = self._order.slots(step, self._hosts)
        padding = -(-self._order.size(step) // self._hosts[0]) - sum(len(slots) for slots, _ in wanted)
        batches = []
        for component, (inputs, (slots, numbers)) in enumerate(zip(self._components, wanted)):
            component_epochs, indices = self._order.component_indices(component, epoch, numbers)
            taken = [
                inputs.take(component_epoch, indices[component_epochs == component_epoch], follows)
                for component_epoch in np.unique(component_epochs).tolist()
            ]
            values = np.concatenate([*taken, inputs.fill(padding)])
            batches.append(_without_corrupt(values, np.concatenate([slots, np.full(padding, PADDING)])))
            padding = 0
        if not any(len(slots) for _, slots in batches):
            num_records = sum(len(slots) for slots, _ in wanted)
            raise ValueError(
                f"all {num_records} records of a batch are corrupt, in all components. `skipped` of their datasets "
                "names them."
            )
        return batches

    def numbers(self, epoch: int, step: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Returns the examples of a batch for each component; see `SplitInputs.numbers`."""
        numbers_and_slots = []
        for component, (inputs, (slots, numbers)) in enumerate(zip(self._components, self._order.slots(step, self._hosts))):
            component_epochs, indices = self._order.component_indices(component, epoch, numbers)
            taken = [
                inputs.numbers_at(component_epoch, indices[component_epochs == component_epoch])
                for component_epoch in np.unique(component_epochs).tolist()
            ]
            numbers_and_slots.append((np.concatenate([np.zeros(0, np.int64), *taken]), slots))
        return numbers_and_slots


def _without_corrupt(values: np.ndarray, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if values.dtype != object:
        return values, slots
    is_there = [value is not None for value in values.tolist()]  # identity is faster than comparison
    if all(is_there):
        return values, slots
    return values[is_there], slots[is_there]


def _pad_numbers(numbers: np.ndarray, slots: np.ndarray, number: int) -> np.ndarray:
    """Appends `number` for each padding slot, so that there is one number per slot."""
    return np.concatenate([numbers, np.full(len(slots) - len(numbers), number)])


def run_bytes(read_buffer: int) -> int:
    """Returns the size of chunks in bytes: 8 to 64 MB, but at most a quarter of the read buffer."""
    return max(1, min(max(_MIN_RUN_BYTES, min(read_buffer // 16, _MAX_RUN_BYTES)), read_buffer // 4))


def window_bytes(read_buffer: int) -> int:
    """Returns the size of windows in bytes. Two windows, rounded up to whole chunks, fit into the read buffer."""
    return max(1, read_buffer // 2 - run_bytes(read_buffer))
