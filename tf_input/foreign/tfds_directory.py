"""Reads directories of TensorFlow Datasets from `dataset_info.json` and `features.json`, without importing the library.

Images, masks, class labels, strings, boxes and tensors are supported. Sequences are supported except sequences of
images or masks. Unsupported features, such as videos, float images, nested sequences and compressed tensors, are
omitted. An image is read as a mask if it has labels or a color map, or if it has one channel and another image has
several channels. The feature `image` is read as a mask only if `image` has labels.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from typing import Any, Iterator, Mapping

from tf_input.dataset_format import DATASET_INFO, FEATURES, IMAGE, Feature, label_file_name, shard_suffix
from tf_input.foreign.record_columns import Column
from tf_input.foreign.record_layouts import RecordLayout
from tf_input.lazy_tensorflow import tf
from tf_input.record_layouts import default_targets
from tf_input.storage.paths import join

_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"


def is_tfds_directory(directory: str) -> bool:
    """Returns whether a directory has the two files that identify a dataset of TensorFlow Datasets."""
    return all(tf.io.gfile.exists(join(directory, name)) for name in (DATASET_INFO, FEATURES))


def read_layout(directory: str) -> RecordLayout:
    """Returns the layout of the records in a directory.

    Raises:
        ValueError: A file is corrupt, or there is no image.
    """
    with _named_errors(directory, FEATURES):
        features = {entry.name: entry for entry in _features(directory, "", _read_json(directory, FEATURES))}
    images = [name for name, feature in features.items() if feature.is_image_file]
    if not images:
        raise ValueError(
            f"{join(directory, FEATURES)} has no image feature, only "
            f"{', '.join(features) or 'nothing that can be read'}"
        )
    stored = {IMAGE: features.pop(IMAGE if IMAGE in images else images[0])}
    columns = {name: Column(dataclasses.replace(element, name=name), (element,)) for name, element in (stored | features).items()}
    with _named_errors(directory, DATASET_INFO):
        items = _read_json(directory, DATASET_INFO).get("supervisedKeys", {}).get("tuple", {}).get("items", [])
        named = tuple(item.get("featureKey") for item in items[1:])
    return RecordLayout("tfds", columns, named if named and set(named) <= set(columns) else default_targets(columns))


def read_splits(directory: str) -> dict[str, tuple[list[str], int]]:
    """Returns a dictionary from split names to (file paths, number of records).

    Raises:
        ValueError: The files are not TFRecords, or their names follow an unknown pattern.
    """
    path, info = join(directory, DATASET_INFO), _read_json(directory, DATASET_INFO)
    if (file_format := info.get("fileFormat") or "tfrecord") != "tfrecord":
        raise ValueError(f"{path}: the file format {file_format!r} is not supported. Use a dataset in tfrecord format.")
    splits = {}
    with _named_errors(directory, DATASET_INFO):
        for split in info["splits"]:
            counts = [int(count) for count in split["shardLengths"]]
            names = [_file_name(split, info["name"], index, len(counts)) for index in range(len(counts))]
            files = [join(directory, name) for name, count in zip(names, counts) if count]  # empty shards have no files
            splits[split["name"]] = files, sum(counts)
    return splits


def _file_name(split: Mapping[str, Any], dataset: str, index: int, count: int) -> str:
    template = split.get("filepathTemplate") or _TEMPLATE
    suffix = shard_suffix(index, count)
    parts = {"SHARD_INDEX": suffix.partition("-")[0], "NUM_SHARDS": suffix.rpartition("-")[2], "SHARD_X_OF_Y": suffix}
    name = template.format_map({"DATASET": dataset, "SPLIT": split["name"], "FILEFORMAT": "tfrecord", **parts})
    if os.path.basename(name) != name:
        raise ValueError(f"filepathTemplate {template!r} points outside the directory")
    return name


def _features(
    directory: str, name: str, fields: Mapping[str, Any], is_class_mask: bool = False
) -> Iterator[Feature]:
    """Yields the `tf.train.Example` features that TensorFlow Datasets uses to store the given feature. Entries of a
    dictionary are named `name/ENTRY`."""
    if "featuresDict" in fields:
        inner_fields = fields["featuresDict"]["features"]
        has_colours = any(_num_channels(value) > 1 for value in inner_fields.values())
        for inner, value in inner_fields.items():
            yield from _features(directory, f"{name}/{inner}" if name else inner, value, has_colours and inner != IMAGE)
    elif "sequence" in fields:
        length = int(fields["sequence"].get("length", -1))
        for inner in _features(directory, name, fields["sequence"]["feature"]):
            if not inner.is_ragged and not inner.is_file:
                yield Feature(inner.name, inner.kind, (None if length < 0 else length, *inner.shape), inner.label_names)
    elif "image" in fields:
        is_grey = is_class_mask and _num_channels(fields) == 1 and fields["image"].get("encodingFormat") != "jpeg"
        is_mask = "label" in fields["image"] or (fields["image"].get("useColormap") and name != IMAGE) or is_grey
        if not str(fields["image"].get("dtype", "")).startswith("float"):  # float images are stored as bytes
            yield Feature(name, "mask" if is_mask else "image")
    elif "classLabel" in fields:
        yield Feature(name, "class_label", (), _label_names(directory, name, int(fields["classLabel"].get("numClasses", 0))))
    elif "boundingBox" in fields:
        yield Feature(name, "bbox", (4,))
    elif "text" in fields:
        yield Feature(name, "text")
    elif "tensor" in fields and fields["tensor"].get("encoding", "none") == "none":
        yield from _tensor(name, fields["tensor"])


def _num_channels(fields: Mapping[str, Any]) -> int:
    """Returns the number of channels of an image; 0 if the number is unknown or the feature is not an image."""
    dimensions = fields.get("image", {}).get("shape", {}).get("dimensions", [])
    return int(dimensions[-1]) if dimensions else 0


def _tensor(name: str, fields: Mapping[str, Any]) -> Iterator[Feature]:
    dtype = tf.as_dtype(fields["dtype"])
    kind = "float" if dtype.is_floating else "integer" if dtype.is_integer or dtype.is_bool else "text"
    shape = tuple(int(side) if int(side) >= 0 else None for side in fields.get("shape", {}).get("dimensions", []))
    if None not in shape[1:]:
        yield Feature(name, kind, shape)


def _label_names(directory: str, name: str, num_classes: int) -> tuple[str, ...]:
    """Returns the class names from the label file, or the class numbers if the file does not exist."""
    path = join(directory, label_file_name(name.replace("/", "-")))
    if not tf.io.gfile.exists(path):
        return tuple(map(str, range(num_classes)))
    with tf.io.gfile.GFile(path) as file:
        return tuple(line.rstrip("\n") for line in file if line.strip())


def _read_json(directory: str, name: str) -> dict[str, Any]:
    with tf.io.gfile.GFile(join(directory, name)) as file, _named_errors(directory, name):
        return dict(json.loads(file.read()))


@contextlib.contextmanager
def _named_errors(directory: str, name: str) -> Iterator[None]:
    """Context manager that converts errors from a corrupt file to a ValueError that contains the name of the file."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{join(directory, name)}: {type(error).__name__}: {error}") from error
