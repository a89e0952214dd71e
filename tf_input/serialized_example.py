"""Reads serialized `tf.train.Example`s without TensorFlow, and locates values in the bytes.

The messages (tensorflow/core/example/example.proto, feature.proto) have the wire format of protocol buffers:

    Example    1: Features
    Features   1: map entries, each 1: name, 2: Feature
    Feature    1: BytesList, 2: FloatList or 3: Int64List; the last one wins
    a list     1: values; numbers can be packed into one or more fields

Unknown fields are skipped. The reader is not recursive, so deeply nested messages are harmless. Values are decoded when
they are requested. Most writers use the shortest possible encoding, for which a fast path avoids a full parse.
"""

import struct
from typing import Iterator, NamedTuple, Sequence

from tf_input.dataset_format import Feature

# Limits that are far above the size of real examples. They bound the memory.
MAX_FEATURES = 100_000
MAX_VALUES = 1_000_000
_MAX_LISTS = 100

_STORAGES = ("", "bytes", "float", "int64")
_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5
_NO_LAST_BYTES = bytes(range(128, 256))  # Bytes with the continuation bit. The last byte of a varint does not have it.


class BadExampleError(ValueError):
    """Raised if bytes are not a serialized `tf.train.Example`. The message has one line."""


class FeatureLists(NamedTuple):
    """The byte ranges that contain the values of a feature in a serialized example.

    Attributes:
        storage: The type of the values, `bytes`, `float` or `int64`. An empty string if there is no list.
        lists: The start and end of each part of the list.
        only: The start and end of the values if they are a single bytes value or packed field. Otherwise None.
    """

    storage: str
    lists: tuple[tuple[int, int], ...]
    only: tuple[int, int] | None = None


_NO_LIST = FeatureLists("", ())


