"""Serialized examples from a schema, without TensorFlow.

A serialized example is a `tf.train.Example` (tensorflow/core/example/example.proto): a map from feature name to a list of bytes,
floats or int64. Protocol buffers leave the order of a map open, and TensorFlow's own differs from run to run; here features
stand in ascending order of their names, so that the same example has the same bytes (promise 2).
"""

import functools
from typing import Callable, Iterator, Mapping, Sequence

import numpy as np

from tf_input.dataset_format import FEATURE_KINDS, IMAGE, Feature, stored_features

# Fields 1 to 3 of Feature.
_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = b"\x0a", b"\x12", b"\x1a"
_TAGS = {"bytes": _BYTES_LIST, "float": _FLOAT_LIST, "int64": _INT64_LIST}
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


# Under which the bytes of an image are stored.
_IMAGE_NAMES = (IMAGE, f"{IMAGE}/value")

# What a reference has a column for, and what is known of an image that is read.
_CORE = (("key", "text"), ("label", "class_label"))
_OF_IMAGE = (
    ("height", "integer"),
    *((name, kind) for name in _IMAGE_NAMES for kind in ("image", "pixels", "tensor")),
    ("width", "integer"),
)

Value = int | float | bytes | Sequence[int] | Sequence[float]


def is_core(feature: Feature, has_image: bool = True) -> bool:
    """Whether a feature's value, or the image, travels with a reference; that of any other feature waits in the spool."""
    is_known = (feature.name, feature.kind) in (*_CORE, *(_OF_IMAGE if has_image else ()))
    return is_known and (not feature.shape or feature.name in _IMAGE_NAMES)


def stored_image(schema: Sequence[Feature]) -> str | None:
    """The name under which records of a schema have the bytes of their image; None where it has none."""
    of_image = (one.name for one in stored_features(schema) if one.name in _IMAGE_NAMES and FEATURE_KINDS[one.kind] == "bytes")
    return next(of_image, None)


def extra_features(schema: Sequence[Feature]) -> tuple[Feature, ...]:
    """A schema's features beside those that every example has, of one with an image its size too; as they are stored."""
    has_image = any(feature.name == IMAGE for feature in schema)
    return tuple(feature for feature in stored_features(schema) if not is_core(feature, has_image))


class ExampleEncoder:
    """Serializes examples of one schema."""

    def __init__(self, schema: Sequence[Feature]) -> None:
        names = [feature.name for feature in schema]
        if names != sorted(set(names)):
            raise ValueError(f"a schema has the features {names}; expected each once, in ascending order")
        stored = stored_features(schema)
        # Without an image all stand before where it would be.
        position = next((position for position, feature in enumerate(stored) if feature.name in _IMAGE_NAMES), len(stored))
        self._image_name = stored[position].name if position < len(stored) else IMAGE
        self._extras = extra_features(schema)
        self._before = [(feature.name, self._encoder_of(feature)) for feature in stored[:position]]
        self._after = [(feature.name, self._encoder_of(feature)) for feature in stored[position + 1 :]]

    def _encoder_of(self, feature: Feature) -> Callable[[str, Value], bytes]:
        """A function from a feature's name and value to one entry of Features.feature."""
        if feature in self._extras:
            return lambda name, entry: entry  # encoded already
        return _bytes_entry if FEATURE_KINDS[feature.kind] == "bytes" else _int64_entry

    def encode_around(self, num_image_bytes: int, values: Mapping[str, Value], extras: bytes = b"") -> tuple[bytes, bytes]:
        """What stands before and after the image's bytes in the serialized example.

        The image, nearly all of it, is then never copied only to be copied again.

        Args:
            num_image_bytes: The length of the encoded image, in bytes.
            values: The values of the features that `is_core` holds for, by name.
            extras: The entries of the other features, as `encode_extras` made them.
        """
        values = self._with_extras(values, extras)
        before = b"".join([encode(name, values[name]) for name, encode in self._before])
        after = b"".join([encode(name, values[name]) for name, encode in self._after])
        image_header = _entry_header(self._image_name, "bytes", num_image_bytes)
        image_entry_bytes = len(image_header) + num_image_bytes
        total = len(before) + image_entry_bytes + len(after)
        return b"".join((_example_header(total), before, image_header)), after

    def encode_all(self, values: Mapping[str, Value], extras: bytes = b"") -> bytes:
        """The serialized example, of a schema without an image; arguments as in `encode_around`."""
        values = self._with_extras(values, extras)
        return _delimited(_LENGTH_DELIMITED_1, b"".join([encode(name, values[name]) for name, encode in self._before]))

    def _with_extras(self, values: Mapping[str, Value], extras: bytes) -> Mapping[str, Value]:
        if not self._extras:
            return values
        entries = zip(self._extras, split_entries(extras), strict=True)
        return {**values, **{feature.name: entry for feature, entry in entries}}

    def encode(self, image: bytes, values: Mapping[str, Value]) -> bytes:
        """The whole serialized example, of a schema with an image."""
        before, after = self.encode_around(len(image), values, encode_extras(self._extras, values))
        return before + image + after


