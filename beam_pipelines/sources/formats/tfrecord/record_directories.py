"""Reads the metadata of datasets that TensorFlow Datasets or Recordmill prepared.

If no labels and no features are requested, these features are kept:

    Recordmill             all features of the manifest's schema
    TensorFlow Datasets    the image and the labels from `supervisedKeys`, or the only candidates. A label is a list
                           of objects (boxes with classes), one class, or several classes.

Names of nested features contain slashes, as in the records (`objects/bbox`).
"""

import contextlib
import json
import re
from typing import Any, Iterator, Mapping, NamedTuple

from beam_pipelines.config.columns import Column
from beam_pipelines.config.prepare_config import NAME_PATTERN
from beam_pipelines.errors import UserError
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
        layout: The layout of the records.
        files: Shard name -> its split.
    """

    layout: Layout
    files: Mapping[str, str]


def read_shards(folder: str) -> Mapping[str, str] | None:
    """Returns a mapping from the shards of a dataset to their splits, or None if the folder has no metadata. Raises
    `UserError` if the metadata is invalid. The records in the shards may be of any kind."""
    if files_at(folder).exists(f"{folder}/{MANIFEST}"):
        return _shards_of_manifest(folder, _open_manifest(folder))
    if files_at(folder).exists(f"{folder}/{DATASET_INFO}"):
        return _shards_of_tfds(folder, _read_json(folder, DATASET_INFO))
    return None


def read_directory(folder: str, layout: str | None) -> RecordDirectory | None:
    """Reads the metadata of a folder, or returns None if `layout` requires no metadata and the folder has none. Raises
    `UserError` if the metadata is invalid, or required but missing."""
    files = files_at(folder)
    if layout in (None, "recordmill") and files.exists(f"{folder}/{MANIFEST}"):
        return _read_manifest(folder)
    if layout in (None, "tfds") and files.exists(f"{folder}/{DATASET_INFO}"):
        return _read_tfds(folder)
    if layout in ("recordmill", "tfds"):
        expected = MANIFEST if layout == "recordmill" else DATASET_INFO
        raise UserError(f"--layout={layout}: {folder} has no {expected}. Omit --layout, or name another folder as --input.")
    return None


def _read_manifest(folder: str) -> RecordDirectory:
    manifest = _open_manifest(folder)
    if manifest.is_verbatim:
        raise UserError(f"{folder}: the dataset stores records of any kind unchanged. Pass --records=verbatim.")
    with _corrupt_manifest(folder):
        return RecordDirectory(_layout_of_schema(manifest, folder), _shards_of_manifest(folder, manifest))


def _open_manifest(folder: str) -> Manifest:
    path = f"{folder}/{MANIFEST}"
    try:
        with _corrupt_manifest(folder):
            return decode_manifest(files_at(folder).read(path), path)
    except OSError as error:
        raise listing_error(error, path, f"{folder}: {MANIFEST} cannot be read: {error.strerror or error}") from error


@contextlib.contextmanager
def _corrupt_manifest(folder: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{folder}: {MANIFEST} is corrupt: {error!r:.200}. Create the dataset again.") from error


def _shards_of_manifest(folder: str, manifest: Manifest) -> dict[str, str]:
    return _check_files(folder, {shard.name: split for split, shards in manifest.splits.items() for shard in shards})


def _layout_of_schema(manifest: Manifest, folder: str) -> Layout:
    features = {feature.name: feature for feature in manifest.schema}
    image, raw = features.pop("image", None), None
    if image is not None and image.kind in ("pixels", "tensor"):
        if None in image.shape:
            raise UserError(
                f"{folder}: images of {image.dtype} in different sizes cannot be prepared again. Use the original images as --input."
            )
        raw = RawImage(*image.shape, dtype=stored_dtype(image.dtype or "uint8"))
    images = [name for name, feature in features.items() if feature.kind in ("image", "pixels")]
    for name in ("key", "height", "width", *(f"{item}/{side}" for item in images for side in ("height", "width"))):
        features.pop(name, None)
    features.pop(WEIGHT, None)  # the row reader finds the weight by its name
    objects = _pop_objects(features)
    columns = {name: _column_of(feature, folder) for name, feature in features.items()}
    targets = tuple(Column(OBJECTS, (OBJECTS,)) if name == OBJECTS else columns.pop(name) for name in manifest.targets)
    names = {feature.name: feature.label_names for feature in manifest.schema if feature.label_names}
    kept = tuple(columns.values())
    shapes = {feature.name: feature.shape for feature in manifest.schema if feature.kind == "float" and not feature.is_ragged}
    return Layout(
        *("recordmill", "image" if image else ""),
        **{"key": "key", "raw": raw, "objects": objects, "labels": targets, "features": kept, "class_names": names, "shapes": shapes},
    )


def _pop_objects(features: dict[str, Feature]) -> ObjectsLayout | None:
    names = [name for name in features if name.startswith(f"{OBJECTS}/")]
    for name in names:
        features.pop(name)
    if _BOXES not in names:
        return None
    flags = {name.removeprefix(f"{OBJECTS}/"): name for name in names if name not in (_BOXES, _OBJECT_LABEL)}
    return ObjectsLayout((_BOXES,), _OBJECT_LABEL, flags)


def _column_of(feature: Feature, folder: str) -> Column:
    name, kind = feature.name, feature.kind
    if kind == "class_label":
        return Column(name, (name,), "multi_label" if feature.is_ragged else "class")
    if kind == "tensor" and None not in feature.shape:
        return Column(name, (name,), kind, feature.shape, feature.dtype)
    if (len(feature.shape) > 1 and kind != "float") or kind not in ("float", "integer", "text", "mask", "image"):
        raise UserError(
            f"{folder}: feature {name!r} of kind {kind} and shape {list(feature.shape)} cannot be prepared again. Use "
            "the original data as --input, or remove the feature."
        )
    return Column(name, (name,), "array" if len(feature.shape) > 1 else kind, feature.shape)


def _read_tfds(folder: str) -> RecordDirectory:
    info = _read_json(folder, DATASET_INFO)
    fields = _read_json(folder, FEATURES)
    with _invalid_metadata(folder):
        tfds_features = dict(flatten(fields))
    shards = _shards_of_tfds(folder, info)
    return RecordDirectory(layout_of_tfds(folder, info, tfds_features), shards)


def _shards_of_tfds(folder: str, info: dict[str, Any]) -> dict[str, str]:
    with _invalid_metadata(folder):
        shards = {name: split for split in info["splits"] for name, split in _name_shards(info, split)}
    return _check_files(folder, shards)


@contextlib.contextmanager
def _invalid_metadata(folder: str) -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UserError(
            f"{folder}: {DATASET_INFO} and {FEATURES} are not in the format of TensorFlow Datasets ({error!r:.80}). "
            "Create the dataset again."
        ) from error


def _read_json(folder: str, name: str) -> dict[str, Any]:
    try:
        value = json.loads(files_at(folder).read(f"{folder}/{name}"))
    except OSError as error:
        message = f"{folder}: {name} cannot be read: {error.strerror or error}"
        raise listing_error(error, f"{folder}/{name}", message) from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{folder}: {name} is not valid JSON: {error!r:.80}. Create the dataset again.") from error
    if not isinstance(value, dict):
        raise UserError(f"{folder}: {name} is not a JSON object. Create the dataset again.")
    return value


def _name_shards(info: dict[str, Any], split: dict[str, Any]) -> Iterator[tuple[str, str]]:
    file_format = info.get("fileFormat") or "tfrecord"
    if file_format not in _FILE_FORMATS:
        raise UserError(f"{DATASET_INFO}: fileFormat {file_format!r:.80} is not supported. Use {' or '.join(_FILE_FORMATS)}.")
    num_shards = len(split["shardLengths"])
    for shard in range(num_shards):
        suffix = shard_suffix(shard, num_shards)
        known = {
            **{"DATASET": info["name"], "SPLIT": split["name"], "FILEFORMAT": file_format, "SHARD_X_OF_Y": suffix},
            **{"SHARD_INDEX": suffix.partition("-")[0], "NUM_SHARDS": suffix.rpartition("-")[2]},
        }
        template = split.get("filepathTemplate") or _TEMPLATE
        yield re.sub(r"\{([A-Z_]+)\}", lambda match: known[match[1]], template), split["name"]


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
