"""Builds the input pipeline for prepared datasets."""

from __future__ import annotations

import functools
import itertools
import math
import sys
from typing import Any, Callable, Iterator, Sequence

import numpy as np

from tf_input.cores import num_cores
from tf_input.epochs.order import epoch_key
from tf_input.epochs.iterator_state import IteratorState
from tf_input.epochs.share import Share
from tf_input.lazy_tensorflow import tf
from tf_input.pipeline.decode_errors import PackedErrors, decode_with_errors, find_number
from tf_input.pipeline.divided_batches import sharding_policy, source_name
from tf_input.process import close_iterators_at_exit, keep_freed_memory
from tf_input.pipeline.packing import pack, pack_error, packed_spec, together, unpack
from tf_input.pipeline.plan import MixedPlan, Plan
from tf_input.pipeline.user_functions import allow_state, apply_functions, without_autograph

_NUM_AHEAD = 2  # number of prefetched batches, in addition to the batches that are being decoded


def read_batches(
    plan: Plan | MixedPlan,
    decode_batch: Callable[..., Any],
    iterator_state: IteratorState | None = None,
    prefetch: bool = True,
    num_iterations: int | None = 1,
) -> tf.data.Dataset:
    """Returns the batches of a plan. Each iteration begins at the iterator state.

    All iterations have the same number of batches.

    Args:
        plan: The plan, which defines the records of each batch.
        decode_batch: A function with the arguments of `Plan.decode` that returns a batch.
        iterator_state: The epoch and step at which each iteration begins; see `IteratorState`. Default: None, epoch 0.
        prefetch: Whether batches are prepared ahead. Default: True.
        num_iterations: The number of consecutive iterations, each of which is prefetched during the previous one. None
            is endless. Default: 1.
    """
    # Everything that `generate` references stays in memory until the process ends, so it must not reference `plan`.
    config, share, make_inputs, seed = plan.config, plan.share, plan.make_inputs, plan.seed
    are_cached = [component.cached is not None for component in plan.components]
    count = share.num_batches
    iterator_state = iterator_state or IteratorState(count)
    epochs: dict[int, int] = {}  # key of an epoch -> epoch

    def number_of(note: Sequence[int], component: int, slot: int) -> int:
        return find_number(make_inputs, epochs[note[0]], note[1], component, slot)

    def generate() -> Iterator[np.ndarray]:
        """Yields batches from `pack`, with the key of the epoch and the step as the note of each batch."""
        keep_freed_memory()
        first = iterator_state.start
        with make_inputs() as inputs:
            for position in itertools.count(first) if num_iterations is None else range(first, first + num_iterations * count):
                epoch, step = divmod(position, count)
                try:
                    batch = inputs.batch(epoch, step)
                except (OSError, ValueError) as error:
                    yield pack_error(error)
                    return
                key = epoch_key(seed, epoch)
                epochs[key] = epoch
                yield pack([key, step], batch)

    def decode_packed(packed: tf.Tensor) -> Any:
        note, inputs, slots = unpack(packed, are_cached)
        inputs = [tf.ensure_shape(item, [plan.static_size]) for item in inputs]
        return note, slots, decode_batch(inputs, note, None if plan.has_all_slots else slots)

    if not all(are_cached):
        decode_packed = decode_with_errors(PackedErrors(plan.components, number_of), decode_packed)

    def decode(packed: tf.Tensor) -> Any:
        note, slots, outputs = decode_packed(packed)
        return apply_functions(outputs, note, plan.batch_decoder.join_slots(slots), config)

    close_iterators_at_exit()
    name = source_name(share.hosts)
    at_once = config.read_buffer >> 8  # by default 1 MiB
    data = tf.data.Dataset.from_generator(lambda: together(generate(), at_once), output_signature=packed_spec(are_cached), name=name)
    data = data.flat_map(without_autograph(tf.data.Dataset.from_tensor_slices))  # `unbatch` would also copy single batches
    data = data.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY if num_iterations is None else num_iterations * count))
    num_calls = _num_calls(config.read_buffer, share.local_size * plan.batch_decoder.num_output_bytes)
    # Prefetching is done by additional parallel calls, because a `prefetch` would cost as much per batch as reading
    # twenty tiny records.
    num_ahead = _NUM_AHEAD * prefetch
    batches = data.map(without_autograph(decode), num_parallel_calls=num_calls + num_ahead, deterministic=True)
    # The output size of user functions is known only now, and may be larger.
    num_fewer = _num_calls(config.read_buffer, share.local_size * _bytes_of_one(batches.element_spec))
    if (config.has_functions or config.parse is not None) and num_fewer < num_calls:
        batches = data.map(without_autograph(decode), num_parallel_calls=num_fewer + num_ahead, deterministic=True)
    data = _count_iterations(batches, iterator_state, share, num_iterations)
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False  # more prefetching would exceed the `read_buffer`
    options.experimental_distribute.auto_shard_policy = sharding_policy(share.hosts[0])
    data = data.with_options(options)
    return allow_state(data) if config.calls_each else data


