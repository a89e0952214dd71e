"""Caches the decoded examples of small splits in memory, within one memory budget for all splits of a dataset."""

from __future__ import annotations

import dataclasses
import math
import threading
import weakref
from typing import Any, Callable, Hashable, Iterator, Mapping

import numpy as np

from tf_input.cores import num_cores
from tf_input.decoding.example_decoder import ExampleDecoder
from tf_input.decoding.faults import find_fault
from tf_input.epochs.selection import Selection
from tf_input.epochs.share import Share
from tf_input.lazy_tensorflow import tf
from tf_input.pipeline.inputs import RecordInputs
from tf_input.storage.arenas import release_arenas
from tf_input.storage.record_reader import RecordReader

_CHUNK_BYTES = 4 << 20  # size of decoded chunks that are copied into the cache
# Memory for records while the cache is filled: 1/32 of the decoded size, but at least 16 MiB.
_MIN_READ_BYTES, _READ_PART = 16 << 20, 32
_ANONYMOUS = "cd2c89b7-88b7-44c8-ad83-06c2a9158347"  # TensorFlow frees a resource of this name with its last handle


@dataclasses.dataclass(frozen=True)
class CachedExamples:
    """The decoded examples of a split, cached in memory.

    Attributes:
        values: The values by name, [num_examples, ...], on the CPU; numeric arrays as `Numbers`.
        numbers: The indices of the examples in the split, ascending, int64 [num_examples].
        num_bytes: The approximate size in bytes.
        selection: The selection of examples for an epoch; None selects each example once.
        origin: The object without the selection. This reference keeps it alive, so that `MemoryCache` finds it.
    """

    values: Mapping[str, Any]
    numbers: np.ndarray
    num_bytes: int
    selection: Selection | None = None
    origin: "CachedExamples | None" = None

    @property
    def num_examples(self) -> int:
        """The number of examples in an epoch, not counting corrupt records that were left out."""
        return len(self.numbers) if self.selection is None else self.selection.num_examples

    def select(self, selection: Selection | None) -> "CachedExamples":
        """Returns a copy with another selection. Selected examples that are missing from the cache are left out."""
        if selection is None:
            return self
        is_there = np.isin(selection.numbers, self.numbers)
        result = selection if is_there.all() else selection.keep(is_there)
        return dataclasses.replace(self, selection=result, origin=self)

    def gather(self, indices: tf.Tensor) -> dict[str, Any]:
        """Returns the features of the examples at the given cache indices, as a dictionary of tensors [batch, ...]."""
        return {name: _gather(values, indices) for name, values in self.values.items()}


class MemoryCache:
    """The decoded splits that an opened dataset caches in memory. The budget applies to all splits together.

    The least recently used entries are dropped first. A dropped entry stays in memory as long as batches use it. If the
    entry is requested again during this time, the split is not read again.
    """

    def __init__(self) -> None:
        self._entries: dict[Hashable, CachedExamples] = {}  # the first entry is the least recently used
        self._in_use: weakref.WeakValueDictionary[Hashable, CachedExamples] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()

    def __contains__(self, key: Hashable) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def num_bytes(self) -> int:
        """The approximate size in bytes of all entries."""
        return sum(entry.num_bytes for entry in self._entries.values())

    def get(self, key: Hashable, num_bytes: int, budget: int, load: Callable[[], Any]) -> CachedExamples:
        """Returns the entry for a key, which is loaded if necessary. Concurrent calls load an entry only once.

        Args:
            key: The key of the entry: the split, and the options that affect decoded examples.
            num_bytes: The size of the entry in bytes.
            budget: The maximum size of all entries in bytes. Other entries are dropped before the entry is loaded.
            load: A function that returns the entry.
        """
        with self._lock:
            entry = self._entries.pop(key, None) or self._in_use.get(key)
            while self._entries and num_bytes + self.num_bytes > budget:
                del self._entries[next(iter(self._entries))]
            entry = load() if entry is None else entry
            self._entries[key] = self._in_use[key] = entry
            return entry


def decoded_bytes(decoder: ExampleDecoder, num_examples: int, record_bytes: int) -> int | None:
    """Returns the approximate size of decoded examples in bytes; None if they can't be cached.

    Examples can be cached only if images are read and all images have the same size.

    Args:
        decoder: The decoder of the examples.
        num_examples: The number of examples.
        record_bytes: The size of all records without images and tensors, in bytes.
    """
    num_bytes = decoder.num_decoded_bytes
    return None if num_bytes is None else num_examples * num_bytes + decoder.growth * record_bytes