def encode_pieces(schema: Sequence[Feature], values: Mapping[str, Value | Sequence[bytes]]) -> list[bytes]:
    """A serialized example in pieces, of which large ones are never copied only to be joined.

    Args:
        schema: The features to encode, by name in ascending order, with or without an image.
        values: The values by name, as `encode_extras` has them; of a text with a shape a sequence of bytes; of a tensor its stored bytes.

    Returns:
        The header of the example, then of each feature the header of its entry, and its values: of an image, its very bytes.
    """
    pieces = [b""]
    for feature in schema:
        pieces += _encode_entry(feature, values[feature.name])
    pieces[0] = _LENGTH_DELIMITED_1 + varint(sum(map(len, pieces)))
    return pieces


def value_piece(schema: Sequence[Feature], name: str) -> int:
    """The position of the piece among those of `encode_pieces` that has the values of a feature."""
    position = [feature.name for feature in schema].index(name)
    num_of_example, num_of_entry = 1, 2  # a header; a header and values
    return num_of_example + num_of_entry * position + 1  # behind its own header


def encode_extras(features: Sequence[Feature], values: Mapping[str, Value]) -> bytes:
    """The entries of features in a serialized example, one after the other.

    Args:
        features: The features, as `extra_features` gives them.
        values: By name: an int, a float or bytes, as a tensor's too; of another feature with a shape a sequence of its values, row by row.
    """
    return b"".join([piece for feature in features for piece in _encode_entry(feature, values[feature.name])])


def split_entries(entries: bytes) -> Iterator[bytes]:
    """The entries one by one: each has its length behind its first byte."""
    position = 0
    while position < len(entries):
        start = position
        length, position = _read_varint(entries, start + 1)
        position += length
        yield entries[start:position]


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    """An integer, and where it ends."""
    value, shift = 0, 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, position


def _encode_entry(feature: Feature, value: Value | Sequence[bytes]) -> tuple[bytes, bytes]:
    """An entry's header, and its values."""
    payload = _encode_values(feature, value)
    is_list = feature.kind == "text" and bool(feature.shape)
    return _entry_header(feature.name, FEATURE_KINDS[feature.kind], len(payload), is_list), payload


def _encode_values(feature: Feature, value: Value | Sequence[bytes]) -> bytes:
    """What stands in a feature's list: a string, packed numbers, or of a text with a shape all of its strings, each with its length."""
    stored = FEATURE_KINDS[feature.kind]
    if stored == "float":
        return np.asarray(value, "<f4").tobytes()
    if stored == "int64":
        return _pack_integers(np.asarray(value, np.int64)) if feature.shape else varint(int(value))
    if feature.kind == "text" and feature.shape:
        return b"".join([_delimited(_LENGTH_DELIMITED_1, one) for one in value])
    return value


def _pack_integers(values: np.ndarray) -> bytes:
    """The bytes of packed integers of any shape, row by row."""
    if values.size and 0 <= values.min() and values.max() < 128:  # of masks, one by one takes longer than all else
        return values.astype(np.uint8).tobytes()
    return b"".join(map(varint, values.ravel().tolist()))


@functools.lru_cache(maxsize=1 << 14)
def _example_header(num_bytes: int) -> bytes:
    return _LENGTH_DELIMITED_1 + varint(num_bytes)


@functools.lru_cache(maxsize=1 << 14)
def _int64_entry(name: str, value: int) -> bytes:
    packed = _delimited(_LENGTH_DELIMITED_1, varint(value))
    return _map_entry(name, _delimited(_INT64_LIST, packed))


def _bytes_entry(name: str, value: bytes) -> bytes:
    return _entry_header(name, "bytes", len(value)) + value


def _map_entry(name: str, feature: bytes) -> bytes:
    key = _delimited(_LENGTH_DELIMITED_1, name.encode())
    return _delimited(_LENGTH_DELIMITED_1, key + _delimited(_LENGTH_DELIMITED_2, feature))


def _delimited(tag: bytes, value: bytes) -> bytes:
    return b"".join((tag, varint(len(value)), value))


@functools.lru_cache(maxsize=1 << 14)
def _entry_header(name: str, stored: str, num_bytes: int, is_list: bool = False) -> bytes:
    """A feature's entry up to what is in its list.

    Args:
        name: The name of the feature.
        stored: One of `FEATURE_KINDS`' values.
        num_bytes: The length of one string, or of packed numbers, in bytes; with `is_list` of the whole list.
        is_list: Whether strings have their lengths already.
    """
    is_bare = is_list or not num_bytes and stored != "bytes"  # of no number there is no packed value
    value_header = b"" if is_bare else _LENGTH_DELIMITED_1 + varint(num_bytes)
    list_header = _TAGS[stored] + varint(len(value_header) + num_bytes)
    key = _delimited(_LENGTH_DELIMITED_1, name.encode())
    feature_bytes = len(list_header) + len(value_header) + num_bytes
    inner = key + _LENGTH_DELIMITED_2 + varint(feature_bytes) + list_header + value_header
    entry_bytes = len(key) + 1 + len(varint(feature_bytes)) + feature_bytes
    return _LENGTH_DELIMITED_1 + varint(entry_bytes) + inner
