"""Builds the input pipeline for TFRecord files that are read without an index."""

from __future__ import annotations

import functools
from typing import Any, Callable, Sequence

import numpy as np

from tf_input.cores import num_cores
from tf_input.decoding.example_decoder import ExampleDecoder
from tf_input.decoding.faults import find_fault
from tf_input.epochs.share import local_batch_size
from tf_input.lazy_tensorflow import tf
from tf_input.pipeline.decode_errors import DecodeErrors, check_not_empty, decode_with_errors
from tf_input.process import close_iterators_at_exit
from tf_input.pipeline.user_functions import allow_state, apply_functions, without_autograph
from tf_input.read_config import ReadConfig
from tf_input.storage.corrupt_records import SKIP, CorruptRecord, CorruptRecords

_CYCLE_LENGTH = 16  # number of files that are read in parallel
_BLOCK_LENGTH = 32  # consecutive records from a file; switching between files slows down reading tiny records
_SHUFFLE_RECORDS, _SHUFFLE_BYTES = 2048, 128 << 20
# The position of a record is one number: the index of its file, and the index of the record in the lower bits.
_RECORD_BITS = 40
RECORDS_PER_FILE = 1 << _RECORD_BITS


class FileErrors(DecodeErrors):
    """Finds the undecodable records of files. A batch consists of records, their positions, a seed and batch slots.

    Args:
        paths: The paths of the files.
        decoder: The decoder of the records. Unless its `skip_corrupt` is set, the first undecodable record is an error.
        skipped: The collection to which skipped records are added.
    """

    def __init__(self, paths: Sequence[str], decoder: ExampleDecoder, skipped: CorruptRecords) -> None:
        super().__init__()
        self._paths, self._decoder, self._skipped = paths, decoder, skipped

    def filter(self, inputs: Sequence[tf.Tensor], decodes_each: bool) -> Sequence[tf.Tensor]:
        """Returns the inputs of the decodable records; see `DecodeErrors.filter`."""
        records, positions, seed, slots = inputs
        are_good = [
            self.is_good(
                position,
                decodes_each,
                functools.partial(self._find_fault, record, seed, slot),
                functools.partial(self._reject, position),
            )
            for record, position, slot in zip(records.numpy(), positions.numpy().tolist(), slots.numpy().tolist())
        ]
        check_not_empty(sum(are_good))
        indices = np.flatnonzero(are_good)
        return [tf.gather(records, indices), tf.gather(positions, indices), seed, tf.gather(slots, indices)]

    def _find_fault(self, record: bytes, seed: tf.Tensor, slot: int) -> str:
        slots, seed = tf.constant([slot], tf.int64), seed if self._decoder.config.augment else None
        return find_fault(self._decoder, record, lambda records: self._decoder.decode(records, seed, slots))

    def _reject(self, position: int, fault: str) -> None:
        file, record = divmod(position, RECORDS_PER_FILE)
        corrupt = CorruptRecord(self._paths[file], record, None, fault)
        if not self._decoder.config.skip_corrupt:
            raise ValueError(f"{corrupt}; {SKIP}")
        self._skipped.add(corrupt)


def read_files(
    paths: Sequence[str],
    decoder: ExampleDecoder,
    config: ReadConfig,
    split: str,
    shuffle_buffer: int,
    skipped: CorruptRecords,
    compression: str = "",
) -> tf.data.Dataset:
    """Returns batches of the records in files without an index. Errors name the file and the number of the record.

    Args:
        paths: The paths of TFRecord files.
        decoder: The decoder of the records.
        config: The reading options.
        split: The name of the split. By default, only training splits are shuffled.
        shuffle_buffer: The size of the shuffle buffer, in records.
        skipped: The collection to which undecodable records are added, if `skip_corrupt` is set.
        compression: The compression of the files: "", "GZIP" or "ZLIB". Default: "".
    """
    data = read_records(paths, config, split, shuffle_buffer, compression=compression, with_positions=True)

    def decode_records(records: tf.Tensor, positions: tf.Tensor, seed: tf.Tensor, slots: tf.Tensor) -> Any:
        parsed, seed = decoder.parse_batch(records), seed if config.augment else None
        return slots, decoder.outputs(parsed, seed, slots if config.skip_corrupt else None)

    close_iterators_at_exit()
    decode_batch = decode_with_errors(FileErrors(paths, decoder, skipped), decode_records)

    def decode(batch: tuple[tf.Tensor, tf.Tensor], seed: tf.Tensor) -> Any:
        records, positions = batch
        slots, outputs = decode_batch(records, positions, seed, tf.range(tf.size(records, tf.int64)))
        return apply_functions(outputs, seed, slots, config)

    options = tf.data.Options()
    # The seeds come from no file, so the default policy of `tf.distribute` would divide the files first and the batches
    # afterwards, and leave out most records.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return _decode(_batch_with_seeds(data, config), decode, config).with_options(options)


