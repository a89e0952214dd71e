"""Implements `Sequence`, a Keras `PyDataset` of batches."""

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
from tf_input.decoding.batch_decoder import BatchDecoder
from tf_input.dataset import PreparedDataset
from tf_input.dataset import open as open_dataset
from tf_input.epochs.order import epoch_key
from tf_input.epochs.iterator_state import IteratorState
from tf_input.process import check_fork
from tf_input.mixture import Mixture
from tf_input.options import named_options
from tf_input.pipeline import file_pipeline
from tf_input.pipeline.decode_errors import PackedErrors, find_number
from tf_input.pipeline.inputs import Batch
from tf_input.pipeline.packing import pack, take_apart
from tf_input.pipeline.plan import Plan
from tf_input.pipeline.user_functions import allow_state, apply_functions
from tf_input.read_config import ReadConfig
from tf_input.read_options import ReadOptions, make_config


class Sequence(keras.utils.PyDataset):
    """A Keras `PyDataset` that returns the batches of a split by index.

    `train[i]` is batch i of the current epoch, as NumPy arrays. It equals batch i of `flowers.batches` with the same
    options. `flowers.batches` is faster and has more features. Threads may share the object.

    An epoch ends when Keras calls `on_epoch_end` and all batches of the epoch have been read. Therefore, Keras may read
    some batches of the epoch in advance, and `steps_per_epoch` may be smaller than the number of batches. A training
    loop can call `train.iterator_state.go_to(epoch, step)`. After this call, `train[0]` is the batch of the given step,
    and indices after the last batch of the epoch refer to the next epoch.

    A Sequence has three limitations. Keras can't resume training in the middle of an epoch. Batches are not prefetched
    if Keras shuffles their indices, so pass `shuffle=False` to `fit`. If an epoch has only one or two batches, the
    batches that Keras reads before training can count as an epoch.

    Examples:
        ```python
        train = tf_input.Sequence(flowers, "train", batch_size=128, image_size=224, augment=True, seed=0, workers=2)
        model.fit(train, epochs=10, shuffle=False)
        ```

    Args:
        dataset: A dataset, the directory of a dataset, or a `Mixture`.
        split: The name of the split. Default: None, which requires a `Mixture`.
        config: The reading options, as in `PreparedDataset.batches`. Default: None.
        workers: The number of batches that are prepared in parallel. Default: 1.
        use_multiprocessing: Whether workers are processes instead of threads. Use it for user functions in Python. Each
            process decodes with its own TensorFlow on the CPU. Only the main process reads records and caches splits in
            memory. Processes are spawned, not forked: scripts need `if __name__ == "__main__":`, and user functions
            must be in a module. Default: False.
        max_queue_size: The number of batches that are prepared ahead. Default: 10.
        **options: The attributes of `ReadConfig`.

    Attributes:
        iterator_state: The epoch and step of the next iteration, for `BackupAndRestore` and `Checkpoint`.
        reading: The dataset, the split and the options, for `export_serving`.

    Raises:
        ValueError: An option has a wrong value, or a user function can't be sent to worker processes. The constructor
            also raises the errors of `batches`.
    """

    @named_options(ReadConfig)
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
        # Keras gets only one worker. More Keras workers would be forked processes, in which TensorFlow hangs, or
        # threads. With threads on JAX and torch, Keras trains twice with the batches that it has read in advance.
        super().__init__()
        check_fork()
        given, config = config, make_config(config, options)
        how = {"workers": workers, "max_queue_size": max_queue_size}
        for name, value in how.items():
            if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name}={value!r} is invalid. Pass a positive integer.")
        if hasattr(dataset, "batches") and not isinstance(dataset, (PreparedDataset, Mixture)):
            raise ValueError(
                f"dataset={dataset!r} has no index, which a Sequence needs. Pass its batches(...) to `fit`, or "
                "prepare the "
                "files: recordmill prepare --source tfrecord"
            )
        if isinstance(dataset, tf.data.Dataset):
            raise ValueError(
                f"dataset={dataset!r} is a tf.data.Dataset. Pass the opened dataset, as in "
                "Sequence(flowers, 'train', batch_size=128)."
            )
        if not isinstance(dataset, (PreparedDataset, Mixture)):
            dataset = open_dataset(dataset)
        how |= {"use_multiprocessing": use_multiprocessing, **options}
        reader = dataset.split_reader(split)
        config = reader.resolve(config)
        self.reading = Reading(dataset, split, config)
        self._read = _Ahead(dataset, split, config, workers, use_multiprocessing, max_queue_size)
        plan = self._read.plan
        # A copy reads the same batches, even if no seed is given.
        self._remake = functools.partial(type(self), dataset, split, given, **{**how, "seed": plan.seed})
        self.iterator_state = IteratorState(plan.num_batches, reader.fingerprint(config, plan))
        self._was_read = np.zeros(plan.num_batches, bool)

    def __reduce__(self) -> tuple[Any, ...]:
        return self._remake, (), self.epoch

    def __setstate__(self, epoch: int) -> None:
        self.iterator_state.go_to(epoch)

    def __repr__(self) -> str:
        dataset, split, config = self.reading
        of = f"{dataset!r}" if split is None else f"{dataset.manifest.name}, {split}"
        return f"<Sequence of {of}: {len(self):,} batches of {config.batch_size}>"

    def __len__(self) -> int:
        return len(self._was_read)

    def __getitem__(self, index: int) -> Any:
        """Returns a batch as NumPy arrays: `x`, `(x, y)` or `(x, y, weight)`.

        Raises:
            IndexError: The index is out of range.
            RuntimeError: The process was forked after TensorFlow had run.
            ValueError: A record is corrupt; the message names shard, record and offset.
        """
        check_fork()
        try:
            step = range(len(self))[operator.index(index)]
        except IndexError:
            raise IndexError(f"batch {index} does not exist: an epoch has {len(self)} batches") from None
        self._was_read[step] = True
        epoch, first_step = self.iterator_state.next
        return self._read(epoch * len(self) + first_step + step)

    @property
    def epoch(self) -> int:
        """The number of the current epoch, from 0. A batch depends only on the epoch, the seed and the index."""
        return self.iterator_state.next[0]

    def on_epoch_end(self) -> None:
        if self._was_read.all():
            self._was_read[:] = False
            self.iterator_state.go_to(self.epoch + 1)


