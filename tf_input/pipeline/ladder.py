"""The steps from inputs to batches; and file by file, where there is no index."""

import functools
import itertools
import math
import random
import sys
from typing import Any, Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from tf_input.cores import num_cores
from tf_input.epochs.order import epoch_key
from tf_input.epochs.position import Pass, Position
from tf_input.epochs.share import local_batch_size
from tf_input.pipeline.decode_errors import DecodeErrors, decode_with_errors
from tf_input.pipeline.exit import let_go_at_exit
from tf_input.pipeline.malloc import keep_freed_memory
from tf_input.pipeline.mixed_plan import MixedPlan
from tf_input.pipeline.packing import pack, pack_error, packed_spec, together, unpack
from tf_input.pipeline.plan import Plan
from tf_input.pipeline.user_functions import allow_state, apply_functions
from tf_input.read_config import ReadConfig

_NUM_AHEAD = 2  # batches, beside those that are being decoded
_CYCLE_LENGTH = 16  # files that are read at a time
_DEALT_CYCLE_LENGTH = 4
_BLOCK_LENGTH = 32  # records from one before the next has its turn: tiny records feel each change
_SHUFFLE_RECORDS, _SHUFFLE_BYTES = 2048, 128 << 20


def read_batches(
    plan: Plan | MixedPlan, decode_batch: Callable[..., Any], position: Position, prefetch: bool = True, num_passes: int | None = 1
) -> tf.data.Dataset:
    """Returns the batches of a plan. Each pass begins at the position, and all passes have the same number of batches.

    Args:
        plan: The plan, which determines the records of each batch.
        decode_batch: Makes a batch from the arguments of `Plan.decode`: the inputs and rows of each part, and a seed.
        position: The position at which each pass begins. It moves once a pass counts: see `Position`.
        prefetch: Whether batches are made before they are requested.
        num_passes: The number of consecutive passes. The first batches of a pass are made while the last batches of the pass before are
            still unread. None: no end.
    """
    # Everything that the generator mentions is kept until the process ends.
    config, share, make_inputs, seed = plan.config, plan.share, plan.make_inputs, plan.seed
    are_held = [part.held is not None for part in plan.parts]
    count = share.num_batches - config.start_step
    epochs: dict[int, int] = {}  # key of an epoch, as int64 -> the epoch

    def find_number(note: Sequence[int], part: int, row: int) -> int:
        with make_inputs() as inputs:
            found = inputs.numbers(epochs[note[0]], note[1])
        numbers, rows = found if isinstance(found, tuple) else found[part]
        return int(numbers[rows.tolist().index(row)])

    def generate() -> Iterator[np.ndarray]:
        """Each batch with a note: (key, step)."""
        keep_freed_memory()
        current = position.take(share.num_batches)
        with make_inputs() as inputs:
            for number in itertools.count() if num_passes is None else range(num_passes):
                current = position.take(share.num_batches, current) if number else current
                for place in range(current.step, current.step + current.count):
                    epoch, step = current.epoch + place // share.num_batches, place % share.num_batches
                    try:
                        batch = inputs.batch(epoch, step)
                    except (OSError, ValueError) as error:
                        yield pack_error(error)
                        return
                    key = epoch_key(seed, epoch)
                    epochs[key] = epoch
                    yield pack([key, step], batch)

    def decode_packed(packed: tf.Tensor) -> Any:
        note, inputs, rows = unpack(packed, are_held)
        inputs = [tf.ensure_shape(one, [plan.static_size]) for one in inputs]
        return note, rows, decode_batch(inputs, note, None if plan.has_all_rows else rows)

    if not all(are_held):
        decode_packed = decode_with_errors(DecodeErrors(plan.parts, find_number), decode_packed)

    def decode(packed: tf.Tensor) -> Any:
        note, rows, outputs = decode_packed(packed)
        return apply_functions(outputs, note, plan.batch_decoder.join_rows(rows), config)

    let_go_at_exit()
    at_once = config.read_buffer >> 8  # 1 MiB, if nothing else is said, beside what is held
    data = tf.data.Dataset.from_generator(lambda: together(generate(), at_once), output_signature=packed_spec(are_held))
    data = data.flat_map(_plain(tf.data.Dataset.from_tensor_slices))  # `unbatch` would copy what comes alone too
    data = data.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY if num_passes is None else num_passes * count))
    num_calls = _num_calls(config.read_buffer, share.local_size * plan.batch_decoder.num_output_bytes)
    # What is ahead are more calls: to go through a `prefetch` too takes each batch as long as to read twenty tiny records.
    num_ahead = _NUM_AHEAD * prefetch
    batches = data.map(_plain(decode), num_parallel_calls=num_calls + num_ahead, deterministic=True)
    # What functions give is known only now, and may be larger.
    num_fewer = _num_calls(config.read_buffer, share.local_size * _bytes_of_one(batches.element_spec))
    if config.has_functions and num_fewer < num_calls:
        batches = data.map(_plain(decode), num_parallel_calls=num_fewer + num_ahead, deterministic=True)
    data = _count_passes(batches, position, share.num_batches, count, num_passes)
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False  # which would hold more and more, whatever `read_buffer` says
    data = data.with_options(options)
    return data if config.map_example is None else allow_state(data)


