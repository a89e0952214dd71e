"""The examples of a split for Python: one by one, by their numbers."""

import operator
import threading
from typing import Any, Callable, Iterable, Iterator, Mapping, Sequence, overload

import numpy as np
import tensorflow as tf

from tf_input.dataset_format import KEY, OBJECTS, Feature
from tf_input.decoding import decode, targets, tensors
from tf_input.decoding.schema import parse_examples
from tf_input.forks import check_fork
from tf_input.storage.record_reader import RecordReader

Example = dict[str, Any]


class Examples:
    """The examples of a split as they are stored, in the order of its shards; `PreparedDataset.__getitem__` makes it.

        train = flowers["train"]
        len(train), train[17]["label"], train[-1]["image"].shape
        [example["key"] for example in train[100:110]]

    Each is looked up in the index and read alone, or by its key, `train["ant/17.jpg"]`, first in the catalog (`pip install pyarrow`); any
    number of threads may do so. It is a dictionary of the features, as batches of
    whole images of that size have them, without the dimension of the batch; what has no dimension left is as Python has it. By kind:

    image         uint8 [height, width, 3], RGB; with one channel where all images are grey; uint16 where they keep 16 bits
    tensor        of its own dtype and shape
    pixels        uint8 [height, width, channels]
    mask          uint8 [height, width, 1], or int32 where the data set has a value above 255
    class_label   int; of any number of labels float32 [num_classes]: 1 for those that it has
    integer       int, or int64 of its shape
    float         float, or float32 of its shape
    text          str, or an array of them, of its shape
    objects       a dictionary: `bbox`, float32 [n, 4], (ymin, xmin, ymax, xmax) in 0..1; `label`, int64 [n]; `valid`, bool [n], all
                  True; others that they have

    They can be pickled: another process opens the data set itself, once, however many it is sent.

    Args:
        reader: The reader, which reads one by its number.
        numbers: The numbers of those examples of the split that it has.
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
        """One example, by its number or its key; of a slice those that it has, of which none is read yet.

        Raises:
            ImportError: pyarrow is missing, and the key is to be looked up.
            IndexError: There are fewer.
            KeyError: None of them has this key.
            RuntimeError: This process was forked after TensorFlow had run.
            OSError: The record can't be read.
            TypeError: It is none of these.
            ValueError: The record is damaged, or its image can't be decoded; the message names the place. Or there is no catalog.
        """
        if isinstance(index, str):
            return self.find(index)[1]
        if isinstance(index, slice):
            return Examples(self.reader, self._numbers[index])
        if (position := _position(index)) is None:
            raise TypeError(f"examples[{index!r}]: expected a number, a key or a slice, such as examples[17] or examples[:100]")
        try:
            number = self._numbers[position]
        except IndexError:
            raise IndexError(f"example {index}: there are {len(self)}") from None
        return self.reader.read(number)

    def find(self, key: str) -> tuple[int, Example]:
        """The number of the example with a key, among these, and the example; errors as in `[]`."""
        for number in self.reader.find(key):
            if number in self._numbers and (example := self.reader.read(number))[KEY] == key:
                return self._numbers.index(number), example
        raise KeyError(f"{self.reader.name}: no example has the key {key!r}")

    def __contains__(self, key: object) -> bool:
        """Whether one of them has this key."""
        try:
            return isinstance(key, str) and bool(self.find(key))
        except KeyError:
            return False

    def __iter__(self) -> Iterator[Example]:
        return (self[index] for index in range(len(self)))

    def __repr__(self) -> str:
        return f"<{self.reader.name}: {len(self):,} {'example' if len(self) == 1 else 'examples'}>"


def _position(index: Any) -> int | None:
    """An integer of any kind; None where it is none, such as an answer, or an array of several, which has an `__index__` that fails."""
    try:
        return None if isinstance(index, bool) else operator.index(index)
    except TypeError:
        return None


class ExampleReader:
    """Reads the examples of a split, one by one.

    Args:
        name: The name of what is read, for messages.
        records: The reader of records by their numbers.
        decode_record: A function that makes an example of a record.
        find: A function from a key to the numbers of the examples that may have it.
        origin: The function, and its arguments, that make the same in another process.
    """

    def __init__(
        self,
        name: str,
        records: RecordReader,
        decode_record: Callable[[bytes], Example],
        find: Callable[[str], Sequence[int]],
        origin: tuple[Callable[..., Any], tuple[Any, ...]],
    ) -> None:
        self.name = name
        self.find = find
        self._records = records
        self._decode_record = decode_record
        self._origin = origin

    def __reduce__(self) -> tuple[Any, ...]:
        return self._origin

    def read(self, number: int) -> Example:
        """The example of that number; errors as in `Examples`."""
        check_fork()
        (record,) = self._records.read(np.array([number], np.int64))
        try:
            return self._decode_record(record)
        except tf.errors.InvalidArgumentError as error:
            reason = error.message.partition("\n\t [[")[0].rpartition("\n\n")[2]  # TensorFlow's own, without where in our code it was met
            raise ValueError(f"example {number}: {' '.join(reason.split())}") from error


def record_decoder(
    schema: Iterable[Feature], mask_dtype: tf.DType, channels: int = decode.NUM_CHANNELS
) -> Callable[[bytes], Example]:
    """A function from a record to its features, as `Examples` says.

    Args:
        schema: The features of a record.
        mask_dtype: The dtype of masks.
        channels: The number of channels of encoded images.
    """
    schema = tuple(schema)
    by_name = {feature.name: feature for feature in schema}
    columns = targets.object_features(by_name)
    of_objects = {name: short for short, name in columns.items()} if targets.BBOX in columns else {}

    def decode_features(serialized: tf.Tensor) -> Mapping[str, tf.Tensor]:
        parsed = parse_examples(serialized, schema)
        found = {
            feature.name: _decode(parsed, feature, mask_dtype, channels)
            for feature in schema
            if feature.name not in of_objects
        }
        if of_objects:
            found[OBJECTS] = targets.pad_objects({short: parsed[name] for name, short in of_objects.items()}, None)
        return tf.nest.map_structure(lambda value: value[0], found)

    signature = [tf.TensorSpec([1], tf.string)]
    decode: Callable[[tf.Tensor], dict[str, Any]] | None = None
    lock = threading.Lock()

    def decode_record(record: bytes) -> Example:
        nonlocal decode
        with tf.device("CPU:0"):
            with lock:  # threads that begin at a time would each trace it
                decode = decode or tf.function(decode_features, input_signature=signature, autograph=False).get_concrete_function()
            values = decode(tf.constant([record]))
        objects = {OBJECTS: {name: value.numpy() for name, value in values.pop(OBJECTS).items()}} if of_objects else {}
        return {name: _plain(value.numpy(), by_name[name]) for name, value in values.items()} | objects

    return decode_record


def _decode(parsed: Mapping[str, Any], feature: Feature, mask_dtype: tf.DType, channels: int) -> tf.Tensor:
    """A batch of one, as it is parsed, to what `batches` has."""
    values = parsed[feature.name]
    if feature.kind == "image":
        return decode.decode_image(values[0], channels, tf.as_dtype(feature.dtype or "uint8"))[tf.newaxis]
    if feature.kind == "tensor":
        return tensors.decode_tensor(values[0], tensors.stored_shapes(parsed, feature)[0], feature)[tf.newaxis]
    if feature.kind == "pixels":
        return decode.decode_pixels(values, feature.shape)
    if feature.kind == "mask":
        return tf.cast(decode.decode_masks(values, (None, None)), mask_dtype)
    if feature.kind == "class_label" and feature.is_ragged and feature.label_names:
        return targets.multi_hot(values, len(feature.label_names))
    return values


def _plain(value: Any, feature: Feature) -> Any:
    """One value, which is `bytes` already if it is a text, as Python has it; an array as it is."""
    if feature.kind == "text":
        return value.decode() if isinstance(value, bytes) else np.vectorize(bytes.decode, otypes=[object])(value)
    return value.item() if np.ndim(value) == 0 else value