class SerializedExample:
    """Reads a serialized example.

    Args:
        data: The bytes of the example.

    Attributes:
        features: The features of the example, by name.
        num_bytes: The length of the example, in bytes.

    Raises:
        BadExampleError: The bytes are not a `tf.train.Example`, or are a `tf.train.SequenceExample`.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.num_bytes = len(data)
        self.features: dict[str, FeatureLists] = {}
        byte_range = _field_at(data, 0, len(data), 1)
        if byte_range and byte_range[1] == len(data):
            self._read_features(*byte_range)
            return
        for number, wire_type, start, end in _fields(data, 0, len(data)):
            if number == 2:
                raise BadExampleError("it is a tf.train.SequenceExample (it has feature lists), not a tf.train.Example")
            if number == 1:
                self._read_features(*_message(wire_type, start, end))

    def spans(self, name: str) -> list[tuple[int, int]]:
        """Returns the offset and the size of each value of a bytes feature. A missing feature has no values."""
        storage, lists, only = self.features.get(name, _NO_LIST)
        if storage not in ("", "bytes"):
            raise BadExampleError(f"feature {name!r} is a list of {storage}; it must be bytes")
        if only:
            return [(only[0], only[1] - only[0])]
        spans = []
        for wire_type, start, end in self._first_fields(lists):
            start, end = _message(wire_type, start, end)
            spans.append((start, end - start))
            _check_count(name, len(spans))
        return spans

    def values(self, name: str) -> list[bytes] | list[float] | list[int]:
        """Returns the values of a feature. The list is empty if the feature is missing."""
        storage, lists, only = self.features.get(name, _NO_LIST)
        if storage == "bytes":
            return [self._data[offset : offset + num_bytes] for offset, num_bytes in self.spans(name)]
        read = _read_floats if storage == "float" else _read_integers
        values: list = []
        for wire_type, start, end in ((_DELIMITED, *only),) if only else self._first_fields(lists):
            _check_count(name, len(values) + (end - start) // (4 if storage == "float" else 1))
            values += read(self._data, wire_type, start, end)
        return values

    def count(self, name: str) -> int:
        """Returns the number of values of a feature without decoding them."""
        storage, lists, only = self.features.get(name, _NO_LIST)
        if storage == "bytes":
            return 1 if only else len(self.spans(name))
        fields = ((_DELIMITED, *only),) if only else self._first_fields(lists)
        if storage == "float":
            return sum((end - start) // 4 for _, start, end in fields)
        return sum(len(self._data[start:end].translate(None, _NO_LAST_BYTES)) for _, start, end in fields)

    def _read_features(self, start: int, end: int) -> None:
        for wire_type, start, end in self._first_fields(((start, end),)):
            name, feature = self._read_entry(*_message(wire_type, start, end))
            self.features[name] = feature  # If several entries have the same name, the last one wins.
            if len(self.features) > MAX_FEATURES:
                raise BadExampleError(f"more than {MAX_FEATURES} features")

    def _read_entry(self, start: int, end: int) -> tuple[str, FeatureLists]:
        first = _field_at(self._data, start, end, 1)
        second = first and _field_at(self._data, first[1], end, 2)
        if second and second[1] == end:
            return self._read_name(*first), self._read_feature(_NO_LIST, *second)
        name, feature = "", _NO_LIST
        for number, wire_type, start, end in _fields(self._data, start, end):
            if number == 1:
                name = self._read_name(*_message(wire_type, start, end))
            elif number == 2:
                feature = self._read_feature(feature, *_message(wire_type, start, end))
        return name, feature

    def _read_name(self, start: int, end: int) -> str:
        try:
            return self._data[start:end].decode()
        except UnicodeDecodeError:
            raise BadExampleError("the name of a feature is not valid UTF-8") from None

    def _read_feature(self, feature: FeatureLists, start: int, end: int) -> FeatureLists:
        storage, lists, _ = feature
        number = self._data[start] >> 3 if start < end else 0
        if not lists and 1 <= number <= 3 and (message_range := _field_at(self._data, start, end, number)) and message_range[1] == end:
            only = _field_at(self._data, *message_range, 1)
            return FeatureLists(_STORAGES[number], (message_range,), only if only and only[1] == end else None)
        for number, wire_type, start, end in _fields(self._data, start, end):
            if 1 <= number <= 3:
                message_range = _message(wire_type, start, end)
                lists = (*lists, message_range) if storage == _STORAGES[number] else (message_range,)
                storage = _STORAGES[number]
                if len(lists) > _MAX_LISTS:
                    raise BadExampleError(f"a feature of more than {_MAX_LISTS} lists")
        return FeatureLists(storage, lists)

    def _first_fields(self, messages: tuple[tuple[int, int], ...]) -> Iterator[tuple[int, int, int]]:
        """Yields the wire type, start and end of the fields with the number 1 in the given messages."""
        for start, end in messages:
            while field := _field_at(self._data, start, end, 1):
                yield _DELIMITED, *field
                start = field[1]
            if start < end:
                yield from (field[1:] for field in _fields(self._data, start, end) if field[0] == 1)


def read_example(data: bytes, schema: Sequence[Feature]) -> SerializedExample:
    """Reads a record of a dataset. If the schema is empty, the record is not parsed, and the result has no features."""
    return SerializedExample(data if schema else b"")


def _field_at(data: bytes, position: int, end: int, number: int) -> tuple[int, int] | None:
    """Returns the start and end of the length-delimited field at `position`, or None if the field has another number.

    The number must be less than 16.
    """
    if position + 1 >= end or data[position] != number << 3 | _DELIMITED:
        return None
    length, start = data[position + 1], position + 2
    if length > 127:
        try:
            length, start = _varint(data, position + 1, end)
        except BadExampleError:  # The full parse reports the error.
            return None
    return (start, start + length) if start + length <= end else None


def _fields(data: bytes, position: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Parses a message and yields the number, wire type, start and end of each field."""
    while position < end:
        tag = data[position]
        if tag < 128:
            position += 1
        else:
            tag, position = _varint(data, position, end)
        wire_type = tag & 7
        if wire_type == _DELIMITED:
            if position < end and data[position] < 128:  # Fast path for nearly all fields.
                start = position + 1
                position = start + data[position]
            else:
                length, start = _varint(data, position, end)
                position = start + length
        elif wire_type == _VARINT:
            start = position
            _, position = _varint(data, position, end)
        elif wire_type in (_FIXED32, _FIXED64):
            start = position
            position += 4 if wire_type == _FIXED32 else 8
        else:
            raise BadExampleError(f"not a tf.train.Example: wire type {wire_type} at byte {position}")
        if position > end or not 8 <= tag < 1 << 32:
            raise BadExampleError(
                f"not a tf.train.Example: field {tag >> 3} ends at byte {position}, its parent at {end}"
            )
        yield tag >> 3, wire_type, start, position


def _varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    """Decodes a 64-bit varint. Returns the integer, and the position after the varint."""
    value = 0
    for shift in range(0, 70, 7):
        if position >= end:
            break
        byte = data[position]
        position += 1
        if byte < 128:
            return (value | byte << shift) & (1 << 64) - 1, position
        value |= (byte & 127) << shift
    raise BadExampleError(f"not a tf.train.Example: an integer without an end at byte {position}")


def _message(wire_type: int, start: int, end: int) -> tuple[int, int]:
    if wire_type != _DELIMITED:
        raise BadExampleError(f"not a tf.train.Example: wire type {wire_type} at byte {start} instead of {_DELIMITED}")
    return start, end


def _read_floats(data: bytes, wire_type: int, start: int, end: int) -> tuple[float, ...]:
    if wire_type not in (_DELIMITED, _FIXED32) or (end - start) % 4:
        raise BadExampleError(f"{end - start} bytes at byte {start}, which are not floats of 4 bytes")
    return struct.unpack_from(f"<{(end - start) // 4}f", data, start)


def _read_integers(data: bytes, wire_type: int, start: int, end: int) -> list[int]:
    if wire_type not in (_DELIMITED, _VARINT):
        raise BadExampleError(f"wire type {wire_type} at byte {start}, which is not that of integers")
    if end - start == 1 and data[start] < 128:  # A fast path for most class labels.
        return [data[start]]
    values = []
    while start < end:
        value, start = _varint(data, start, end)
        values.append(value - (1 << 64) if value >> 63 else value)
    return values


def _check_count(name: str, count: int) -> None:
    if count > MAX_VALUES:
        raise BadExampleError(f"feature {name!r} has more than {MAX_VALUES} values")
