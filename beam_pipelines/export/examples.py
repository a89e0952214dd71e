"""Reads the feature values of a record as bytes, strings or arrays, according to the schema."""

import math
from typing import Any, Iterator, NamedTuple, Sequence

import numpy as np

from beam_pipelines.images.image_headers import identify
from beam_pipelines.tfrecord.shard_records import shard_records
from tf_input.dataset_format import IMAGE, KEY, Feature, Manifest
from tf_input.serialized_example import BadExampleError, SerializedExample

EXTENSIONS = {"jpeg": "jpg", "png": "png", "webp": "webp", "gif": "gif", "bmp": "bmp"}
_SUFFIXES = {"jpeg": (".jpg", ".jpeg", ".jpe", ".jfif")}


class ExportedExample(NamedTuple):
    """A record of a dataset.

    Attributes:
        number: The index of the record in its shard.
        key: The key of the example. If the schema has no key, it is made from the split, the shard and the record
            index.
        data: The bytes of the record.
        reader: The reader of the record's features.
    """

    number: int
    key: str
    data: bytes
    reader: SerializedExample

    def value(self, feature: Feature) -> Any:
        """Returns the value of a feature: the bytes of a file, a string, a list of strings, or an array.

        Raises:
            BadExampleError: The values do not match the schema. The message has one line and names the record.
        """
        try:
            return read_value(self.reader, feature)
        except BadExampleError as error:
            raise BadExampleError(f"record {self.number}: {error}") from None


def read_exported(path: str, split: str, shard_index: int, manifest: Manifest) -> Iterator[ExportedExample]:
    """Yields the examples of a shard in record order.

    Args:
        path: The path or URL of the shard.
        split, shard_index: The address of the shard, from which keys are made if the schema has no key.
        manifest: The manifest of the dataset.

    Raises:
        BadExampleError: A record is not an example. The message has one line and names the record.
        DataError, StorageError: The shard is corrupt or cannot be read. See `shard_records`.
    """
    key = manifest.features.get(KEY)
    has_key = key is not None and key.is_text and not key.shape
    for number, record in enumerate(shard_records(path, manifest.splits[split][shard_index].num_examples)):
        try:
            reader = SerializedExample(record.data)
            text = read_value(reader, key) if has_key else f"{split}-{shard_index:05d}-{number:08d}"
        except BadExampleError as error:
            raise BadExampleError(f"record {number}: {error}") from None
        yield ExportedExample(number, text, record.data, reader)


def dtype_of(feature: Feature) -> np.dtype:
    """Returns the dtype of a numeric feature."""
    return np.dtype(feature.value_dtype).newbyteorder("<")


def read_value(reader: SerializedExample, feature: Feature) -> Any:
    """Reads the value of a feature from an example. See `ExportedExample.value`."""
    if feature.is_file:
        data = _one(reader, feature.name)
        if identify(data) not in EXTENSIONS:
            raise BadExampleError(f"feature {feature.name!r} is not a JPEG, PNG, WebP, GIF or BMP image")
        return data
    if feature.is_text:
        texts = _read_texts(reader, feature)
        return texts if feature.shape else texts[0]
    if feature.is_packed:
        return _read_tensor(reader, feature)
    numbers = np.array(reader.values(feature.name), dtype_of(feature))
    if feature.is_categorical and len(numbers) and not 0 <= numbers.min() <= numbers.max() < len(feature.label_names):
        raise BadExampleError(f"feature {feature.name!r} has a class outside of 0 to {len(feature.label_names) - 1}")
    return _in_shape(numbers, feature.shape, feature)


def _one(reader: SerializedExample, name: str) -> bytes:
    values = reader.values(name)
    if len(values) != 1 or not isinstance(values[0], bytes):
        raise BadExampleError(f"feature {name!r} has {len(values)} values instead of one value of bytes")
    return values[0]


def _read_texts(reader: SerializedExample, feature: Feature) -> list[str]:
    try:
        texts = [value.decode() for value in reader.values(feature.name)]
    except (UnicodeDecodeError, AttributeError):
        raise BadExampleError(f"feature {feature.name!r} is not text in UTF-8") from None
    if not feature.is_ragged and len(texts) != math.prod(feature.shape):
        raise BadExampleError(f"feature {feature.name!r} has {len(texts)} texts instead of {math.prod(feature.shape)}")
    return texts


def _read_tensor(reader: SerializedExample, feature: Feature) -> np.ndarray:
    """Reads a tensor."""
    shape, name = feature.shape, feature.name
    if shape.count(None) > 1:
        shape, name = tuple(reader.values(f"{feature.name}/shape")), f"{feature.name}/value"
    data = _one(reader, name)
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


def names_of(labels: np.ndarray, feature: Feature) -> Any:
    """Returns the class name of a single label, or a list of class names for several labels."""
    return np.array(feature.label_names, object)[labels].tolist() if labels.ndim else feature.label_names[int(labels)]


def file_features(manifest: Manifest) -> Iterator[Feature]:
    """Yields the features that contain encoded files or tensors. `image` is first."""
    yield from sorted((entry for entry in manifest.schema if entry.is_packed), key=lambda item: item.name != IMAGE)


def extension_of(data: bytes) -> str:
    """Returns the usual file extension of an encoded image, such as `jpg`."""
    return EXTENSIONS[identify(data)]


def with_extension(name: str, data: bytes) -> str:
    """Appends the extension of the image format to a file name, unless the name already ends with it."""
    usual = _SUFFIXES.get(identify(data), (f".{extension_of(data)}",))
    return name if name.lower().endswith(usual) else f"{name}.{extension_of(data)}"
