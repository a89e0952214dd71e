"""Implements the classes that are returned by the methods `batches` and `as_numpy`."""

from __future__ import annotations

import dataclasses
import functools
from numbers import Integral
from typing import Any, Callable, Iterator, Mapping, NamedTuple

from tf_input.epochs.iterator_state import IteratorState
from tf_input.process import check_fork
from tf_input.lazy_tensorflow import tf
from tf_input.mapped_batches import note_function
from tf_input.pipeline import input_pipeline
from tf_input.pipeline.divided_batches import divided
from tf_input.pipeline.plan import MixedPlan, Plan
from tf_input.read_config import ReadConfig

_MAX_ITERATIONS = 1 << 31  # with more iterations, the number of batches could overflow


class Reading(NamedTuple):
    """The dataset, split and options from which batches were created. `export_serving` reads it from `batches.reading`.

    Attributes:
        dataset: The dataset, a `PreparedDataset` or a `Mixture`.
        split: The name of the split; None for a mixture.
        config: The reading options.
    """

    dataset: Any
    split: str | None
    config: ReadConfig


def read_plan(plan: Plan | MixedPlan, fingerprint: Mapping[str, Any] | None) -> tf.data.Dataset:
    """Returns the batches of a plan.

    Args:
        plan: The plan, which defines the records of each batch.
        fingerprint: The values that determine the batches; see `IteratorState`. None if there is no seed.

    Returns:
        The batches, with the attributes `iterator_state`, `seed` and `read_iterations`. `seed` is the seed of the plan,
        which may be drawn. `read_iterations` is a function from a number of epochs, or None for endless reading, to the
        batches of these epochs.
    """
    iterator_state = IteratorState(plan.num_batches, fingerprint)

    def read_iterations(number: int | None) -> tf.data.Dataset:
        return input_pipeline.read_batches(plan, plan.decode, iterator_state, num_iterations=number)

    data = read_iterations(1)
    data.iterator_state, data.seed, data.read_iterations = iterator_state, plan.seed, read_iterations
    return data


def as_batches(data: tf.data.Dataset, name: str, batch_size: int, hosts: tuple[int, int] | None = None) -> tf.data.Dataset:
    """Converts a `tf.data.Dataset` to a `Batches` object, which has a descriptive `repr` and rejects forked processes.

    Args:
        data: A dataset whose elements are batches.
        name: The name of the source, for `repr`.
        batch_size: The number of examples in a batch.
        hosts: The pair (number of hosts, index of this host) if the batches are divided among hosts; otherwise None.
    """
    data.__class__ = _batches_type(type(data))  # a wrapper dataset would lack attributes such as `iterator_state`
    if hosts is not None and hosts[0] > 1:
        data = divided(data, hosts)
    count = tf.get_static_value(data.cardinality())
    unknown = {None: "unknown", tf.data.UNKNOWN_CARDINALITY: "unknown", tf.data.INFINITE_CARDINALITY: "endless"}
    # Computed now, because TensorFlow can't run after a fork.
    data.title = f"{name}: batches of {batch_size}: {unknown.get(count) or format(count, ',')}"
    data.as_batches = functools.partial(as_batches, name=name, batch_size=batch_size, hosts=hosts)
    return data


@functools.cache
def _batches_type(plain: type[tf.data.Dataset]) -> type[tf.data.Dataset]:
    class Batches(plain):
        """A `tf.data.Dataset` of the batches of a split or mixture.

        Each iteration over the dataset reads one epoch. The length of the dataset is the number of batches in an epoch.

        Attributes:
            iterator_state: The epoch and the step at which the next iteration begins, which `BackupAndRestore` and `Checkpoint`
                save. Loops save it with `iterator_state.state_dict()`. `iterator_state.go_to(epoch, step)` changes it.
            reading: The dataset, the split and the options from which the batches were made, for `export_serving`.

        `iterator_state` does not exist for batches from `repeat`, or from other tools' TFRecords.
        """

        def __iter__(self) -> Iterator[Any]:
            check_fork()
            return super().__iter__()

        def __reduce__(self) -> tuple[Any, ...]:
            """Pickles the dataset, the options, the seed and the position, so that the copy reads the following batches."""
            reading, iterator_state = getattr(self, "reading", None), getattr(self, "iterator_state", None)
            if reading is None or iterator_state is None:
                raise TypeError(f"{self.title}: these batches can't be pickled. Call `batches` in the process that reads them")
            reading = reading._replace(config=dataclasses.replace(reading.config, seed=self.seed))
            return _read_again, (reading, iterator_state.position)

        def __repr__(self) -> str:
            return f"<{self.title}, element_spec={self.element_spec}>"

        def map(self, map_func: Callable[..., Any], *arguments: Any, **options: Any) -> tf.data.Dataset:
            """Applies `tf.data.Dataset.map` and records the function for `export_serving` and `predict`."""
            if hasattr(self, "reading"):
                note_function("map", map_func, self)
            return super().map(map_func, *arguments, **options)

        def repeat(self, count: Any = None, name: str | None = None) -> tf.data.Dataset:
            """Applies `tf.data.Dataset.repeat`. If the dataset has index files, the next epoch is prefetched."""
            number = -1 if count is None else count
            if (
                not hasattr(self, "read_iterations")
                or not isinstance(number, Integral)
                or not (0 < number < _MAX_ITERATIONS or number == -1)
            ):
                return super().repeat(count, name)
            data = self.as_batches(self.read_iterations(None if number == -1 else int(number)))
            if hasattr(self, "reading"):
                data.reading = self.reading
            return data

    return Batches


def _read_again(reading: Reading, epoch_and_step: tuple[int, int]) -> tf.data.Dataset:
    """Recreates the batches when a `Batches` object is unpickled, and sets the epoch and step of the next iteration."""
    dataset, split, config = reading
    data = dataset.batches(config) if split is None else dataset.batches(split, config)
    data.iterator_state.go_to(*epoch_and_step)
    return data


class NumpyBatches:
    """An iterable over batches of NumPy arrays, as returned by `as_numpy`.

    Attributes:
        reading, iterator_state: As the attributes of `batches`.

    Args:
        data: The batches that `batches` returned.
    """

    def __init__(self, data: tf.data.Dataset) -> None:
        self._data, self.reading, self.iterator_state = data, data.reading, data.iterator_state

    def __reduce__(self) -> tuple[Any, ...]:
        return NumpyBatches, (self._data,)

    def __len__(self) -> int:
        """Returns the number of batches in an epoch."""
        return len(self._data)

    def __iter__(self) -> Iterator[Any]:
        """Iterates over the rest of the epoch. The next iteration is the next epoch. Threads may share the iterator."""
        return self.iterator_state.resume(self._data.as_numpy_iterator())

    def __repr__(self) -> str:
        return f"<NumPy arrays of {self._data!r}>"
