"""Batches by their numbers, as a Keras `PyDataset`: Sequence."""

import dataclasses
import functools
import operator
import os
import random
from numbers import Integral
from typing import Any

import keras
import numpy as np

from tf_input import opening
from tf_input.dataset import PreparedDataset, Reading
from tf_input.forks import check_fork
from tf_input.position import Position
from tf_input.read_config import ReadConfig
from tf_input.steps import Batches


class Sequence(keras.utils.PyDataset):
    """The batches of a split by their numbers, for Keras, or for a loop.

        train = tf_input.Sequence(flowers, "train", batch_size=128, image_size=224, augment=True, seed=0, workers=2)
        model.fit(train, epochs=10, shuffle=False)

    `train[i]` is batch i of the current epoch, in NumPy arrays: the one that `flowers.batches` has there with the same options. Any
    number of threads may ask for them. `batches` does the same without leaving TensorFlow, is quicker, and can do more.

    An epoch ends when Keras says so (`on_epoch_end`) and each of its batches was read; until then, Keras may look at some, or train
    with fewer at a time (`steps_per_epoch`). A loop says where it is by `train.position.go_to(epoch, step)`: `train[0]` is then that
    step's, and the next epoch's follow after the last one. What it can't do: begin in the middle of an epoch of Keras; make batches ahead for Keras where that shuffles them anew, as `fit` does without `shuffle=False`; and tell an
    epoch of one or two batches from the look that Keras takes at them before it trains.

    Args:
        dataset: A data set, or its directory.
        split: One of its splits.
        workers: How many batches are made at a time, before they are asked for.
        use_multiprocessing: Whether `workers` are processes that decode, each with a TensorFlow of its own on the CPU, rather than
            threads; for user functions in Python. Records are read, and splits held in memory, by this process alone. Processes are
            started anew, not forked: a script needs `if __name__ == "__main__":`, and user functions belong into a module.
        max_queue_size: How many batches may be made before they are asked for.
        **options: The attributes of `ReadConfig`, but for `start_step` and `service`.

    Attributes:
        position: Where it is read from, for `BackupAndRestore` and `Backup`.

    Raises:
        ValueError: An option has a wrong value, or a user function can't be sent to processes; and as `batches` does.
    """

    def __init__(
        self,
        dataset: PreparedDataset | str | os.PathLike[str],
        split: str,
        *,
        workers: int = 1,
        use_multiprocessing: bool = False,
        max_queue_size: int = 10,
        **options: Any,
    ) -> None:
        # Keras is told of one worker. More of its own would be forked processes, which TensorFlow does not survive, or threads of which
        # it keeps the batches that it looked at, on JAX and torch, and trains with them a second time.
        super().__init__()
        check_fork()
        config = _checked(workers, max_queue_size, ReadConfig(**options))
        if not isinstance(dataset, PreparedDataset):
            dataset = opening.open(dataset)
        self._made_of = functools.partial(
            type(self), dataset, split, workers=workers, use_multiprocessing=use_multiprocessing, max_queue_size=max_queue_size, **options
        )
        config = dataset.settle(split, config)
        self.reading = Reading(dataset, split, config)
        seed = random.SystemRandom().randrange(1 << 63) if config.seed is None else config.seed
        self._read = Batches(
            dataset, split, dataclasses.replace(config, seed=seed), workers, use_multiprocessing, max_queue_size
        )
        plan = self._read.plan
        self.position = Position(config.start_epoch, 0, plan.num_batches, dataset.identify(split, config, plan))
        self._was_read = np.zeros(plan.num_batches, bool)

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(self._made_of, start_epoch=self.epoch), ()

    def __len__(self) -> int:
        return len(self._was_read)

    def __getitem__(self, index: int) -> Any:
        """A batch: `x`, `(x, y)` or `(x, y, weight)`.

        Raises:
            IndexError: There are fewer.
            RuntimeError: This process was forked after TensorFlow had run.
            ValueError: A record is damaged; the message names shard, record and offset.
        """
        check_fork()
        try:
            step = range(len(self))[operator.index(index)]
        except IndexError:
            raise IndexError(f"batch {index}: an epoch has {len(self)}") from None
        self._was_read[step] = True
        epoch, first_step = self.position.next
        return self._read(*divmod(epoch * len(self) + first_step + step, len(self)))

    @property
    def epoch(self) -> int:
        """The current one; on it, the seed and the index depends a batch."""
        return self.position.next[0]

    def on_epoch_end(self) -> None:
        if self._was_read.all():
            self._was_read[:] = False
            self.position.go_to(self.epoch + 1)


def _checked(workers: int, max_queue_size: int, config: ReadConfig) -> ReadConfig:
    for name, value in (("workers", workers), ("max_queue_size", max_queue_size)):
        if not isinstance(value, Integral) or value < 1:
            raise ValueError(f"{name}={value!r}: expected an integer above 0")
    if config.start_step:
        raise ValueError(f"start_step={config.start_step}: expected 0; a Sequence has whole epochs")
    if config.service is not None:
        raise ValueError(f"service={config.service!r}: expected None; `batches` can read through a service")
    return config
