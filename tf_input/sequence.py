"""Batches by their numbers, as a Keras `PyDataset`: Sequence."""

import dataclasses
import logging
import operator
import os
import random
import threading
from numbers import Integral
from typing import Any

import keras
import numpy as np

from tf_input import opening
from tf_input.dataset import PreparedDataset, Reading
from tf_input.forks import check_fork
from tf_input.read_config import ReadConfig
from tf_input.steps import Ahead, ProcessWorkers, StepReader, ThreadWorkers

_logger = logging.getLogger("tf_input")


class Sequence(keras.utils.PyDataset):
    """The batches of a split by their numbers, for Keras, or for a loop.

        train = tf_input.Sequence(flowers, "train", batch_size=128, image_size=224, augment=True, seed=0, workers=2)
        model.fit(train, epochs=10, shuffle=False)

    `train[i]` is batch i of the current epoch, in NumPy arrays: the one that `flowers.batches` has there with the same options. An
    epoch has each example exactly once, and `on_epoch_end`, which Keras calls, leads to the next one. A split that
    `ReadConfig.shuffle` does not shuffle, such as `validation`, always has the order of its shards.

    Any number of threads may ask for batches. `batches` does the same without leaving TensorFlow, and is quicker. Give `fit` the
    option `shuffle=False`: otherwise Keras asks for the batches, shuffled as they are, in another order, and none is made ahead.

    Args:
        dataset: A data set, or its directory.
        split: One of its splits.
        workers: How many batches are made at a time, before they are asked for; 1: each when it is asked for.
        use_multiprocessing: Whether `workers` are processes, each with a TensorFlow of its own on the CPU, rather than threads; for
            user functions in Python. They are started anew, not forked: a script needs `if __name__ == "__main__":`, and user
            functions belong into a module.
        max_queue_size: How many batches may be made before they are asked for.
        **options: The attributes of `ReadConfig`, but for `start_step` and `service`.

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
        # Keras is told of one worker. More of its own would be forked processes, which TensorFlow does not survive, or threads whose
        # first batches come twice on JAX and torch.
        super().__init__()
        check_fork()
        config = _checked(workers, max_queue_size, ReadConfig(**options))
        if not isinstance(dataset, PreparedDataset):
            dataset = opening.open(dataset)
        config = dataset.settle(split, config)  # here, as worker processes would find no other hosts
        self._made_of = dataset, split, workers, use_multiprocessing, max_queue_size, config
        self.reading = Reading(dataset, split, config)
        seed = random.SystemRandom().randrange(1 << 63) if config.seed is None else config.seed
        seeded = dataclasses.replace(config, seed=seed)
        self._read = reader = StepReader(dataset, split, seeded)
        self._length = reader.plan.num_batches
        self._has_warned = False
        identity = dataset.identify(split, config, reader.plan)
        self.position = Epochs(config.start_epoch, self._length, identity)
        if use_multiprocessing:
            self._read = Ahead(ProcessWorkers(dataset, split, seeded, workers), self._length, max_queue_size)
        elif workers > 1:
            self._read = Ahead(ThreadWorkers(reader, workers), self._length, max_queue_size)

    def __reduce__(self) -> tuple[Any, ...]:
        dataset, split, workers, use_multiprocessing, max_queue_size, config = self._made_of
        return _remake, (dataset, split, workers, use_multiprocessing, max_queue_size, config, self.position.epoch)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        """A batch: `x`, `(x, y)` or `(x, y, weight)`.

        Raises:
            IndexError: There are fewer.
            RuntimeError: This process was forked after TensorFlow had run.
            ValueError: A record is damaged; the message names shard, record and offset.
        """
        check_fork()
        index = operator.index(index)
        step = index + self._length if index < 0 else index
        if not 0 <= step < self._length:
            raise IndexError(f"batch {index}: an epoch has {self._length}")
        epoch = self.position.read(step)
        if self.position.is_shuffled and not self._has_warned:
            self._has_warned = True
            _logger.warning("Keras shuffles the batches of a Sequence anew; fit(shuffle=False) lets them be made ahead")
        return self._read(epoch, step)

    @property
    def epoch(self) -> int:
        """The current one; on it, the seed and the index depends a batch."""
        return self.position.epoch

    def on_epoch_begin(self) -> None:
        self.position.begin()

    def on_epoch_end(self) -> None:
        self.position.end()


class Epochs:
    """Which epoch is the current one.

    Keras says when one begins and ends, but not always both. It ends one before the first begins, having looked at some batches;
    on JAX and torch it may begin one, look at a batch, and drop it; with `steps_per_epoch` below their number, its epoch ends
    amid one of the data. An epoch here ends when Keras says so and all batches were read. Of a loop, which never says that one
    begins, it ends at its word.

    Attributes:
        num_batches: In an epoch.
        identity: As `Position` has it.
        is_shuffled: Whether Keras reads the epoch's batches not one after the other.
    """

    def __init__(self, epoch: int, num_batches: int, identity: dict[str, Any] | None) -> None:
        self.num_batches = num_batches
        self.identity = identity
        self._lock = threading.Lock()
        self.go_to(epoch)

    @property
    def epoch(self) -> int:
        return self._epoch

    def go_to(self, epoch: int, step: int = 0) -> None:
        """Begins an epoch; ValueError if in the middle of it."""
        if step:
            raise ValueError(f"step={step}: a Sequence begins with whole epochs; `batches` can go on in the middle of one")
        with self._lock:
            self._begin(epoch)
            self._returns_to: int | None = None
            self._has_begun = False

    def read(self, step: int) -> int:
        """Which epoch a batch is read from."""
        with self._lock:
            self._were_read[step] = True
            if self._has_begun and step not in (0, self._last + 1):
                self.is_shuffled = True
            self._last = step
            self._returns_to = None
            return self._epoch

    def begin(self) -> None:
        """If an epoch ended that had not begun, and nothing was read since, it goes on."""
        with self._lock:
            if self._returns_to is not None:
                self._begin(self._returns_to)
            self._returns_to, self._has_begun = None, True

    def end(self) -> None:
        with self._lock:
            if self._has_begun and not self._were_read.all():
                self._has_begun = False
                return
            if not self._has_begun and self._returns_to is None:
                self._returns_to = self._epoch
            self._has_begun = False
            self._begin(self._epoch + 1)

    def _begin(self, epoch: int) -> None:
        self._epoch = epoch
        self._were_read = np.zeros(self.num_batches, bool)
        self._last, self.is_shuffled = -1, False


def _checked(workers: int, max_queue_size: int, config: ReadConfig) -> ReadConfig:
    for name, value in (("workers", workers), ("max_queue_size", max_queue_size)):
        if not isinstance(value, Integral) or value < 1:
            raise ValueError(f"{name}={value!r}: expected an integer above 0")
    if config.start_step:
        raise ValueError(f"start_step={config.start_step}: expected 0; a Sequence has whole epochs")
    if config.service is not None:
        raise ValueError(f"service={config.service!r}: expected None; `batches` can read through a service")
    return config


def _remake(
    dataset: PreparedDataset,
    split: str,
    workers: int,
    use_multiprocessing: bool,
    size: int,
    config: ReadConfig,
    epoch: int,
) -> Sequence:
    options = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    options["start_epoch"] = epoch
    return Sequence(
        dataset, split, workers=workers, use_multiprocessing=use_multiprocessing, max_queue_size=size, **options
    )
