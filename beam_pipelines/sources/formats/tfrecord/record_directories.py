"""Reads the metadata of datasets that TensorFlow Datasets or Recordmill prepared.

If no labels and no features are requested, these features are kept:

    Recordmill             all features of the manifest's schema
    TensorFlow Datasets    the image and the labels from `supervisedKeys`, or the only candidates. A label is a list
                           of objects (boxes with classes), one class, or several classes.

Names of nested features contain slashes, as in the records (`objects/bbox`).
"""

import contextlib
import functools
import json
import re
from typing import Any, Callable, Iterator, Mapping, NamedTuple

from beam_pipelines.columns.column import Column
from beam_pipelines.config.values import NAME_PATTERN
from beam_pipelines.errors import UserError, printable
from beam_pipelines.images.raw_image import RawImage
from beam_pipelines.sources.formats.tfrecord.record_fields import stored_dtype
from beam_pipelines.sources.formats.tfrecord.record_layouts import Layout, ObjectsLayout
from beam_pipelines.sources.formats.tfrecord.tfds_layouts import flatten, layout_of_tfds
from beam_pipelines.sources.files.split_names import SPLIT_FOLDERS
from beam_pipelines.storage.files import files_at
from beam_pipelines.storage.input_errors import listing_error
from tf_input.dataset_format import (
    DATASET_INFO,
    FEATURES,
    LABEL,
    MANIFEST,
    OBJECTS,
    WEIGHT,
    Feature,
    Manifest,
    decode_manifest,
    shard_suffix,
)

_FILE_FORMATS = ("tfrecord", "array_record")
_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
_BOXES, _OBJECT_LABEL = f"{OBJECTS}/bbox", f"{OBJECTS}/{LABEL}"


class RecordDirectory(NamedTuple):
    """The metadata of a directory.

    Attributes:
        files: Shard name -> its split.
        read_layout: Returns the layout of the records. Raises `UserError` if they cannot be prepared again.
    """

    files: Mapping[str, str]
    read_layout: Callable[[], Layout]


def read_directory(folder: str, layout: str | None = None) -> RecordDirectory | None:
    """Reads the metadata of a folder, or returns None if `layout` requires no metadata and the folder has none. Raises
    `UserError` if the metadata is invalid, or required but missing."""
    for name, marker, read in (("recordmill", MANIFEST, _read_manifest), ("tfds", DATASET_INFO, _read_tfds)):
        if layout in (None, name) and files_at(folder).exists(f"{folder}/{marker}"):
            with _reading(folder, marker):
                return read(folder)
        if layout == name:
            raise UserError(f"--layout={layout}: {folder} has no {marker}. Omit --layout, or name another folder as --input.")
    return None


@contextlib.contextmanager
def _reading(folder: str, name: str) -> Iterator[None]:
    """Context manager that converts errors about a file of metadata to `UserError`."""
    try:
        yield
    except OSError as error:
        raise listing_error(error, f"{folder}/{name}", f"{folder}: {name} cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{folder}: {name} is corrupt: {printable(repr(error))[:200]}. Create the dataset again.") from error


def _read_manifest(folder: str) -> RecordDirectory:
    manifest = decode_manifest(files_at(folder).read(f"{folder}/{MANIFEST}"), f"{folder}/{MANIFEST}")
    shards = {shard.name: split for split, shards in manifest.splits.items() for shard in shards}
    return RecordDirectory(_check_files(folder, shards), functools.partial(_layout_of_schema, manifest, folder))


def _read_tfds(folder: str) -> RecordDirectory:
    info = _read_json(folder, DATASET_INFO)
    shards = {name: split["name"] for split in info["splits"] for name in _name_shards(info, split)}
    return RecordDirectory(_check_files(folder, shards), functools.partial(_layout_of_tfds, folder, info))


def _layout_of_tfds(folder: str, info: dict[str, Any]) -> Layout:
    with _reading(folder, FEATURES):
        return layout_of_tfds(folder, info, dict(flatten(_read_json(folder, FEATURES))))


def _read_json(folder: str, name: str) -> dict[str, Any]:
    value = json.loads(files_at(folder).read(f"{folder}/{name}"))
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    return value


def _layout_of_schema(manifest: Manifest, folder: str) -> Layout:
    if manifest.is_verbatim:
        raise UserError(f"{folder}: the dataset stores records of any kind unchanged. Pass --records=verbatim.")
    with _reading(folder, MANIFEST):
        return _convert_schema(manifest, folder)