class _Ahead:
    """A function that returns a batch as NumPy arrays.

    Its argument is the number of the batch, counted from 0 over all epochs.

    If batches are requested in order, the following batches are prefetched. Only the main process reads records and
    caches splits in memory. Worker processes receive records and decode them. Arguments and errors are those of
    `Sequence`.
    """

    def __init__(
        self, dataset: PreparedDataset | Mixture, split: str | None, config: ReadConfig, workers: int, use_processes: bool, num_ahead: int
    ) -> None:
        self.plan = plan = dataset.split_reader(split).plan(config)
        self._inputs, self._num_ahead, self._next = plan.make_inputs(), num_ahead, 0
        weakref.finalize(self, self._inputs.__exit__)
        self._queue: collections.deque[Future] = collections.deque()  # the next batches, in order
        self._lock, self._threads = threading.Lock(), ThreadPoolExecutor(workers, "tf_input")
        self._reader = ThreadPoolExecutor(1, "tf_input")  # one thread, to read long chunks
        specs = [_input_spec(component) for component in plan.components]
        if not use_processes:
            self._decode: Callable[..., Any] = _make_decode(plan.batch_decoder, config, specs)
            return
        try:
            pickle.dumps(config)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            expected = "where, map_example and map_batch must be picklable, such as functions of a module"
            raise ValueError(f"use_multiprocessing=True: {expected}: {error}") from None
        # Spawned, because a forked process has no TensorFlow threads, but inherits their locks.
        processes = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _open_in_worker, (dataset, split, plan.share.has_padding, config, specs))
        self._processes, self._decode = processes, lambda *inputs: processes.submit(_decode_in_worker, *inputs).result()

    def __call__(self, index: int) -> Any:
        with self._lock:
            num_ahead = self._num_ahead if index == self._next else 0
            while self._queue and not num_ahead:
                self._queue.pop().cancel()
            for other in range(index + len(self._queue), index + 1 + num_ahead):
                epoch, step = divmod(other, self.plan.num_batches)
                read = self._reader.submit(self._inputs.batch, epoch, step)
                self._queue.append(self._threads.submit(self._make, epoch, step, read))
            future, self._next = self._queue.popleft(), index + 1
        return future.result()

    def _make(self, epoch: int, step: int, read: Future) -> Any:
        batch, note = read.result(), [epoch_key(self.plan.seed, epoch), step]

        def decode(batch: Batch) -> Any:
            inputs = tuple(component.look_up(tf.constant(values)) for component, (values, _) in zip(self.plan.components, batch))
            return self._decode(inputs, tuple(tf.constant(slots) for _, slots in batch), tf.constant(note, tf.int64))

        with tf.device("CPU:0"):
            try:
                outputs = decode(batch)
            except tf.errors.InvalidArgumentError:
                if all(are_cached := [component.cached is not None for component in self.plan.components]):
                    raise
                outputs = self._errors(epoch, step).decode(
                    [tf.constant(pack(note, batch))], lambda packed: decode(take_apart(packed.numpy(), are_cached)[1])
                )
        return tf.nest.map_structure(lambda item: item.numpy(), outputs)

    def _errors(self, epoch: int, step: int) -> PackedErrors:
        """Returns the `PackedErrors` of a batch, which report or leave out examples that can't be decoded."""
        return PackedErrors(
            self.plan.components,
            lambda _, component, slot: find_number(self.plan.make_inputs, epoch, step, component, slot),
        )


