"""What `PreparedDataset.batches` and `as_numpy` return."""

import functools
from typing import Any, Iterator, NamedTuple

import tensorflow as tf

from tf_input.description import Description
from tf_input.forks import check_fork
from tf_input.read_config import ReadConfig


class Reading(NamedTuple):
    """Of what batches were made, and how: the attribute `reading` of what is fed to a model, for `export_serving`."""

    dataset: Description
    split: str
    config: ReadConfig


def as_batches(data: tf.data.Dataset, name: str, batch_size: int) -> tf.data.Dataset:
    """Returns the same data set, which says what it is; taken along to a process where it can't be read, it says that.

    Args:
        data: Of batches.
        name: Of what, for its `repr`.
        batch_size: Examples in a batch.
    """
    data.__class__ = _batches_type(type(data))  # a data set around it would not have its attributes, such as `position`
    count = tf.get_static_value(data.cardinality())
    batches = "an unknown number of batches" if count is None or count < 0 else f"{count:,} {'batch' if count == 1 else 'batches'}"
    data.title = f"{name}: {batches} of {batch_size}"  # now, as nothing can be computed after a fork
    return data


@functools.cache
def _batches_type(plain: type[tf.data.Dataset]) -> type[tf.data.Dataset]:
    class Batches(plain):
        __doc__ = plain.__doc__

        def __iter__(self) -> Iterator[Any]:
            check_fork()
            return super().__iter__()

        def __repr__(self) -> str:
            return f"<{self.title}, element_spec={self.element_spec}>"

    return Batches


class NumpyBatches:
    """Batches in NumPy arrays; `PreparedDataset.as_numpy` makes it.

    Attributes:
        reading: As what `batches` returns has it.

    Args:
        first: What `batches` returned.
        rest: The same, from the next epoch on, where `first` is what is left of an epoch; None: `first` has whole ones.
    """

    def __init__(self, first: tf.data.Dataset, rest: tf.data.Dataset | None = None) -> None:
        self._first, self._rest = first, rest
        self._begin = None if rest is None else first.position.next
        self.reading = first.reading

    @property
    def _data(self) -> tf.data.Dataset:
        return self._first if self._rest is None or self._first.position.next == self._begin else self._rest

    def __len__(self) -> int:
        """Batches of the next pass: of what is left of an epoch, or of a whole one."""
        return len(self._data)

    def __iter__(self) -> Iterator[Any]:
        """One epoch: once it has come to its end, the next pass is the next one. Any number of threads may share the iterator."""
        return self._data.as_numpy_iterator()

    def __repr__(self) -> str:
        return f"<NumPy arrays of {self._data!r}>"
