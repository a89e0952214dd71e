"""Single batches, as a function of epoch and step; in threads or processes, before they are asked for."""

import concurrent.futures
import contextlib
import multiprocessing
import pickle
import threading
import weakref
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Callable, Iterator, Protocol

import tensorflow as tf

from tf_input.dataset import PreparedDataset
from tf_input.order import epoch_key
from tf_input.read_config import ReadConfig
from tf_input.user_functions import apply_functions

_FUNCTIONS = ("map_example", "map_batch")


class StepReader:
    """A function from (epoch, step) to a batch in NumPy arrays: the one that `PreparedDataset.batches` has there.

    Args:
        dataset: The data set.
        split: One of its splits.
        config: How it is read; with a seed.

    Raises:
        ValueError, OSError: As in `PreparedDataset.batches`.
    """

    def __init__(self, dataset: PreparedDataset, split: str, config: ReadConfig) -> None:
        self.plan = plan = dataset.plan(split, config)
        self._inputs = plan.open_inputs()
        size = plan.share.local_size if config.drop_remainder else None
        batch = tf.TensorSpec([size], tf.int64 if plan.reader is None else tf.string)
        self._outputs = _trace(self._make_outputs, batch, tf.TensorSpec([None], tf.int64), tf.TensorSpec([2], tf.int64))

    def __call__(self, epoch: int, step: int) -> Any:
        """Raises:
        OSError: A record can't be read.
        ValueError: A record is damaged, or all that may be left out; the message names shard, record and offset.
        tf.errors.InvalidArgumentError: What it holds is.
        """
        inputs, rows = self._inputs.batch(epoch, step)
        with tf.device("CPU:0"):
            seed = tf.constant([epoch_key(self.plan.seed, epoch), step], tf.int64)
            outputs = self._outputs(tf.constant(inputs), tf.constant(rows), seed)
        return tf.nest.map_structure(lambda one: one.numpy(), outputs)

    def _make_outputs(self, inputs: tf.Tensor, rows: tf.Tensor, seed: tf.Tensor) -> Any:
        """From records, string [batch], or numbers of what is in memory, int64 [batch].

        As a data set of one element: a `tf.function` is optimised otherwise, and rounds otherwise.
        """
        config = self.plan.config

        def decode(inputs: tf.Tensor, rows: tf.Tensor, seed: tf.Tensor) -> tuple[Any, tf.Tensor, tf.Tensor]:
            return self.plan.decode(inputs, seed if config.augment else None, rows), seed, rows

        data = tf.data.Dataset.from_tensors((inputs, rows, seed)).map(tf.autograph.experimental.do_not_convert(decode))
        return apply_functions(data, config.map_example, config.map_batch).get_single_element()


def _trace(function: Callable[..., Any], *specs: tf.TensorSpec) -> Callable[..., Any]:
    return tf.function(function, specs, autograph=False).get_concrete_function()


class Workers(Protocol):
    """Makes batches somewhere else."""

    def submit(self, epoch: int, step: int) -> concurrent.futures.Future:
        """Asks for a batch."""

    def result(self, future: concurrent.futures.Future) -> Any:
        """Waits for it."""


class ThreadWorkers:
    """So many threads make batches."""

    def __init__(self, reader: StepReader, num_workers: int) -> None:
        self._reader = reader
        self._pool = concurrent.futures.ThreadPoolExecutor(num_workers, "tf_input")
        weakref.finalize(self, self._pool.shutdown, wait=False, cancel_futures=True)

    def submit(self, epoch: int, step: int) -> concurrent.futures.Future:
        return self._pool.submit(self._reader, epoch, step)

    def result(self, future: concurrent.futures.Future) -> Any:
        return future.result()


class ProcessWorkers:
    """So many processes make batches; each opens the data set for itself, and they stay until nobody holds this any more.

    Args:
        dataset, split, config: As `StepReader` has them.
        num_workers: How many.

    Raises:
        ValueError: A user function can't be sent to them.
    """

    def __init__(self, dataset: PreparedDataset, split: str, config: ReadConfig, num_workers: int) -> None:
        _check_functions(config)
        self._dataset = dataset
        # Started, not forked: TensorFlow's threads do not survive a fork, and their locks stay locked.
        self._pool = concurrent.futures.ProcessPoolExecutor(
            num_workers, multiprocessing.get_context("spawn"), _open_in_worker, (dataset, split, config)
        )
        weakref.finalize(self, self._pool.shutdown, wait=False, cancel_futures=True)

    def submit(self, epoch: int, step: int) -> concurrent.futures.Future:
        with _explained():
            return self._pool.submit(_read_in_worker, epoch, step)

    def result(self, future: concurrent.futures.Future) -> Any:
        with _explained():
            batch, skipped = future.result()
        for damaged in skipped:  # so far, by that worker; each is counted once
            self._dataset.skipped.add(damaged)
        return batch


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except BrokenProcessPool as error:
        message = "a worker process ended; a script that starts processes needs `if __name__ == \"__main__\":`"
        raise RuntimeError(message) from error


class Ahead:
    """Batches that are made before they are asked for, as long as they are asked for one after the other.

    Args:
        workers: Make them.
        num_batches: In an epoch.
        size: How many may be made ahead.
    """

    def __init__(self, workers: Workers, num_batches: int, size: int) -> None:
        self._workers = workers
        self._num_batches = num_batches
        self._size = size
        self._next = 0
        self._futures: dict[tuple[int, int], concurrent.futures.Future] = {}
        self._lock = threading.Lock()

    def __call__(self, epoch: int, step: int) -> Any:
        with self._lock:
            ahead = self._size if step in (0, self._next) else 0
            for place in [one for one in self._futures if one[0] != epoch or abs(one[1] - step) > self._size]:
                self._futures.pop(place).cancel()
            for place in range(step, min(step + 1 + ahead, self._num_batches)):
                if (epoch, place) not in self._futures:
                    self._futures[epoch, place] = self._workers.submit(epoch, place)
            future = self._futures.pop((epoch, step))
            self._next = step + 1
        return self._workers.result(future)


_in_worker: dict[str, Any] = {}  # of a worker process: its data set, and who reads it


def _open_in_worker(dataset: PreparedDataset, split: str, config: ReadConfig) -> None:
    tf.config.set_visible_devices([], "GPU")  # which is the trainer's
    _in_worker.update(dataset=dataset, reader=StepReader(dataset, split, config))


def _read_in_worker(epoch: int, step: int) -> tuple[Any, list[Any]]:
    return _in_worker["reader"](epoch, step), list(_in_worker["dataset"].skipped)


def _check_functions(config: ReadConfig) -> None:
    for name in _FUNCTIONS:
        function: Callable | None = getattr(config, name)
        try:
            pickle.dumps(function)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ValueError(
                f"{name}={function!r}: expected a function that can be sent to a process, such as one of a module: {error}"
            ) from None