def _input_spec(component: Plan) -> Any:
    """Returns the spec of a batch's inputs, which are records or cached examples."""
    size = component.static_size
    if component.cached is None:
        return tf.TensorSpec([size], tf.string)
    return (
        file_pipeline.nothing(tf.TensorSpec([size], tf.int64))
        .map(tf.autograph.experimental.do_not_convert(component.look_up))
        .element_spec
    )


def _make_decode(decode_batch: BatchDecoder, config: ReadConfig, specs: list[Any]) -> Callable[..., Any]:
    """Returns a function that decodes a batch, given its inputs, batch slots and seed.

    Inputs and batch slots are tuples with one item per component.
    """

    def decode(inputs: Any, slots: Any, seed: tf.Tensor) -> Any:
        outputs = decode_batch(inputs, seed, slots)
        return apply_functions(outputs, seed, decode_batch.join_slots(slots), config)

    def make(inputs: Any, slots: Any, seed: tf.Tensor) -> Any:
        # A dataset of one element, because TensorFlow optimizes a `tf.function` differently, which changes rounding.
        data = tf.data.Dataset.from_tensors((inputs, slots, seed)).map(tf.autograph.experimental.do_not_convert(decode))
        return allow_state(data).get_single_element()

    of_rows = tuple(tf.TensorSpec([None], tf.int64) for _ in specs)
    made = tf.function(make, [tuple(specs), of_rows, tf.TensorSpec([2], tf.int64)], autograph=False)
    # Traced explicitly, because TensorFlow otherwise warns about retracing in a process that creates several sequences.
    traced = functools.cache(made.get_concrete_function)
    return lambda *inputs: traced()(*inputs)


_in_worker: dict[str, Callable[..., Any]] = {}  # the decoder of a worker process, for all of its tasks


def _open_in_worker(
    dataset: PreparedDataset | Mixture, split: str | None, has_padding: bool, config: ReadConfig, specs: list[Any]
) -> None:
    tf.config.set_visible_devices([], "GPU")  # the GPU belongs to the training process
    _in_worker["decode"] = _make_decode(dataset.split_reader(split).batch_decoder(config, has_padding), config, specs)


def _decode_in_worker(*inputs: Any) -> Any:
    return _in_worker["decode"](*inputs)
