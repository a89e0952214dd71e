"""Serialized examples from a schema, without TensorFlow.

A serialized example is a `tf.train.Example` (tensorflow/core/example/example.proto): a map from feature name to a list of bytes or
int64. Protocol buffers leave the order of a map open, and TensorFlow's own differs from run to run; here features
stand in ascending order of their names, so that the same example has the same bytes (promise 2).
"""

import functools
from typing import Callable, Mapping, Sequence

from tf_input.dataset_format import FEATURE_KINDS, IMAGE, Feature

_BYTES_LIST, _INT64_LIST = b"\x0a", b"\x1a"  # Feature.bytes_list is field 1, Feature.int64_list field 3
_LENGTH_DELIMITED_1, _LENGTH_DELIMITED_2 = b"\x0a", b"\x12"


def varint(value: int) -> bytes:
    """A protocol buffer's variable-length integer; negative ones in two's complement of 64 bits."""
    if 0 <= value < 128:
        return bytes((value,))
    value &= 2**64 - 1
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


class ExampleEncoder:
    """Serializes examples of one schema."""

    def __init__(self, schema: Sequence[Feature]) -> None:
        names = [feature.name for feature in schema]
        if names != sorted(set(names)) or IMAGE not in names:
            raise ValueError(f"a schema's features are distinct, in ascending order, {IMAGE!r} among them; got {names}")
        position = names.index(IMAGE)
        self._before = [_make_entry(feature) for feature in schema[:position]]
        self._after = [_make_entry(feature) for feature in schema[position + 1 :]]

    def encode_around(self, num_image_bytes: int, values: Mapping[str, int | bytes]) -> tuple[bytes, bytes]:
        """What stands before and after the image's bytes in the serialized example.

        The image, nearly all of it, is then never copied only to be copied again.

        Args:
            num_image_bytes: Length of the encoded image.
            values: The other features' values, by name.
        """
        before = b"".join([entry(values) for entry in self._before])
        after = b"".join([entry(values) for entry in self._after])
        image_header, image_entry_bytes = _image_header(num_image_bytes)
        total = len(before) + image_entry_bytes + len(after)
        return b"".join((_LENGTH_DELIMITED_1, varint(total), before, image_header)), after

    def encode(self, image: bytes, values: Mapping[str, int | bytes]) -> bytes:
        """The whole serialized example."""
        before, after = self.encode_around(len(image), values)
        return before + image + after


def _make_entry(feature: Feature) -> Callable[[Mapping[str, int | bytes]], bytes]:
    """A function from an example's values to one entry of Features.feature."""
    name = feature.name
    encode = _bytes_entry if FEATURE_KINDS[feature.kind] == "bytes" else _int64_entry
    return lambda values: encode(name, values[name])


@functools.lru_cache(maxsize=1 << 14)
def _int64_entry(name: str, value: int) -> bytes:
    packed = _delimited(_LENGTH_DELIMITED_1, varint(value))
    return _map_entry(name, _delimited(_INT64_LIST, packed))


def _bytes_entry(name: str, value: bytes) -> bytes:
    return _map_entry(name, _delimited(_BYTES_LIST, _delimited(_LENGTH_DELIMITED_1, value)))


def _map_entry(name: str, feature: bytes) -> bytes:
    key = _delimited(_LENGTH_DELIMITED_1, name.encode())
    return _delimited(_LENGTH_DELIMITED_1, key + _delimited(_LENGTH_DELIMITED_2, feature))


def _delimited(tag: bytes, value: bytes) -> bytes:
    return b"".join((tag, varint(len(value)), value))


@functools.lru_cache(maxsize=1 << 14)
def _image_header(num_bytes: int) -> tuple[bytes, int]:
    """The image's entry up to its first byte, and the length of the whole entry."""
    value_header = _LENGTH_DELIMITED_1 + varint(num_bytes)
    list_header = _BYTES_LIST + varint(len(value_header) + num_bytes)
    key = _delimited(_LENGTH_DELIMITED_1, IMAGE.encode())
    feature_bytes = len(list_header) + len(value_header) + num_bytes
    inner = key + _LENGTH_DELIMITED_2 + varint(feature_bytes) + list_header + value_header
    entry_bytes = len(key) + 1 + len(varint(feature_bytes)) + feature_bytes
    header = _LENGTH_DELIMITED_1 + varint(entry_bytes) + inner
    return header, len(header) + num_bytes
