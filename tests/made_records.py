"""Writes datasets with any schema for tests of the reader. TensorFlow writes the records."""

import io
import pathlib
from typing import Any, Iterable, Mapping, Sequence

import google_crc32c
import numpy as np
import tensorflow as tf
from PIL import Image

import tf_input
from tf_input.dataset_format import (
    MANIFEST,
    NO_LABEL,
    STATISTICS,
    Feature,
    Manifest,
    ShardInfo,
    encode_index,
    read_fingerprint,
    shard_name,
    to_json,
)
from tf_input.storage.frames import FRAME_BYTES

Values = Mapping[str, Any]


def example(stored: Mapping[str, Any]) -> bytes:
    """Returns a serialized example. Each value is a byte string, a string, a number, or a list of these types."""
    return tf.train.Example(
        features=tf.train.Features(feature={name: _feature(value) for name, value in stored.items()})
    ).SerializeToString(deterministic=True)


def _feature(value: Any) -> tf.train.Feature:
    if isinstance(value, (list, tuple)) and not value:
        return tf.train.Feature()  # an empty feature without a type
    values = [value] if isinstance(value, (bytes, str)) else np.asarray(value).reshape(-1).tolist()
    if any(isinstance(entry, (bytes, str)) for entry in values):
        data = [element.encode() if isinstance(element, str) else element for element in values]
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=data))
    if any(isinstance(item, float) for item in values) or np.asarray(value).dtype.kind == "f":
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def write_records(path: pathlib.Path, records: Iterable[bytes], compression: str = "") -> pathlib.Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(path), compression) as writer:
        for record in records:
            writer.write(record)
    return path


def write_dataset(
    directory: pathlib.Path,
    schema: Sequence[Feature],
    splits: Mapping[str, Sequence[Values]],
    targets: tuple[str, ...] = (),
    statistics: Mapping[str, Any] | None = None,
    image_sizes: tuple[tuple[int, int] | None, tuple[int, int] | None] = (None, None),
    num_shards: int = 1,
) -> tf_input.PreparedDataset:
    """Writes a dataset and opens it.
    Args:
        directory: Directory of the dataset, which is created.
        schema: Features in any order.
        splits: Values of each example by feature, for each split.
        targets: Names of the target features.
        statistics: Content of `statistics.json` in addition to the image sizes.
        image_sizes: (minimum, maximum) of the height and of the width, or None if unknown.
        num_shards: Number of shards of each split.
    """
    features = tuple(sorted(schema, key=lambda feature: feature.name))
    shards = {}
    for split, examples in splits.items():
        for shard_index in range(num_shards):
            name = shard_name("made", split, shard_index, num_shards)
            records = [_serialize(features, values) for values in examples[shard_index::num_shards]]
            path = write_records(directory / name, records)
            sizes = [len(record) + FRAME_BYTES for record in records]
            rows = [(sum(sizes[:index]), 0, 0, NO_LABEL) for index in range(len(records))]
            (directory / "index").mkdir(exist_ok=True)
            fingerprint = read_fingerprint(lambda offset, num_bytes: path.read_bytes()[offset : offset + num_bytes], path.stat().st_size)
            index = encode_index(rows, fingerprint)
            (directory / "index" / f"{name}.idx").write_bytes(index)
            sums = (google_crc32c.value(path.read_bytes()), f"index/{name}.idx", len(index), google_crc32c.value(index))
            shards.setdefault(split, []).append(ShardInfo(name, len(records), path.stat().st_size, *sums, "", 0, 0, *fingerprint))
    count = sum(map(len, splits.values()))
    manifest = Manifest("made", 0, features, {split: tuple(infos) for split, infos in shards.items()}, count, 0, targets)
    sides = {
        side: bounds and {"min": bounds[0], "max": bounds[1]} for side, bounds in zip(("height", "width"), image_sizes)
    }
    (directory / STATISTICS).write_text(to_json({"images": sides, **(statistics or {})}))
    (directory / MANIFEST).write_text(manifest.to_json())
    return tf_input.open(directory)


def _serialize(features: Sequence[Feature], values: Values) -> bytes:
    """Serializes an example. The schema determines the type of each feature."""
    convert = {"bytes": lambda value: value, "int64": _integers, "float": _floats}
    return example({feature.name: convert[feature.storage](values[feature.name]) for feature in features})


def _integers(value: Any) -> np.ndarray:
    return np.asarray(value, np.int64)


def _floats(value: Any) -> np.ndarray:
    return np.asarray(value, np.float32)


def encode_mask(mask: np.ndarray) -> bytes:
    """Returns an 8-bit gray PNG file, or a 16-bit gray PNG file for uint16 arrays."""
    encoded = io.BytesIO()
    Image.fromarray(mask).save(encoded, "PNG")
    return encoded.getvalue()