def _batch_with_seeds(data: tf.data.Dataset, config: ReadConfig) -> tf.data.Dataset:
    """Returns batches, each with random numbers for augmentation. The random numbers differ between epochs."""
    data = data.batch(config.batch_size, drop_remainder=config.drop_remainder)
    seeds = tf.data.Dataset.random(config.seed, rerandomize_each_iteration=True).batch(2, drop_remainder=True)
    return tf.data.Dataset.zip(data, seeds)


def read_records(
    paths: Sequence[str],
    config: ReadConfig,
    split: str,
    shuffle_buffer: int,
    *,
    compression: str = "",
    with_positions: bool = False,
) -> tf.data.Dataset:
    """Returns a dataset of the records in files.

    Args:
        paths, config, split, shuffle_buffer: The files and the reading options, as in `read_files`.
        compression: The compression of the files: "", "GZIP" or "ZLIB". Default: "".
        with_positions: Whether to return pairs of a record and its position: the index of the file in `paths`, times
            `RECORDS_PER_FILE`, plus the index of the record in the file. Default: False.
    """
    shuffles = config.order(split) is not None
    data = tf.data.Dataset.from_tensor_slices((paths, RECORDS_PER_FILE * np.arange(len(paths))))
    if shuffles:
        data = data.shuffle(len(paths), config.seed)  # reshuffled in each epoch

    def read(path: tf.Tensor, first: tf.Tensor) -> tf.data.Dataset:
        records = tf.data.TFRecordDataset(path, compression)
        if not with_positions:
            return records
        return tf.data.Dataset.zip(records, tf.data.Dataset.range(first, first + RECORDS_PER_FILE))

    # AUTOTUNE sets the number of reading threads, which does not affect the order.
    data = data.interleave(
        without_autograph(read),
        cycle_length=_CYCLE_LENGTH if shuffles else 1,
        block_length=_BLOCK_LENGTH,
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )
    return data.shuffle(shuffle_buffer, config.seed) if shuffles else data


def shuffle_buffer(num_records: int, num_bytes: int) -> int:
    """Returns the size of the shuffle buffer in records, given the number of records and their total size."""
    return max(1, min(_SHUFFLE_RECORDS, _SHUFFLE_BYTES * num_records // max(1, num_bytes)))


def example_spec(decode: Callable[[tf.Tensor, tf.Tensor | None, tf.Tensor], Any], config: ReadConfig) -> Any:
    """Returns the shapes and dtypes of the batches. Nothing is read.

    Args:
        decode: A function from records, a seed if images are augmented, and batch slots, to a batch.
        config: The reading options.
    """

    def decode_batch(records: tf.Tensor, seed: tf.Tensor) -> Any:
        slots = tf.range(tf.size(records, tf.int64))
        return apply_functions(decode(records, seed if config.augment else None, slots), seed, slots, config)

    shape = [local_batch_size(config.batch_size, (config.hosts or (1, 0))[0]) if config.drop_remainder else None]
    batches = nothing((tf.TensorSpec(shape, tf.string), tf.TensorSpec([2], tf.int64)))
    return _decode(batches, decode_batch, config).element_spec


def nothing(spec: Any) -> tf.data.Dataset:
    """Returns an empty dataset with the given element spec, for determining the output specs of transformations."""
    return tf.data.experimental.from_variant(tf.data.experimental.to_variant(tf.data.Dataset.range(0)), spec)


def _decode(data: tf.data.Dataset, decode: Callable[..., Any], config: ReadConfig) -> tf.data.Dataset:
    """Decodes batches of records. Each batch is parsed with a single call."""
    data = data.map(without_autograph(decode), num_parallel_calls=num_cores(), deterministic=True)
    return allow_state(data) if config.calls_each else data
