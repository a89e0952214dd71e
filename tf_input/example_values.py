"""Reads the values of features from serialized examples with NumPy, without TensorFlow."""

import math
import sys
from typing import Any, Callable, Mapping, Sequence

import numpy as np

from tf_input.dataset_format import KEY, OBJECTS, Feature
from tf_input.image_files import NUM_CHANNELS, decode_image, decode_mask
from tf_input.serialized_example import BadExampleError, SerializedExample


# Decodes the value of an image or mask, which is the bytes of a file, or raw pixels.
ImageDecoder = Callable[[Feature, Any], np.ndarray]


def read_example(
    example: SerializedExample,
    features: Mapping[str, Feature],
    mask_dtype: np.dtype,
    channels: int = NUM_CHANNELS,
    decode: ImageDecoder | None = None,
) -> dict[str, Any]:
    """Converts a record to a dictionary of features, as described in `Examples`.

    Args:
        example: The record.
        features: The features of the record, by name.
        mask_dtype: The dtype of masks.
        channels: The number of channels of encoded images. Default: 3.
        decode: Replaces the decoding of images with 8 bits per channel, and of masks, which it receives decoded.
            Default: None.

    Raises:
        ValueError: The record does not match the features, or an image can't be decoded.
    """
    of_objects = {name: name.removeprefix(f"{OBJECTS}/") for name in features if name.startswith(f"{OBJECTS}/")}
    if "bbox" not in of_objects.values():
        of_objects = {}
    values = {name: _decode(example, feature, mask_dtype, channels, name in of_objects, decode) for name, feature in features.items()}
    if not of_objects:
        return values
    objects = {short: values.pop(name) for name, short in of_objects.items()}
    lengths = {len(value) for value in objects.values()}
    if len(lengths) > 1:
        raise BadExampleError(f"the features of objects have different numbers of values: {sorted(lengths)}")
    return values | {OBJECTS: objects | {"valid": np.ones(lengths.pop(), bool)}}


def _decode(
    example: SerializedExample, feature: Feature, mask_dtype: np.dtype, channels: int, is_of_object: bool, decode: ImageDecoder | None
) -> Any:
    value = read_value(example, feature)
    if feature.is_mask:
        mask = decode_mask(value).astype(mask_dtype)
        return mask if decode is None else decode(feature, mask)
    if decode is not None and feature.is_image and feature.value_dtype == "uint8":
        return decode(feature, value)
    if feature.is_file:
        return decode_image(value, channels, feature.value_dtype)
    if feature.is_text:
        return np.array(value, object).reshape([-1 if side is None else side for side in feature.shape]) if feature.shape else value
    if feature.is_categorical and feature.is_ragged and feature.label_names and not is_of_object:
        hot = np.zeros(len(feature.label_names), np.float32)
        hot[value] = 1
        return hot
    return value.item() if not value.ndim else value


def read_value(example: SerializedExample, feature: Feature) -> Any:
    """Reads the stored value of a feature.

    Returns:
        The bytes of a file, a string, a list of strings, or an array of the feature's shape and dtype.

    Raises:
        BadExampleError: The values do not match the schema. The message has one line.
    """
    if feature.is_file:
        return _read_bytes(example, feature.name)
    if feature.is_text:
        texts = _read_texts(example, feature)
        return texts if feature.shape else texts[0]
    if feature.is_packed:
        return _read_packed(example, feature)
    numbers = np.array(example.values(feature.name), dtype_of(feature))
    if feature.label_names and len(numbers) and not 0 <= numbers.min() <= numbers.max() < len(feature.label_names):
        raise BadExampleError(f"feature {feature.name!r} has a class outside of 0 to {len(feature.label_names) - 1}")
    return _in_shape(numbers, feature.shape, feature)


def find_key(record: bytes) -> bytes | None:
    """Returns the key of a record; None if it has no key, or can't be parsed."""
    try:
        (key,) = SerializedExample(record).values(KEY)
    except ValueError:
        return None
    return key if isinstance(key, bytes) else str(key).encode()


def dtype_of(feature: Feature) -> np.dtype:
    """Returns the dtype of a numeric feature, which is little-endian."""
    dtype = np.dtype(feature.value_dtype)
    return dtype if sys.byteorder == "little" else dtype.newbyteorder("<")


def _read_bytes(example: SerializedExample, name: str) -> bytes:
    values = example.values(name)
    if len(values) != 1 or not isinstance(values[0], bytes):
        raise BadExampleError(f"feature {name!r} has {len(values)} values instead of one value of bytes")
    return values[0]


def _read_texts(example: SerializedExample, feature: Feature) -> list[str]:
    try:
        texts = [value.decode() for value in example.values(feature.name)]
    except (UnicodeDecodeError, AttributeError):
        raise BadExampleError(f"feature {feature.name!r} is not text in UTF-8") from None
    if not feature.is_ragged and len(texts) != math.prod(feature.shape):
        raise BadExampleError(f"feature {feature.name!r} has {len(texts)} texts instead of {math.prod(feature.shape)}")
    return texts


def _read_packed(example: SerializedExample, feature: Feature) -> np.ndarray:
    """Reads pixels or a tensor, which are stored as raw bytes."""
    shape, name = feature.shape, feature.name
    if shape.count(None) > 1:
        shape, name = tuple(example.values(f"{feature.name}/shape")), f"{feature.name}/value"
    data = _read_bytes(example, name)
    dtype = dtype_of(feature)
    if len(data) % dtype.itemsize:
        raise BadExampleError(f"feature {name!r} has {len(data)} bytes, which is not a multiple of {dtype.itemsize}")
    return _in_shape(np.frombuffer(data, dtype), shape, feature)


def _in_shape(numbers: np.ndarray, shape: Sequence[int | None], feature: Feature) -> np.ndarray:
    known = math.prod(side for side in shape if side is not None)
    fits = len(numbers) % known == 0 if None in shape and known else len(numbers) == known
    if not fits or any(side is not None and side < 0 for side in shape):
        raise BadExampleError(
            f"feature {feature.name!r} has {len(numbers)} numbers, which do not fit shape {list(feature.shape)}"
        )
    return numbers.reshape([len(numbers) // known if side is None else side for side in shape])