def _convert_schema(manifest: Manifest, folder: str) -> Layout:
    features = {feature.name: feature for feature in manifest.schema}
    image, raw = features.pop("image", None), None
    if image is not None and not image.is_file:
        if None in image.shape:
            raise UserError(
                f"{folder}: images of {image.dtype} in different sizes cannot be prepared again. Use the original images as --input."
            )
        raw = RawImage(*image.shape, dtype=stored_dtype(image.dtype or "uint8"))
    images = [name for name, feature in features.items() if feature.is_image]
    for name in ("key", "height", "width", *(f"{item}/{side}" for item in images for side in ("height", "width"))):
        features.pop(name, None)
    features.pop(WEIGHT, None)  # the row reader finds the weight by its name
    objects = _pop_objects(features)
    columns = {name: _column_of(feature, folder) for name, feature in features.items()}
    targets = tuple(Column(OBJECTS, (OBJECTS,)) if name == OBJECTS else columns.pop(name) for name in manifest.targets)
    names = {feature.name: feature.label_names for feature in manifest.schema if feature.label_names}
    kept = tuple(columns.values())
    shapes = {feature.name: feature.shape for feature in manifest.schema if feature.may_be_dense and not feature.is_tensor and not feature.is_ragged}
    return Layout(
        *("recordmill", "image" if image else ""),
        **{"key": "key", "raw": raw, "objects": objects, "labels": targets, "features": kept, "class_names": names, "shapes": shapes},
    )


def _pop_objects(features: dict[str, Feature]) -> ObjectsLayout | None:
    names = [name for name in features if name.startswith(f"{OBJECTS}/")]
    of_objects = [features.pop(name) for name in names]
    if _BOXES not in names:
        return None
    declared = tuple(feature for feature in of_objects if feature.name not in (_BOXES, _OBJECT_LABEL))
    flags = {feature.name.removeprefix(f"{OBJECTS}/"): feature.name for feature in declared}
    return ObjectsLayout((_BOXES,), _OBJECT_LABEL, flags, declared)


def _column_of(feature: Feature, folder: str) -> Column:
    name, kind = feature.name, feature.kind
    if feature.is_categorical:
        return Column(name, (name,), "multi_label" if feature.is_ragged else "class")
    if feature.is_tensor and None not in feature.shape:
        return Column(name, (name,), kind, feature.shape, feature.dtype)
    if not (feature.is_plain or feature.is_file) or len(feature.shape) > 1 and not feature.may_be_dense:
        raise UserError(
            f"{folder}: feature {name!r} of kind {kind} and shape {list(feature.shape)} cannot be prepared again. Use "
            "the original data as --input, or remove the feature."
        )
    return Column(name, (name,), "array" if len(feature.shape) > 1 else kind, feature.shape)


def _name_shards(info: dict[str, Any], split: dict[str, Any]) -> Iterator[str]:
    """Yields the file names of a split's shards."""
    file_format = info.get("fileFormat") or "tfrecord"
    if file_format not in _FILE_FORMATS:
        raise ValueError(f"fileFormat {file_format!r:.80} is not supported. Use {' or '.join(_FILE_FORMATS)}")
    num_shards = len(split["shardLengths"])
    for shard in range(num_shards):
        suffix = shard_suffix(shard, num_shards)
        known = {
            **{"DATASET": info["name"], "SPLIT": split["name"], "FILEFORMAT": file_format, "SHARD_X_OF_Y": suffix},
            **{"SHARD_INDEX": suffix.partition("-")[0], "NUM_SHARDS": suffix.rpartition("-")[2]},
        }
        yield re.sub(r"\{([A-Z_]+)\}", lambda match: known[match[1]], split.get("filepathTemplate") or _TEMPLATE)


def _check_files(folder: str, files: Mapping[str, str]) -> dict[str, str]:
    checked = {}
    for name, split in files.items():
        if not isinstance(name, str) or not isinstance(split, str):
            raise UserError(f"{folder}: shard {name!r:.80} of split {split!r:.80}: both must be names.")
        split = SPLIT_FOLDERS.get(split.lower(), split)
        if not NAME_PATTERN.fullmatch(split):
            raise UserError(
                f"{folder}: invalid split name {split!r:.80}. Split names consist of letters, digits and '_', and begin with a letter."
            )
        checked[name] = split
    return checked
