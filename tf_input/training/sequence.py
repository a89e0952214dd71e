"""Batches by their numbers, as a Keras `PyDataset`: Sequence."""

import collections
import functools
import multiprocessing
import operator
import os
import pickle
import threading
import weakref
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from numbers import Integral
from typing import Any, Callable, Unpack

import keras
import numpy as np
import tensorflow as tf

from tf_input.batches import Reading
from tf_input.dataset import PreparedDataset
from tf_input.dataset import open as open_dataset
from tf_input.epochs.order import epoch_key
from tf_input.epochs.position import Position
from tf_input.forks import check_fork
from tf_input.mixture import Mixture
from tf_input.options import named_options
from tf_input.pipeline import ladder
from tf_input.pipeline.plan import Plan
from tf_input.pipeline.user_functions import allow_state, apply_functions
from tf_input.read_config import ReadConfig
from tf_input.read_options import ReadOptions, make_config


class Sequence(keras.utils.PyDataset):
    """The batches of a split by their numbers, for Keras, or for a loop.

        train = tf_input.Sequence(flowers, "train", batch_size=128, image_size=224, augment=True, seed=0, workers=2)
        model.fit(train, epochs=10, shuffle=False)

    `train[i]` is batch i of the current epoch, in NumPy arrays: the one that `flowers.batches` has there with the same options, which
    is quicker, and can do more. Any number of threads may ask for them.

    An epoch ends when Keras says so (`on_epoch_end`) and each of its batches was read; until then, Keras may look at some, or train
    with fewer at a time (`steps_per_epoch`). A loop says where it is by `train.position.go_to(epoch, step)`: `train[0]` is then that
    step's, and the next epoch's follow after the last one. What it can't do: begin in the middle of an epoch of Keras; read and make
    batches ahead where Keras shuffles them anew, as `fit` does without `shuffle=False`; and tell an epoch of one or two batches from
    the look that Keras takes at them before it trains.

    Args:
        dataset: A data set, or its directory; or a `Mixture`.
        split: One of its splits; None of a mixture, which has its own.
        config: As in `PreparedDataset.batches`.
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

    @named_options(ReadConfig, without=("start_step", "service"))
    def __init__(
        self,
        dataset: PreparedDataset | Mixture | str | os.PathLike[str],
        split: str | None = None,
        config: ReadConfig | None = None,
        *,
        workers: int = 1,
        use_multiprocessing: bool = False,
        max_queue_size: int = 10,
        **options: Unpack[ReadOptions],
    ) -> None:
        # Keras is told of one worker. More of its own would be forked processes, which TensorFlow does not survive, or threads of which
        # it keeps the batches that it looked at, on JAX and torch, and trains with them a second time.
        super().__init__()
        check_fork()
        given, config = config, make_config(config, options)
        if config.start_step:
            raise ValueError(f"start_step={config.start_step}: expected 0; `position.go_to` begins in the middle of an epoch")
        if config.service is not None:
            raise ValueError(f"service={config.service!r}: expected None; `batches` can read through a service")
        how = {"workers": workers, "max_queue_size": max_queue_size}
        for name, value in how.items():
            if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name}={value!r}: expected an integer above 0")
        if hasattr(dataset, "batches") and not isinstance(dataset, (PreparedDataset, Mixture)):
            raise ValueError(
                f"dataset={dataset!r}: TFRecords that were not prepared have no index, by which a Sequence reads. Feed `fit` with its "
                "batches(...), or prepare the files: recordmill prepare --source tfrecord"
            )
        if isinstance(dataset, tf.data.Dataset):
            raise ValueError(f"dataset={dataset!r}: expected the dataset that was opened, as in Sequence(flowers, 'train', batch_size=128)")
        if not isinstance(dataset, (PreparedDataset, Mixture)):
            dataset = open_dataset(dataset)
        how |= {"use_multiprocessing": use_multiprocessing, **options}
        self._remake = functools.partial(type(self), dataset, split, given, **how)
        reader = dataset.split_reader(split)
        config = reader.settle(config)
        self.reading = Reading(dataset, split, config)
        self._read = _Ahead(dataset, split, config, workers, use_multiprocessing, max_queue_size)
        plan = self._read.plan
        self.position = Position(config.start_epoch, 0, plan.num_batches, reader.identify(config, plan))
        self._was_read = np.zeros(plan.num_batches, bool)

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(self._remake, start_epoch=self.epoch), ()

    def __repr__(self) -> str:
        dataset, split, config = self.reading
        of = f"{dataset!r}" if split is None else f"{dataset.manifest.name}, {split}"
        return f"<Sequence of {of}: {len(self):,} batches of {config.batch_size}>"

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
        return self._read(epoch * len(self) + first_step + step)

    @property
    def epoch(self) -> int:
        """The current one; on it, the seed and the index depends a batch."""
        return self.position.next[0]

    def on_epoch_end(self) -> None:
        if self._was_read.all():
            self._was_read[:] = False
            self.position.go_to(self.epoch + 1)


class _Ahead:
    """A function from the place of a batch in the row of all epochs to the batch, in NumPy arrays.

    Where batches are asked for one after the other, those that follow are made meanwhile. Records are read, and splits held in memory,
    by this process alone: processes that decode are sent what they need. Arguments and errors are those of `Sequence`.
    """

    def __init__(
        self, dataset: PreparedDataset | Mixture, split: str | None, config: ReadConfig, workers: int, use_processes: bool, num_ahead: int
    ) -> None:
        self.plan = plan = dataset.split_reader(split).plan(config)
        self._inputs, self._num_ahead, self._next = plan.open_inputs(), num_ahead, 0
        weakref.finalize(self, self._inputs.__exit__)
        self._queue: collections.deque[Future] = collections.deque()  # of the next one, and those that follow
        self._lock, self._threads = threading.Lock(), ThreadPoolExecutor(workers, "tf_input")
        self._reader = ThreadPoolExecutor(1, "tf_input")  # as what follows each other is read in long runs
        arguments = dataset, split, config, plan.share.has_padding, [_input_spec(part) for part in plan.parts]
        if not use_processes:
            self._decode: Callable[..., Any] = _make_decode(*arguments)
            return
        try:
            pickle.dumps(config)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            expected = "where, map_example and map_batch that can be sent to a process, such as functions of a module"
            raise ValueError(f"use_multiprocessing=True: expected {expected}: {error}") from None
        # Started, not forked: TensorFlow's threads do not survive a fork, and their locks stay locked.
        processes = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _open_in_worker, arguments)
        self._processes, self._decode = processes, lambda *inputs: processes.submit(_decode_in_worker, *inputs).result()

    def __call__(self, place: int) -> Any:
        with self._lock:
            num_ahead = self._num_ahead if place == self._next else 0
            while self._queue and not num_ahead:
                self._queue.pop().cancel()
            for other in range(place + len(self._queue), place + 1 + num_ahead):
                epoch, step = divmod(other, self.plan.num_batches)
                read = self._reader.submit(self._inputs.batch, epoch, step)
                self._queue.append(self._threads.submit(self._make, epoch, step, read))
            future, self._next = self._queue.popleft(), place + 1
        return future.result()

    def _make(self, epoch: int, step: int, read: Future) -> Any:
        batch = read.result()
        with tf.device("CPU:0"):
            inputs = tuple(part.look_up(tf.constant(values)) for part, (values, _) in zip(self.plan.parts, batch))
            seed = tf.constant([epoch_key(self.plan.seed, epoch), step], tf.int64)
            outputs = self._decode(inputs, tuple(tf.constant(rows) for _, rows in batch), seed)
        return tf.nest.map_structure(lambda one: one.numpy(), outputs)


def _input_spec(part: Plan) -> Any:
    """The spec of what a batch is decoded from: records, or what is held of its examples."""
    size = part.static_size
    if part.held is None:
        return tf.TensorSpec([size], tf.string)
    return ladder.nothing(tf.TensorSpec([size], tf.int64)).map(tf.autograph.experimental.do_not_convert(part.look_up)).element_spec


def _make_decode(
    dataset: PreparedDataset | Mixture, split: str | None, config: ReadConfig, has_padding: bool, specs: list[Any]
) -> Callable[..., Any]:
    """A function from what a batch is decoded from, its rows and its seed, to the batch; inputs and rows of each part."""
    decode_batch = dataset.split_reader(split).batch_decoder(config, has_padding)

    def decode(inputs: Any, rows: Any, seed: tf.Tensor) -> Any:
        outputs = decode_batch(inputs, seed, rows)
        return apply_functions(outputs, seed, decode_batch.join_rows(rows), config)

    def make(inputs: Any, rows: Any, seed: tf.Tensor) -> Any:
        # As a data set of one element: a `tf.function` is optimised otherwise, and rounds otherwise.
        data = tf.data.Dataset.from_tensors((inputs, rows, seed)).map(tf.autograph.experimental.do_not_convert(decode))
        return allow_state(data).get_single_element()

    of_rows = tuple(tf.TensorSpec([None], tf.int64) for _ in specs)
    made = tf.function(make, [tuple(specs), of_rows, tf.TensorSpec([2], tf.int64)], autograph=False)
    # Traced once, for the first batch: of one that is traced as it is called TensorFlow warns in a process that makes a few sequences.
    traced = functools.cache(made.get_concrete_function)
    return lambda *inputs: traced()(*inputs)


_in_worker: dict[str, Callable[..., Any]] = {}  # of a worker process, in which nothing else can keep it


def _open_in_worker(*arguments: Any) -> None:
    tf.config.set_visible_devices([], "GPU")  # which is the trainer's
    _in_worker["decode"] = _make_decode(*arguments)


def _decode_in_worker(*inputs: Any) -> Any:
    return _in_worker["decode"](*inputs)
