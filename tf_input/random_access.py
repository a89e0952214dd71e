"""Provides access to single examples of a split by index or key."""

import operator
from typing import Any, Callable, Iterator, Sequence, overload

import numpy as np

from tf_input.dataset_format import KEY
from tf_input.example_values import find_key
from tf_input.storage.record_reader import RecordReader

# Examples of datasets that were prepared with `--records verbatim` are bytes. The type is that of all other datasets, so
# that type checkers accept `train[17]["label"]`.
Example = dict[str, Any]


class Examples:
    """A sequence of the examples of a split, in shard order. `PreparedDataset.__getitem__` returns it.

    Each access to an example reads one record. A key, as in `train["ant/17.jpg"]`, is first looked up in the catalog,
    which requires pyarrow. Threads may share the object. An example is a dictionary of features. Its values are the
    same as in batches, but without a batch dimension. Images are not cropped or resized. Scalars are Python values.
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
        return f"<{self.reader.name}: examples: {len(self):,}>"


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
        (record,) = self._records.read(np.array([number], np.int64))
        try:
            return self._decode_record(record)
        except ValueError as error:
            shard, row, offset = self._records.locate(number)
            key = find_key(record)
            name = "an example without a key" if key is None else repr(key.decode(errors="replace"))
            place = f"example {number} ({shard}: record {row}, at byte {offset})"
            raise ValueError(f"{place}: {name} can't be decoded: {error}") from error
