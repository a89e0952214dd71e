"""Provides access to single examples of a split by index or key."""

from __future__ import annotations

import operator
import threading
from typing import Any, Callable, Iterable, Iterator, Mapping, Sequence, overload

import numpy as np

from tf_input.dataset_format import KEY, OBJECTS, Feature
from tf_input.decoding import decode, targets, tensors
from tf_input.decoding.faults import describe_fault
from tf_input.decoding.schema import parse_examples
from tf_input.forks import check_fork
from tf_input.lazy_tensorflow import tf
from tf_input.storage.record_reader import RecordReader

# Examples of datasets that were prepared with `--records verbatim` are bytes. The type is that of all other datasets, so
# that type checkers accept `train[17]["label"]`.
Example = dict[str, Any]


class Examples:
    """A sequence of the examples of a split, in shard order. `PreparedDataset.__getitem__` returns it.

    Each access to an example reads one record. A key, as in `train["ant/17.jpg"]`, is first looked up in the catalog
    (`pip install pyarrow`). Threads may share the object. An example is a dictionary of features, with the values that
    batches contain, but without a batch dimension. Images are not cropped or resized. Scalars are Python values.
    Features have these types:

    image         uint8 [height, width, 3] in RGB; one channel if all images are grayscale; uint16 with `--keep_depth`
    tensor        its own dtype and shape
    pixels        uint8 [height, width, channels]
    mask          uint8 [height, width, 1], or int32 if the dataset has values above 255
    class_label   int; for any number of classes, multi-hot float32 [num_classes]
    integer       int, or an int64 array of its shape
    float         float, or a float32 array of its shape
    keypoints     float32 [n, 2 or 3]: x and y in 0..1, and visibility
    text          str, or an object array of its shape
    objects       a dictionary: `bbox`, float32 [n, 4], (ymin, xmin, ymax, xmax) in 0..1; `label`, int64 [n]; `valid`,
                  bool [n], all True; and further features of objects

    An example of a dataset that was prepared with `--records verbatim` is the bytes of its record.

    Examples can be pickled. A process that unpickles examples opens the dataset only once.

    Examples:
        ```python
        train = flowers["train"]
        len(train), train[17]["label"], train[-1]["image"].shape
        [example["key"] for example in train[100:110]]
        ```

    Args:
        reader: The reader of single examples.
        numbers: The indices of these examples in the split.
    """

    def __init__(self, reader: "ExampleReader", numbers: range) -> None:
        self.reader = reader
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> Example: ...

    @overload
    def __getitem__(self, index: str) -> Example: ...

    @overload
    def __getitem__(self, index: slice) -> "Examples": ...

    def __getitem__(self, index: int | str | slice) -> "Example | Examples":
        """Returns one example, by index or key. A slice returns an `Examples` object without reading records.

        Raises:
            ImportError: pyarrow, which is needed to look up a key, is missing.
            IndexError: The index is out of range.
            KeyError: No example has this key.
            OSError: The record can't be read.
            RuntimeError: The process was forked after TensorFlow had run.
            TypeError: The index is not an integer, a string or a slice.
            ValueError: The record is corrupt, its image can't be decoded (the message has its location), or the catalog
                is missing.
        """
        if isinstance(index, str):
            return self.find(index)[1]
        if isinstance(index, slice):
            return Examples(self.reader, self._numbers[index])
        if (position := _to_index(index)) is None:
            raise TypeError(
                f"examples[{index!r}] is invalid. Pass a number, a key or a slice, such as examples[17] or "
                "examples[:100]."
            )
        try:
            number = self._numbers[position]
        except IndexError:
            raise IndexError(f"example {index} does not exist: there are {len(self)} examples") from None
        return self.reader.read(number)

    def find(self, key: str) -> tuple[int, Example]:
        """Returns (index, example) for a key. It raises the same errors as `[]`."""
        for number in self.reader.find(key):
            if number in self._numbers and self.reader.has_key(number, key, example := self.reader.read(number)):
                return self._numbers.index(number), example
        raise KeyError(f"{self.reader.name}: no example has the key {key!r}")

    def __contains__(self, key: object) -> bool:
        """Returns whether an example with this key exists."""
        try:
            return isinstance(key, str) and bool(self.find(key))
        except KeyError:
            return False

    def __iter__(self) -> Iterator[Example]:
        return (self[index] for index in range(len(self)))

    def __repr__(self) -> str:
        return f"<{self.reader.name}: {len(self):,} {'example' if len(self) == 1 else 'examples'}>"


def _to_index(index: Any) -> int | None:
    """Converts an index to a Python integer. Returns None for booleans, arrays and other non-integers."""
    try:
        return None if isinstance(index, bool) else operator.index(index)
    except TypeError:
        return None


