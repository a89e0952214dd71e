"""Serializes examples of a schema without TensorFlow.

A `tf.train.Example` maps feature names to lists of bytes, floats or int64 values. Protocol buffers do not define the
order of map entries, and TensorFlow's order differs between runs. This encoder sorts features by name, so that equal
examples have equal bytes.
"""

import functools
from typing import Callable, Mapping, Sequence

import numpy as np

from tf_input.dataset_format import IMAGE, KEY, LABEL, Feature, stored_features

# Fields 1 to 3 of Feature.
_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = b"\x0a", b"\x12", b"\x1a"
_TAGS = {"bytes": _BYTES_LIST, "float": _FLOAT_LIST, "int64": _INT64_LIST}
_LENGTH_DELIMITED_1, _LENGTH_DELIMITED_2 = b"\x0a", b"\x12"


def varint(value: int) -> bytes:
    """Encodes an integer as a protocol buffer varint. Negative numbers use 64-bit two's complement."""
    if 0 <= value < 128:
        return bytes((value,))
    value &= 2**64 - 1
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


# Names of features that contain the bytes of an image.
_IMAGE_NAMES = (IMAGE, f"{IMAGE}/value")

Value = int | float | bytes | Sequence[int] | Sequence[float]


def is_core(feature: Feature, has_image: bool = True) -> bool:
    """Returns whether a feature is the key, the class `label`, the image, or the height or width of the image."""
    if feature.name in _IMAGE_NAMES:
        return has_image and feature.may_be_image
    if feature.name in ("height", "width"):
        return has_image and feature.is_integer and not feature.shape
    return not feature.shape and (feature.is_text if feature.name == KEY else feature.name == LABEL and feature.is_categorical)


def stored_image(schema: Sequence[Feature]) -> str | None:
    """Returns the name of the feature that contains the image bytes, or None if examples have no image."""
    of_image = (stored_feature.name for stored_feature in stored_features(schema) if stored_feature.name in _IMAGE_NAMES and stored_feature.storage == "bytes")
    return next(of_image, None)


def extra_features(schema: Sequence[Feature]) -> tuple[Feature, ...]:
    """Returns the features of a schema whose values are encoded separately from the image. See `is_core`."""
    has_image = any(feature.name == IMAGE for feature in schema)
    return tuple(feature for feature in stored_features(schema) if not is_core(feature, has_image))


class ExampleEncoder:
    """Serializes the examples of a schema."""

    def __init__(self, schema: Sequence[Feature]) -> None:
        names = [feature.name for feature in schema]
        if names != sorted(set(names)):
            raise ValueError(f"the features of a schema are not unique or not sorted: {names}")
        stored = stored_features(schema)
        # Without an image, all features are in the first part.
        position = next((position for position, feature in enumerate(stored) if feature.name in _IMAGE_NAMES), len(stored))
        self._image_name = stored[position].name if position < len(stored) else IMAGE
        self._extras = extra_features(schema)
        self._before = [(feature.name, self._encoder_of(feature)) for feature in stored[:position]]
        self._after = [(feature.name, self._encoder_of(feature)) for feature in stored[position + 1 :]]

    def _encoder_of(self, feature: Feature) -> Callable[[str, Value], bytes]:
        """Returns a function that encodes a feature as an entry of the map in `tf.train.Features`."""
        if feature in self._extras:
            return lambda name, entry: entry  # The value is already encoded.
        return _bytes_entry if feature.storage == "bytes" else _int64_entry

    def encode_around(self, num_image_bytes: int, values: Mapping[str, Value], extras: Sequence[bytes] = ()) -> tuple[bytes, bytes]:
        """Returns the bytes of a serialized example before and after the image bytes, so that the image is not copied.

        Args:
            num_image_bytes: The length of the encoded image, in bytes.
            values: The values of the features for which `is_core` is true, by name.
            extras: The encoded other features, from `encode_extras`.
        """
        values = self._with_extras(values, extras)
        before = b"".join([encode(name, values[name]) for name, encode in self._before])
        after = b"".join([encode(name, values[name]) for name, encode in self._after])
        image_header = _entry_header(self._image_name, "bytes", num_image_bytes)
        image_entry_bytes = len(image_header) + num_image_bytes
        total = len(before) + image_entry_bytes + len(after)
        return b"".join((_example_header(total), before, image_header)), after

    def encode_all(self, values: Mapping[str, Value], extras: Sequence[bytes] = ()) -> bytes:
        """Serializes an example of a schema without an image. For the arguments, see `encode_around`."""
        values = self._with_extras(values, extras)
        return _delimited(_LENGTH_DELIMITED_1, b"".join([encode(name, values[name]) for name, encode in self._before]))

    def _with_extras(self, values: Mapping[str, Value], extras: Sequence[bytes]) -> Mapping[str, Value]:
        return {**values, **{feature.name: entry for feature, entry in zip(self._extras, extras, strict=True)}} if self._extras else values

    def encode(self, image: bytes, values: Mapping[str, Value]) -> bytes:
        """Serializes an example of a schema with an image."""
        before, after = self.encode_around(len(image), values, encode_extras(self._extras, values))
        return before + image + after


