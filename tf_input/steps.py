"""Single batches, as a function of epoch and step: read here, decoded here or in processes, before they are asked for."""

import multiprocessing
import pickle
import threading
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any, Callable

import tensorflow as tf

from tf_input import memory
from tf_input.dataset import PreparedDataset
from tf_input.order import epoch_key
from tf_input.plan import Plan
from tf_input.read_config import ReadConfig
from tf_input.user_functions import apply_functions


class Batches:
    """A function from (epoch, step) to a batch in NumPy arrays: the one that `PreparedDataset.batches` has there.

    Records are read, and splits held in memory, by this process alone; processes that decode are sent what they need of these. Where
    batches are asked for one after the other, those that follow are made meanwhile.

    Args:
        dataset, split, config: What is read, and how; with a seed.
        workers: How many threads, or processes, make batches.
        use_processes: Whether they are processes.
        num_ahead: How many batches may be made before they are asked for.

    Raises:
        ValueError, OSError: As in `PreparedDataset.batches`; or a user function can't be sent to processes.
    """

    def __init__(
        self, dataset: PreparedDataset, split: str, config: ReadConfig, workers: int, use_processes: bool, num_ahead: int
    ) -> None:
        self.plan = dataset.plan(split, config)
        self._inputs, spec = _choose_inputs(self.plan)
        self._num_ahead, self._next = num_ahead, 0
        self._futures: dict[int, Future] = {}  # by their places in the row of all epochs
        self._lock, self._threads = threading.Lock(), ThreadPoolExecutor(workers, "tf_input")
        if use_processes:
            try:
                pickle.dumps(config)
            except (pickle.PicklingError, AttributeError, TypeError) as error:
                expected = "map_example and map_batch that can be sent to a process, such as functions of a module"
                raise ValueError(f"use_multiprocessing=True: expected {expected}: {error}") from None
            # Started, not forked: TensorFlow's threads do not survive a fork, and their locks stay locked.
            spawn, arguments = multiprocessing.get_context("spawn"), (dataset, split, config, spec)
            self._processes = processes = ProcessPoolExecutor(workers, spawn, _open_in_worker, arguments)
            self._decode = lambda *inputs: processes.submit(_decode_in_worker, *inputs).result()
        else:
            self._decode = _make_decode(dataset, split, config, spec)

    def __call__(self, epoch: int, step: int) -> Any:
        """Raises:
        OSError: A record can't be read.
        ValueError: A record is damaged, or all that may be left out; the message names shard, record and offset.
        tf.errors.InvalidArgumentError: What it holds is.
        """
        place = epoch * self.plan.num_batches + step
        with self._lock:
            for other in [one for one in self._futures if abs(one - place) > self._num_ahead]:
                self._futures.pop(other).cancel()
            for other in range(place, place + 1 + self._num_ahead * (place == self._next)):
                if other not in self._futures:
                    self._futures[other] = self._threads.submit(self._make, *divmod(other, self.plan.num_batches))
            future, self._next = self._futures.pop(place), place + 1
        return future.result()

    def _make(self, epoch: int, step: int) -> Any:
        seed = tf.constant([epoch_key(self.plan.config.seed, epoch), step], tf.int64)
        return self._decode(self._inputs(seed), seed)


def _choose_inputs(plan: Plan) -> tuple[Callable[[tf.Tensor], Any], Any]:
    """A function from a batch's seed to what it is decoded from, and the spec of that: records, or what is held of its examples."""
    size = plan.config.batch_size if plan.config.drop_remainder else None
    specs = [tf.TensorSpec([2], tf.int64)]
    numbers = tf.function(lambda seed: plan.order.batch_numbers(seed[0], seed[1], plan.config.batch_size), specs, autograph=False)
    if plan.held is None:
        return lambda seed: tf.constant(plan.reader.read(numbers(seed).numpy()), tf.string), tf.TensorSpec([size], tf.string)
    empty = tf.data.Dataset.from_generator(lambda: iter(()), output_signature=tf.TensorSpec([size], tf.int64))
    return lambda seed: memory.gather(plan.held, numbers(seed)), empty.map(lambda found: memory.gather(plan.held, found)).element_spec


def _make_decode(dataset: PreparedDataset, split: str, config: ReadConfig, spec: Any) -> Callable[[Any, tf.Tensor], Any]:
    """A function from what a batch is decoded from, and its seed, to the batch in NumPy arrays."""
    decoder = dataset.make_decoder(config, split)

    def decode(inputs: Any, seed: tf.Tensor) -> tuple[Any, tf.Tensor]:
        parsed = inputs if isinstance(inputs, dict) else decoder.parse_batch(inputs)
        return decoder.outputs(parsed, seed if config.augment else None), seed

    def make(inputs: Any, seed: tf.Tensor) -> Any:
        # As a data set of one element: a `tf.function` is optimised otherwise, and rounds otherwise.
        data = tf.data.Dataset.from_tensors((inputs, seed)).map(tf.autograph.experimental.do_not_convert(decode))
        return apply_functions(data, config.map_example, config.map_batch).get_single_element()

    traced = tf.function(make, [spec, tf.TensorSpec([2], tf.int64)], autograph=False)

    def call(inputs: Any, seed: tf.Tensor) -> Any:
        with tf.device("CPU:0"):
            return tf.nest.map_structure(lambda one: one.numpy(), traced(inputs, seed))

    return call


_in_worker: dict[str, Callable[..., Any]] = {}  # of a worker process, in which nothing else can keep it


def _open_in_worker(*arguments: Any) -> None:
    tf.config.set_visible_devices([], "GPU")  # which is the trainer's
    _in_worker["decode"] = _make_decode(*arguments)


def _decode_in_worker(*inputs: Any) -> Any:
    return _in_worker["decode"](*inputs)
