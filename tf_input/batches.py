"""What `PreparedDataset.batches` and `as_numpy` return, and those of a mix."""

import dataclasses
import functools
from numbers import Integral
from typing import Any, Callable, Iterator, Mapping, NamedTuple

import tensorflow as tf

from tf_input.epochs.position import Position
from tf_input.forks import check_fork
from tf_input.mapped_batches import note_function
from tf_input.pipeline import ladder
from tf_input.pipeline.mixed_plan import MixedPlan
from tf_input.pipeline.plan import Plan
from tf_input.read_config import ReadConfig

_MAX_PASSES = 1 << 31  # of which the batches can be counted


class Reading(NamedTuple):
    """The data set, the split and the options that batches were made of, which `export_serving` needs: their attribute `reading`.

    Attributes:
        dataset: The data set, a `PreparedDataset`; or a mix of several, a `Mixture`.
        split: The name of the split; None for a mix.
        config: The options with which it is read.
    """

    dataset: Any
    split: str | None
    config: ReadConfig


def read_plan(plan: Plan | MixedPlan, identity: Mapping[str, Any] | None) -> tf.data.Dataset:
    """The batches of a plan.

    Args:
        plan: The plan, which says what records make up each batch.
        identity: The facts that the batches depend on; see `Position`.

    Returns:
        The batches, with the attributes `position`, and `read_passes`: from a number of passes, or None for no end, to their batches.
    """
    position = Position(plan.config.start_epoch, plan.config.start_step, plan.num_batches, identity)
    # Each host reads its part already; nobody is to divide it further, nor to guess from its files how.
    sharding = tf.data.Options()
    sharding.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF

    def read_passes(number: int | None) -> tf.data.Dataset:
        return ladder.read_batches(plan, plan.decode, position, num_passes=number).with_options(sharding)

    data = read_passes(1)
    data.position, data.read_passes = position, read_passes
    return data


def as_batches(data: tf.data.Dataset, name: str, batch_size: int) -> tf.data.Dataset:
    """Returns the same data set, which says what it is; taken along to a process where it can't be read, it says that.

    Args:
        data: The data set, whose elements are batches.
        name: The name of what is read, for its `repr`.
        batch_size: The number of examples in a batch.
    """
    data.__class__ = _batches_type(type(data))  # a data set around it would not have its attributes, such as `position`
    count = tf.get_static_value(data.cardinality())
    unknown = {None: "an unknown number of", tf.data.UNKNOWN_CARDINALITY: "an unknown number of", tf.data.INFINITE_CARDINALITY: "endless"}
    # Now, as nothing can be computed after a fork.
    data.title = f"{name}: {unknown.get(count) or format(count, ',')} {'batch' if count == 1 else 'batches'} of {batch_size}"
    data.as_batches = functools.partial(as_batches, name=name, batch_size=batch_size)
    return data


@functools.cache
def _batches_type(plain: type[tf.data.Dataset]) -> type[tf.data.Dataset]:
    class Batches(plain):
        """The batches of a split, or of a mix; a `tf.data.Dataset`, with all that has.

        Each pass over it is an epoch, or what is left of one, and `len` counts its batches.

        Attributes:
            position: Where the next pass begins, for `BackupAndRestore` and `Backup`; `position.go_to(epoch, step)` says another place.
            reading: The data set, the split and the config that it was made of, for `export_serving`.

        Batches that a tf.data service reads, that `repeat` returns, or of TFRecords that others wrote have no `position`.
        """

        def __iter__(self) -> Iterator[Any]:
            check_fork()
            return super().__iter__()

        def __reduce__(self) -> tuple[Any, ...]:
            """Pickled as the dataset and the options; another process reads the same batches from the same position on."""
            reading, position = getattr(self, "reading", None), getattr(self, "position", None)
            if reading is None or position is None:
                raise TypeError(f"{self.title}: these batches can't be pickled. Call `batches` in the process that reads them")
            return _read_again, (reading, position.next)

        def __repr__(self) -> str:
            return f"<{self.title}, element_spec={self.element_spec}>"

        def map(self, map_func: Callable[..., Any], *arguments: Any, **options: Any) -> tf.data.Dataset:
            """As `tf.data.Dataset.map`; remembered for `export_serving` and `predict`, as a model may be trained on the result."""
            if hasattr(self, "reading"):
                note_function("map", map_func, self)
            return super().map(map_func, *arguments, **options)

        def repeat(self, count: Any = None, name: str | None = None) -> tf.data.Dataset:
            """As `tf.data.Dataset.repeat`; where there is an index, the next epoch is begun with while batches of the last are ahead."""
            number = -1 if count is None else count
            if not hasattr(self, "read_passes") or not isinstance(number, Integral) or not (0 < number < _MAX_PASSES or number == -1):
                return super().repeat(count, name)
            data = self.as_batches(self.read_passes(None if number == -1 else int(number)))
            if hasattr(self, "reading"):
                data.reading = self.reading
            return data

    return Batches


def _read_again(reading: Reading, place: tuple[int, int]) -> tf.data.Dataset:
    """Makes the same batches again, of which the next pass begins at an epoch and step."""
    dataset, split, config = reading
    data = dataset.batches(config) if split is None else dataset.batches(split, config)
    data.position.go_to(*place)
    return data


def as_numpy(read: Callable[[ReadConfig], tf.data.Dataset], config: ReadConfig) -> "NumpyBatches":
    """Batches in NumPy arrays.

    Args:
        read: A function from a config to what `batches` returns.
        config: How it is read: after what is left of an epoch come whole ones.
    """
    if not config.start_step:
        return NumpyBatches(read(config))
    rest = dataclasses.replace(config, start_epoch=config.start_epoch + 1, start_step=0)
    return NumpyBatches(read(config), read(rest))


class NumpyBatches:
    """Batches in NumPy arrays; `as_numpy` of a data set or a mix makes it.

    Attributes:
        reading: The data set, the split and the options, as the attribute of what `batches` returns has them.

    Args:
        first: The batches that `batches` returned.
        rest: The batches from the next epoch on, where `first` is what is left of an epoch; None: `first` has whole epochs.
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