def encode_chunks(schema: Sequence[Feature], values: Mapping[str, Value | Sequence[bytes]]) -> list[bytes]:
    """Returns a serialized example as a list of byte strings, to avoid copying large values.

    Args:
        schema: The features to encode, sorted by name.
        values: The values by name. See `encode_extras`. Strings with a shape are sequences of bytes. Tensors are bytes.

    Returns:
        The header of the example, then the entry header and the values of each feature. The values of an image are the
        original bytes object.
    """
    chunks = [b""]
    for feature in schema:
        chunks += _encode_entry(feature, values[feature.name])
    chunks[0] = _LENGTH_DELIMITED_1 + varint(sum(map(len, chunks)))
    return chunks


def value_chunk(schema: Sequence[Feature], name: str) -> int:
    """Returns the index of a feature's values in the result of `encode_chunks`."""
    position = [feature.name for feature in schema].index(name)
    num_of_example, num_of_entry = 1, 2  # The example has one header. Each feature has a header and a value.
    return num_of_example + num_of_entry * position + 1  # Skip the feature's own header.


def encode_extras(features: Sequence[Feature], values: Mapping[str, Value]) -> list[bytes]:
    """Serializes several features and returns the entry of each feature.

    Args:
        features: The features, from `extra_features`.
        values: The values by name. A scalar is an int, a float or bytes. A tensor is bytes. Other features with a shape
            are flat sequences in row-major order.
    """
    return [b"".join(_encode_entry(feature, values[feature.name])) for feature in features]


def _encode_entry(feature: Feature, value: Value | Sequence[bytes]) -> tuple[bytes, bytes]:
    """Serializes a feature. Returns the header of the entry, and the encoded values."""
    payload = _encode_values(feature, value)
    is_list = feature.is_text and bool(feature.shape)
    return _entry_header(feature.name, feature.storage, len(payload), is_list), payload


def _encode_values(feature: Feature, value: Value | Sequence[bytes]) -> bytes:
    """Encodes the values of a feature as a byte string, as packed numbers, or as several byte strings."""
    stored = feature.storage
    if stored == "float":
        return np.asarray(value, "<f4").tobytes()
    if stored == "int64":
        return _pack_integers(np.asarray(value, np.int64)) if feature.shape else varint(int(value))
    if feature.is_text and feature.shape:
        return b"".join([_delimited(_LENGTH_DELIMITED_1, item) for item in value])
    return value


def _pack_integers(values: np.ndarray) -> bytes:
    """Returns the bytes of packed integers in row-major order."""
    # A fast path for small values, such as masks. Encoding each value separately would dominate the run time.
    if values.size and 0 <= values.min() and values.max() < 128:
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
    """Returns the header of a feature's entry: all bytes before the values.

    Args:
        name: The name of the feature.
        stored: The stored type, as in `Feature.storage`.
        num_bytes: The length of one string, of the packed numbers, or (with `is_list`) of the list, in bytes.
        is_list: Whether the values are several strings that already have length prefixes.
    """
    is_bare = is_list or not num_bytes and stored != "bytes"  # An empty list of numbers has no packed field.
    value_header = b"" if is_bare else _LENGTH_DELIMITED_1 + varint(num_bytes)
    list_header = _TAGS[stored] + varint(len(value_header) + num_bytes)
    key = _delimited(_LENGTH_DELIMITED_1, name.encode())
    feature_bytes = len(list_header) + len(value_header) + num_bytes
    inner = key + _LENGTH_DELIMITED_2 + varint(feature_bytes) + list_header + value_header
    entry_bytes = len(key) + 1 + len(varint(feature_bytes)) + feature_bytes
    return _LENGTH_DELIMITED_1 + varint(entry_bytes) + inner
