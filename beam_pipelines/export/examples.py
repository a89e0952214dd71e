"""Reads the feature values of a record as bytes, strings or arrays, according to the schema."""

from typing import Any, Iterator, NamedTuple

import numpy as np

from beam_pipelines.images.image_headers import identify
from beam_pipelines.tfrecord.shard_records import shard_records
from tf_input.dataset_format import IMAGE, KEY, Feature, Manifest
from tf_input.example_values import read_value as stored_value
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


def read_value(reader: SerializedExample, feature: Feature) -> Any:
    """Reads the value of a feature from an example. See `ExportedExample.value`."""
    value = stored_value(reader, feature)
    if feature.is_file and identify(value) not in EXTENSIONS:
        raise BadExampleError(f"feature {feature.name!r} is not a JPEG, PNG, WebP, GIF or BMP image")
    return value


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