def _num_calls(read_buffer: int, batch_bytes: int) -> int:
    """Returns the number of batches that are decoded in parallel: one per CPU core, limited by the read buffer.

    AUTOTUNE would need time to find a suitable number, and would include CPU cores that this process may not use.
    """
    return max(1, min(num_cores(), read_buffer // max(1, batch_bytes) - _NUM_AHEAD))


def _bytes_of_one(spec: Any) -> int:
    """Returns the size in bytes of one example in a decoded batch. Unknown dimensions count as 1."""
    leaves = [item for item in tf.nest.flatten(spec) if isinstance(item, tf.TensorSpec) and item.shape.rank]
    return sum(leave.dtype.size * math.prod(size or 1 for size in leave.shape[1:]) for leave in leaves)


def _count_iterations(data: tf.data.Dataset, iterator_state: IteratorState, share: Share, num_iterations: int | None) -> tf.data.Dataset:
    """Returns a dataset that updates the iterator state when the second batch of an iteration is requested.

    Call this function after all prefetching, because prefetching requests the second batch early. Python is called only
    once per iteration, because each call takes as long as reading fifty tiny records.

    Args:
        data: The dataset, with consecutive epochs.
        iterator_state: The epoch and step at which each iteration begins.
        share: The part of each batch that this host reads.
        num_iterations: The number of iterations; None is endless.
    """
    count, name = share.num_batches, source_name(share.hosts)
    counting = min(1, count - 1)

    def begin() -> np.int64:
        """Returns the start of the iteration that begins now; -1 if reading must not update the iterator state."""
        return np.int64(-1 if iterator_state.is_counted_by_resume or _is_keras_build() else iterator_state.start)

    def end(first: np.int64, number: np.int64) -> np.int64:
        if first >= 0:
            iterator_state.end(int(first) + int(number) * count)
        return number

    def numbers(first: tf.Tensor, number: tf.Tensor | int) -> tf.data.Dataset:
        """Returns a dataset with one number per batch. Reading the second number updates the iterator state."""
        counts = tf.data.Dataset.from_tensors(tf.cast(number, tf.int64))
        counts = counts.map(without_autograph(lambda number: tf.numpy_function(end, [first, number], tf.int64)))
        return tf.data.Dataset.range(counting).concatenate(counts).concatenate(tf.data.Dataset.range(count - 1 - counting))

    def all_numbers(_: tf.Tensor) -> tf.data.Dataset:
        first = tf.numpy_function(begin, [], tf.int64)
        if num_iterations == 1:
            return numbers(first, 0)
        return tf.data.Dataset.range(num_iterations or tf.int64.max).flat_map(without_autograph(functools.partial(numbers, first)))

    iteration_numbers = tf.data.Dataset.range(1, name=name).flat_map(without_autograph(all_numbers))
    iteration_numbers = iteration_numbers.apply(tf.data.experimental.assert_cardinality(data.cardinality()))
    # Without `synchronous=True`, TensorFlow lets stateless functions read ahead.
    if not counting:  # a single batch counts when it is delivered
        return tf.data.Dataset.zip((data, iteration_numbers)).map(without_autograph(lambda batch, _: batch), synchronous=True)
    # The number comes first. Otherwise, a later `prefetch` would make it random when the second batch is counted.
    return tf.data.Dataset.zip((iteration_numbers, data)).map(without_autograph(lambda _, batch: batch), synchronous=True)


def _is_keras_build() -> bool:
    """Returns whether Keras is reading a batch only to build a model, which must not update the iterator state."""
    for frame in sys._current_frames().values():
        while frame is not None:
            if frame.f_code.co_name.endswith("_symbolic_build"):
                return True
            frame = frame.f_back
    return False
