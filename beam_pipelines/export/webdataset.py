"""Implements the export format `webdataset`: tar files such as `train-000000.tar` with several files per example.

    ant/1%2Ejpg.jpg          the image with the extension of its format (.npy for raw pixels)
    ant/1%2Ejpg.cls          the number of the class in `label`, if each example has one class
    ant/1%2Ejpg.mask.png     a mask, another image or a tensor (.npy); the extension contains its name
    ant/1%2Ejpg.json         the original key, all other features and class names; objects as in `export_objects`

File names start with the example's key (see `safe_names.safe_stem`). Exports of the same dataset have the same bytes,
because the tar files contain no modification times or owners.
"""

import io
import json
import tarfile
from typing import Any, Iterable, Iterator

import numpy as np

from beam_pipelines.export.examples import ExportedExample, extension_of, file_features, names_of
from beam_pipelines.export.export_objects import ExportedValues, object_field
from beam_pipelines.export.safe_names import safe_name, safe_stem
from tf_input.dataset_format import IMAGE, KEY, LABEL, OBJECTS, Feature, Manifest

_BLOCK = tarfile.BLOCKSIZE


def shard_file(split: str, shard_index: int) -> str:
    """Returns the name of the tar file for a shard."""
    return f"{split}-{shard_index:06d}.tar"


def tar_chunks(manifest: Manifest, examples: Iterable[ExportedExample]) -> Iterator[bytes]:
    """Yields the bytes of a tar file with the given examples, in chunks.

    Args:
        manifest: The manifest of the dataset.
        examples: The examples of a shard, in record order.
    """
    files = list(file_features(manifest))
    others = [item for item in manifest.schema if item not in files and item.name != KEY]
    has_class = any(entry.name == LABEL and entry.is_categorical and not entry.shape for entry in manifest.schema)
    exported = ExportedValues(manifest)
    for example in examples:
        name = safe_stem(example.key)
        for feature in files:
            yield from _file_member(name, feature, example.value(feature))
        values = {other.name: (other, exported.of(other, example)) for other in others}
        if has_class:
            yield from _member(f"{name}.cls", str(values[LABEL][1]).encode())
        fields: dict[str, Any] = {KEY: example.key}
        for feature, value in values.values():
            _put(fields, feature, value)
        yield from _member(f"{name}.json", json.dumps(fields, ensure_ascii=False).encode())
    yield bytes(2 * _BLOCK)


def _file_member(name: str, feature: Feature, value: bytes | np.ndarray) -> Iterator[bytes]:
    behind = "" if feature.name == IMAGE else f".{safe_name(feature.name)}"
    if feature.is_file:
        yield from _member(f"{name}{behind}.{extension_of(value)}", value)
    else:
        file = io.BytesIO()
        np.lib.format.write_array(file, value, version=(1, 0), allow_pickle=False)
        yield from _member(f"{name}{behind}.npy", file.getvalue())


def _put(fields: dict[str, Any], feature: Feature, value: Any) -> None:
    """Adds a feature value to the JSON object of an example."""
    if feature.is_categorical:
        value = names_of(value, feature)
    elif isinstance(value, np.ndarray):
        value = value.tolist()
    if name := object_field(feature):
        fields.setdefault(OBJECTS, {})[name] = value
    else:
        fields[feature.name] = value


def _member(name: str, data: bytes) -> Iterator[bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    yield info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")
    yield data
    yield bytes(-len(data) % _BLOCK)