def _num_calls(read_buffer: int, batch_bytes: int) -> int:
    """How many batches are made at a time: as many as there are cores, from the first one on, where AUTOTUNE takes a while to find that out
    and counts cores that this process may not use; but no more than the buffer holds beside those that are ahead."""
    return max(1, min(num_cores(), read_buffer // max(1, batch_bytes) - _NUM_AHEAD))


def _bytes_of_one(spec: Any) -> int:
    """What an example of a batch takes in memory, as far as shapes tell."""
    leaves = [one for one in tf.nest.flatten(spec) if isinstance(one, tf.TensorSpec) and one.shape.rank]
    return sum(one.dtype.size * math.prod(size or 1 for size in one.shape[1:]) for one in leaves)


def _count_passes(data: tf.data.Dataset, position: Position, num_batches: int, count: int, num_passes: int | None) -> tf.data.Dataset:
    """Returns the same dataset, which moves the position once a pass counts. It follows everything here that reads ahead.

    A number accompanies each batch, and only the number at which a pass counts is computed by Python: a look at each batch would take
    as long as reading fifty tiny records.

    Args:
        data: The dataset, with consecutive passes.
        position: The position at which each pass begins.
        num_batches: The number of batches in a whole epoch.
        count: The number of batches of a pass.
        num_passes: The number of passes; None: no end.
    """
    counting = min(1, count - 1)

    def begin() -> np.ndarray:
        """The pass that the generator of the same iterator is about to begin; without batches if the pass is to count for nothing."""
        first = position.take(num_batches)
        return np.array(first._replace(count=0) if _is_look_of_keras() else first, np.int64)

    def end(first: np.ndarray, number: np.int64) -> np.int64:
        position.end(Pass(*first.tolist()).after(int(number), num_batches), num_batches)
        return number

    def numbers(first: tf.Tensor, number: tf.Tensor | int) -> tf.data.Dataset:
        """The numbers that accompany a pass, by its number among the passes of an iterator."""
        counts = tf.data.Dataset.from_tensors(tf.cast(number, tf.int64))
        counts = counts.map(_plain(lambda number: tf.numpy_function(end, [first, number], tf.int64)))
        return tf.data.Dataset.range(counting).concatenate(counts).concatenate(tf.data.Dataset.range(count - 1 - counting))

    def all_numbers(_: tf.Tensor) -> tf.data.Dataset:
        first = tf.numpy_function(begin, [], tf.int64)
        if num_passes == 1:
            return numbers(first, 0)
        return tf.data.Dataset.range(num_passes or tf.int64.max).flat_map(_plain(functools.partial(numbers, first)))

    beside = tf.data.Dataset.range(1).flat_map(_plain(all_numbers))
    beside = beside.apply(tf.data.experimental.assert_cardinality(data.cardinality()))
    # TensorFlow would let a function without effects read ahead, unless told otherwise.
    if not counting:  # the only batch of a pass counts once it was delivered
        return tf.data.Dataset.zip((data, beside)).map(_plain(lambda batch, _: batch), synchronous=True)
    # The number comes first: a `prefetch` behind this would else note the second batch in time or not, by chance.
    return tf.data.Dataset.zip((beside, data)).map(_plain(lambda _, batch: batch), synchronous=True)


def _is_look_of_keras() -> bool:
    """Whether Keras is looking at a batch to build a model, and what it puts behind the dataset may read ahead meanwhile."""
    for frame in sys._current_frames().values():
        while frame is not None:
            if frame.f_code.co_name.endswith("_symbolic_build"):
                return True
            frame = frame.f_back
    return False


def read_files(
    paths: Sequence[str],
    decode_batch: Callable[..., Any],
    config: ReadConfig,
    split: str,
    shuffle_buffer: int,
    *,
    compression: str = "",
    dealt: bool = False,
    times: Sequence[np.ndarray] | None = None,
) -> tf.data.Dataset:
    """Batches of the records in files, of which nobody knows where each lies.

    Args:
        paths: The paths of TFRecord files.
        decode_batch: A function that makes a batch of records, and of a seed if images are augmented.
        config: The options with which they are read.
        split: The name of the split: whether it is shuffled may depend on it.
        shuffle_buffer: The number of records that are dealt out anew while they are read, if they are shuffled.
        compression, dealt, times: The compression of the files, whether they are dealt out, and how often records come: as `read_records`
            takes them.
    """
    data = read_records(paths, config, split, shuffle_buffer, compression=compression, dealt=dealt, times=times)
    data = data.batch(config.batch_size, drop_remainder=config.drop_remainder)
    # Numbers for each batch, other ones in each epoch: all that its augmentation depends on.
    seeds = tf.data.Dataset.random(config.seed, rerandomize_each_iteration=True).batch(2, drop_remainder=True)
    return _decode(tf.data.Dataset.zip(data, seeds), decode_batch, config)


def read_records(
    paths: Sequence[str],
    config: ReadConfig,
    split: str,
    shuffle_buffer: int,
    *,
    compression: str = "",
    dealt: bool = False,
    times: Sequence[np.ndarray] | None = None,
) -> tf.data.Dataset:
    """The records in files, one by one.

    Args:
        paths, config, split, shuffle_buffer: The files, and how they are read: as `read_files` takes them.
        compression: The compression of the files: "", "GZIP" or "ZLIB".
        dealt: Whether many readers are dealt the files one by one: each then opens few, and leaves the others to the rest.
        times: The number of times that each record of each file is read; None: once.
    """
    places, shuffles = list(range(len(paths))), config.order(split) is not None
    if shuffles and dealt:
        random.Random(config.seed).shuffle(places)  # here, as a shuffle buffer would draw all that are left at once
    files: Any = [paths[place] for place in places]
    if times is not None:
        files = files, tf.ragged.stack([times[place] for place in places])
    data = tf.data.Dataset.from_tensor_slices(files)
    if shuffles and not dealt:
        data = data.shuffle(len(paths), config.seed)  # anew in each epoch, like the records below

    def read(path: tf.Tensor, times: tf.Tensor | None = None) -> tf.data.Dataset:
        records = tf.data.TFRecordDataset(path, compression)
        if times is None:
            return records
        counted = tf.data.Dataset.zip(records, tf.data.Dataset.from_tensor_slices(times)).filter(lambda _, count: count > 0)
        return counted.flat_map(lambda record, count: tf.data.Dataset.from_tensors(record).repeat(count))

    # AUTOTUNE only sets how many threads read: with any number of them, the order is the same.
    data = data.interleave(
        _plain(read),
        cycle_length=(_DEALT_CYCLE_LENGTH if dealt else _CYCLE_LENGTH) if shuffles else 1,
        block_length=_BLOCK_LENGTH,
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )
    return data.shuffle(shuffle_buffer, config.seed) if shuffles else data


def shuffle_buffer(num_records: int, num_bytes: int) -> int:
    """How many records to hold in memory, of which so many have so many bytes."""
    return max(1, min(_SHUFFLE_RECORDS, _SHUFFLE_BYTES * num_records // max(1, num_bytes)))


def example_spec(decode: Callable[[tf.Tensor, tf.Tensor | None, tf.Tensor], Any], config: ReadConfig) -> Any:
    """The shapes and dtypes of the batches; nothing is read for it.

    Args:
        decode: What becomes of records, of a seed if images are augmented, and of their rows.
        config: The options with which they are read.
    """

    def decode_batch(records: tf.Tensor, seed: tf.Tensor | None) -> Any:
        return decode(records, seed, tf.range(tf.size(records, tf.int64)))

    shape = [local_batch_size(config.batch_size, (config.hosts or (1, 0))[0]) if config.drop_remainder else None]
    return _decode(nothing((tf.TensorSpec(shape, tf.string), tf.TensorSpec([2], tf.int64))), decode_batch, config).element_spec


def nothing(spec: Any) -> tf.data.Dataset:
    """A data set of such elements, for what would become of them: it has none."""
    return tf.data.experimental.from_variant(tf.data.experimental.to_variant(tf.data.Dataset.range(0)), spec)


def _decode(data: tf.data.Dataset, decode_batch: Callable[..., Any], config: ReadConfig) -> tf.data.Dataset:
    """Only after batching, so that it is one call and one parse for a whole batch."""

    def decode(batch: tf.Tensor, seed: tf.Tensor) -> Any:
        outputs = decode_batch(batch, seed if config.augment else None)
        return apply_functions(outputs, seed, tf.range(tf.size(batch, tf.int64)), config)

    data = data.map(_plain(decode), num_parallel_calls=num_cores(), deterministic=True)
    return data if config.map_example is None else allow_state(data)


def _plain(function: Callable) -> Callable:
    """AutoGraph would take longer to look for tensors in conditions, of which there are none, than all else here."""
    return tf.autograph.experimental.do_not_convert(function)