class ExampleReader:
    """Reads single examples of a split.

    Args:
        name: The name of the split, for messages.
        records: The reader of records by index.
        decode_record: A function from a record to an example.
        find: A function from a key to the indices of the examples that may have this key.
        has_key: A function that returns whether the example with an index has a key, if examples are bytes.
        origin: A function and its arguments, which create the same reader in another process.
    """

    def __init__(
        self,
        name: str,
        records: RecordReader,
        decode_record: Callable[[bytes], Example],
        find: Callable[[str], Sequence[int]],
        has_key: Callable[[int, str], bool],
        origin: tuple[Callable[..., Any], tuple[Any, ...]],
    ) -> None:
        self.name = name
        self.find = find
        self._records = records
        self._decode_record = decode_record
        self._has_key = has_key
        self._origin = origin

    def __reduce__(self) -> tuple[Any, ...]:
        return self._origin

    def has_key(self, number: int, key: str, example: Example) -> bool:
        """Returns whether the example with this index has a key."""
        return self._has_key(number, key) if isinstance(example, bytes) else example[KEY] == key

    def read(self, number: int) -> Example:
        """Returns the example with this index. It raises the same errors as `Examples`."""
        check_fork()
        (record,) = self._records.read(np.array([number], np.int64))
        try:
            return self._decode_record(record)
        except tf.errors.InvalidArgumentError as error:
            keys = tf.train.Example.FromString(record).features.feature[KEY].bytes_list.value
            shard, row, offset = self._records.locate(number)
            fault = describe_fault(keys[0] if keys else None, error)
            raise ValueError(f"example {number} ({shard}: record {row}, at byte {offset}): {fault}") from error


def record_decoder(
    schema: Iterable[Feature], mask_dtype: np.dtype, channels: int = decode.NUM_CHANNELS
) -> Callable[[bytes], Example]:
    """Returns a function that converts a record to a dictionary of features, as described in `Examples`.

    Args:
        schema: The features of a record.
        mask_dtype: The dtype of masks.
        channels: The number of channels of encoded images. Default: 3.
    """
    schema = tuple(schema)
    by_name = {feature.name: feature for feature in schema}
    columns = targets.object_features(by_name)
    of_objects = {name: short for short, name in columns.items()} if targets.BBOX in columns else {}

    def decode_features(serialized: tf.Tensor) -> Mapping[str, tf.Tensor]:
        parsed = parse_examples(serialized, schema)
        decoded = {
            feature.name: _decode(parsed, feature, mask_dtype, channels)
            for feature in schema
            if feature.name not in of_objects
        }
        if of_objects:
            decoded[OBJECTS] = targets.pad_objects({short: parsed[name] for name, short in of_objects.items()}, None)
        return tf.nest.map_structure(lambda value: value[0], decoded)

    signature = [tf.TensorSpec([1], tf.string)]
    decode: Callable[[tf.Tensor], dict[str, Any]] | None = None
    lock = threading.Lock()

    def decode_record(record: bytes) -> Example:
        nonlocal decode
        with tf.device("CPU:0"):
            with lock:  # otherwise, several threads would trace the function at the same time
                decode = decode or tf.function(decode_features, input_signature=signature, autograph=False).get_concrete_function()
            values = decode(tf.constant([record]))
        objects = {OBJECTS: {name: value.numpy() for name, value in values.pop(OBJECTS).items()}} if of_objects else {}
        return {name: _python_value(value.numpy(), by_name[name]) for name, value in values.items()} | objects

    return decode_record


def _decode(parsed: Mapping[str, Any], feature: Feature, mask_dtype: np.dtype, channels: int) -> tf.Tensor:
    """Decodes a parsed batch of one example to the values that `batches` returns."""
    values = parsed[feature.name]
    if feature.is_image_file:
        return decode.decode_image(values[0], channels, tf.as_dtype(feature.dtype or "uint8"))[tf.newaxis]
    if feature.is_tensor:
        return tensors.decode_tensor(values[0], tensors.stored_shapes(parsed, feature)[0], feature)[tf.newaxis]
    if feature.is_image:
        return decode.decode_pixels(values, feature.shape)
    if feature.is_mask:
        return tf.cast(decode.decode_masks(values, (None, None)), mask_dtype)
    if feature.is_categorical and feature.is_ragged and feature.label_names:
        return targets.multi_hot(values, len(feature.label_names))
    return values


def _python_value(value: Any, feature: Feature) -> Any:
    """Converts a scalar to a Python value, and text to str. Other arrays are returned unchanged."""
    if feature.is_text:
        return value.decode() if isinstance(value, bytes) else np.vectorize(bytes.decode, otypes=[object])(value)
    return value.item() if np.ndim(value) == 0 else value