def load(reader: RecordReader, decoder: ExampleDecoder, num_bytes: int, read_buffer: int) -> CachedExamples:
    """Reads and decodes all examples of a reader, with `ExampleDecoder.decode_stored`.

    Args:
        reader: The reader of the records, without a selection.
        decoder: The decoder of the examples.
        num_bytes: The size of the decoded images, in bytes.
        read_buffer: The memory for records while reading, in bytes.

    Returns:
        The existing examples. Arrays are filled during reading, so that only a few chunks exist twice. Lists and
        strings are concatenated at the end.

    Raises:
        ValueError, OSError: As in `Inputs.batch`.
    """
    read_buffer = min(read_buffer, max(_MIN_READ_BYTES, num_bytes // _READ_PART))
    num_examples = reader.num_examples
    size = max(1, min(num_examples, _CHUNK_BYTES * num_examples // max(1, num_bytes)))
    failures: list[Exception] = []
    indices: list[np.ndarray] = []
    bad: set[int] = set()  # indices of examples that can't be decoded

    def read() -> Iterator[np.ndarray]:
        indices.clear()
        with RecordInputs(share, 0, None, reader, read_buffer, may_be_empty=True) as inputs:
            for step in range(share.num_batches):
                try:
                    ((records, slots),) = inputs.batch(0, step)
                except (OSError, ValueError) as error:  # TensorFlow would raise another error instead
                    failures.append(error)
                    return
                batch_indices = step * size + slots
                is_good = np.array([index not in bad for index in batch_indices.tolist()], bool)
                indices.append(batch_indices[is_good])
                yield records[is_good]

    def find_bad() -> None:
        with RecordInputs(share, 0, None, reader, read_buffer, may_be_empty=True) as inputs:
            for step in range(share.num_batches):
                ((records, slots),) = inputs.batch(0, step)
                for record, index in zip(records, (step * size + slots).tolist()):
                    if fault := find_fault(decoder, record, decode):
                        reader.reject(int(index if reader.selection is None else reader.selection.numbers[index]), fault)
                        bad.add(index)

    def decode(records: tf.Tensor) -> dict[str, Any]:
        return decoder.decode_stored(decoder.parse_batch(records))

    if not num_examples:
        with tf.device("CPU:0"):
            return CachedExamples(decode(tf.zeros([0], tf.string)), np.zeros(0, np.int64), 0)
    share = Share("", num_examples, size, False)
    data = tf.data.Dataset.from_generator(read, output_signature=tf.TensorSpec([None], tf.string))
    data = data.map(tf.autograph.experimental.do_not_convert(decode), num_parallel_calls=num_cores())
    try:
        collected = _collect(data, num_examples)
    except tf.errors.InvalidArgumentError:
        find_bad()
        if not bad:
            raise
        collected = _collect(data, num_examples)
    release_arenas()  # a split that is cached in memory does not need them again
    if failures:
        raise failures[0]
    with tf.device("CPU:0"):
        values = {name: chunks.join() for name, chunks in collected.items()}
    good_indices = np.concatenate(indices)
    return CachedExamples(values, good_indices if reader.selection is None else reader.selection.numbers[good_indices], num_bytes)


class Numbers:
    """Stores the numeric values of all examples in a TensorFlow resource, which is filled chunk by chunk.

    Plain tensors would need more memory, because a tf.data dataset would copy the values for each iterator, and
    TensorFlow would not free the memory of concatenated chunks.
    """

    def __init__(self, num_examples: int, like: tf.Tensor) -> None:
        self._dtype, self._shape, self._count = like.dtype, like.shape[1:], 0
        with tf.device("CPU:0"):
            self._handle = tf.raw_ops.VarHandleOp(dtype=like.dtype, shape=[num_examples, *like.shape[1:]], shared_name=_ANONYMOUS)
            tf.raw_ops.AssignVariableOp(
                resource=self._handle, value=tf.raw_ops.Empty(shape=[num_examples, *like.shape[1:]], dtype=like.dtype)
            )

    def add(self, values: tf.Tensor) -> None:
        """Writes the next rows."""
        begin, self._count = self._count, self._count + len(values)
        with tf.device("CPU:0"):
            tf.raw_ops.ResourceStridedSliceAssign(ref=self._handle, begin=[begin], end=[self._count], strides=[1], value=values)

    def join(self) -> "Numbers":
        """Returns the object itself, because its values are already stored in one tensor."""
        return self

    def gather(self, indices: tf.Tensor) -> tf.Tensor:
        """Returns the rows at the given indices."""
        values = tf.raw_ops.ResourceGather(resource=self._handle, indices=indices, dtype=self._dtype)
        return tf.ensure_shape(values, [*indices.shape, *self._shape])


class _Chunks:
    """Collects the lists or strings of all examples in chunks, which are concatenated at the end."""

    def __init__(self) -> None:
        self._chunks: list[Any] = []

    def add(self, values: tf.Tensor | tf.RaggedTensor) -> None:
        self._chunks.append(values)

    def join(self) -> tf.Tensor | tf.RaggedTensor:
        return tf.concat(self._chunks, axis=0)


def _collect(data: tf.data.Dataset, num_examples: int) -> dict[str, Numbers | _Chunks]:
    """Returns a dictionary from feature names to the values of all examples."""
    collected: dict[str, Numbers | _Chunks] = {}
    for chunk in data:
        for name, values in chunk.items():
            collected.setdefault(name, _rows_of(values, num_examples)).add(values)
    return collected


def _rows_of(values: tf.Tensor | tf.RaggedTensor, num_examples: int) -> Numbers | _Chunks:
    """Returns a collector for up to `num_examples` examples whose values have the dtypes and shapes of `values`."""
    is_plain = not isinstance(values, tf.RaggedTensor) and values.dtype != tf.string and math.prod(values.shape[1:])
    return Numbers(num_examples, values) if is_plain else _Chunks()


def _gather(values: tf.Tensor | tf.RaggedTensor | Numbers, indices: tf.Tensor) -> tf.Tensor | tf.RaggedTensor:
    if isinstance(values, Numbers):
        return values.gather(indices)
    gathered = tf.gather(values, indices)
    # tf.gather loses the static batch size of ragged tensors
    if isinstance(gathered, tf.RaggedTensor) and indices.shape[0] is not None:
        splits = tf.ensure_shape(gathered.row_splits, [indices.shape[0] + 1])
        gathered = tf.RaggedTensor.from_row_splits(gathered.values, splits, validate=False)
    return gathered
