"""Implements the export format `parquet`: one file per shard, such as `data/train-00000-of-00016.parquet`.

Hugging Face's `datasets.load_dataset(DIR)` reads these files.

    images and masks              struct{bytes, path}; the path is the key with the extension of the format
    class labels                  int64; the class names are in the metadata of the schema
    strings and numbers           their own types; lists if they have a shape or any length
    objects/…                     one struct of lists; see `export_objects`
"""

import io
import json
from typing import Any, Iterable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from beam_pipelines.export.examples import ExportedExample, with_extension
from beam_pipelines.export.export_objects import ExportedValues, object_field
from beam_pipelines.export.safe_names import safe_path
from tf_input.dataset_format import IMAGE, OBJECTS, Feature, Manifest, shard_suffix
from tf_input.example_values import dtype_of

# Maximum number of bytes and of rows in a row group. A row group is read at once.
_GROUP_BYTES, _GROUP_ROWS = 32 << 20, 1000

# All options are explicit, because the defaults can change between pyarrow versions, which would change the bytes.
_WRITER: Mapping[str, Any] = {
    "version": "2.6",
    "data_page_version": "1.0",
    "data_page_size": 1 << 20,
    "dictionary_pagesize_limit": 1 << 20,
    "compression": "snappy",
}

_IMAGE_TYPE = pa.struct({"bytes": pa.binary(), "path": pa.string()})


def shard_file(split: str, shard_index: int, num_shards: int) -> str:
    """Returns the name of the Parquet file for a shard."""
    return f"data/{split}-{shard_suffix(shard_index, num_shards)}.parquet"


def parquet_chunks(manifest: Manifest, examples: Iterable[ExportedExample]) -> Iterator[bytes]:
    """Yields the bytes of a Parquet file with the given examples, in chunks.

    Args:
        manifest: The manifest of the dataset.
        examples: The examples of a shard, in record order.
    """
    features = columns_of(manifest)
    plain = [feature.name for feature in features if not feature.shape and (feature.is_categorical or feature.is_plain)]
    dictionaries = [item.name for item in features if item.name in plain and (item.is_categorical or item.is_text)]
    schema, values = _schema(features), ExportedValues(manifest)
    sink = _Sink()
    with pq.ParquetWriter(sink, schema, use_dictionary=dictionaries, write_statistics=plain, **_WRITER) as writer:
        for group in _groups(examples):
            writer.write_table(_table(group, features, schema, values), row_group_size=_GROUP_ROWS)
            yield from sink.take()
    yield from sink.take()


def columns_of(manifest: Manifest) -> list[Feature]:
    """Returns the features in the order of the Parquet columns: `image`, the targets, then all other features."""
    first = (IMAGE, *manifest.targets)
    index = lambda name: first.index(name) if name in first else len(first)
    return sorted(manifest.schema, key=lambda item: (index(item.name.partition("/")[0]), item.name))


class _Sink(io.RawIOBase):
    """In-memory file for a Parquet writer."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._position = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def write(self, data: Any) -> int:
        self._chunks.append(bytes(data))
        self._position += len(self._chunks[-1])
        return len(self._chunks[-1])

    def take(self) -> list[bytes]:
        """Returns the bytes that have been written since the last call."""
        chunks, self._chunks = self._chunks, []
        return chunks


def _groups(examples: Iterable[ExportedExample]) -> Iterator[list[ExportedExample]]:
    """Divides examples into row groups. A shard without examples has one empty row group."""
    group: list[ExportedExample] = []
    num_bytes = 0
    for example in examples:
        group.append(example)
        num_bytes += len(example.data)
        if num_bytes >= _GROUP_BYTES or len(group) == _GROUP_ROWS:
            yield group
            group, num_bytes = [], 0
    yield group


def _schema(features: Sequence[Feature]) -> pa.Schema:
    types: dict[str, Any] = {}
    described: dict[str, Any] = {}
    for feature in features:
        if name := object_field(feature):
            types.setdefault(OBJECTS, {})[name] = _type(feature)
            described.setdefault(OBJECTS, {})[name] = _describe(feature)
        else:
            types[feature.name], described[feature.name] = _type(feature), _describe(feature)
    fields = [pa.field(name, pa.struct(item) if isinstance(item, dict) else item) for name, item in types.items()]
    return pa.schema(fields, {"huggingface": json.dumps({"info": {"features": described}}, ensure_ascii=False)})


def _type(feature: Feature) -> pa.DataType:
    if feature.is_file:
        return _IMAGE_TYPE
    value = pa.string() if feature.is_text else pa.from_numpy_dtype(_dtype_of(feature))
    for side in reversed(feature.shape):
        value = pa.list_(value) if side is None else pa.list_(value, side)
    return value


def _dtype_of(feature: Feature) -> np.dtype:
    return np.dtype("<f8") if feature.has_positions else dtype_of(feature)


def _describe(feature: Feature) -> dict[str, Any]:
    """Returns a feature in the format of https://huggingface.co/docs/datasets/about_dataset_features."""
    if feature.is_file:
        return {"_type": "Image"}
    described: dict[str, Any] = {"dtype": "string" if feature.is_text else _dtype_of(feature).name, "_type": "Value"}
    if feature.is_categorical:
        described = {"names": list(feature.label_names), "_type": "ClassLabel"}
    for side in reversed(feature.shape):
        described = {"feature": described, **({} if side is None else {"length": side}), "_type": "Sequence"}
    return described


def _table(examples: Sequence[ExportedExample], features: Sequence[Feature], schema: pa.Schema, values: ExportedValues) -> pa.Table:
    columns: dict[str, pa.Array] = {}
    of_objects: dict[str, pa.Array] = {}
    for feature in features:
        column = _column(feature, [values.of(feature, example) for example in examples], examples)
        if name := object_field(feature):
            of_objects[name] = column
        else:
            columns[feature.name] = column
    if of_objects:
        columns[OBJECTS] = pa.StructArray.from_arrays([*of_objects.values()], [*of_objects])
    return pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema)


def _column(feature: Feature, values: Sequence[Any], examples: Sequence[ExportedExample]) -> pa.Array:
    if feature.is_file:
        paths = [with_extension(safe_path(example.key), value) for example, value in zip(examples, values)]
        return pa.StructArray.from_arrays([pa.array(values, pa.binary()), pa.array(paths, pa.string())], ["bytes", "path"])
    if feature.is_text or None in feature.shape[1:]:
        return pa.array([entry if feature.is_text else entry.tolist() for entry in values], _type(feature))
    flat = np.concatenate([np.zeros(0, _dtype_of(feature)), *(item.ravel() for item in values)])
    column = pa.array(flat, pa.from_numpy_dtype(flat.dtype))
    for side in reversed(feature.shape):
        if side is not None:
            column = pa.FixedSizeListArray.from_arrays(column, side)
        else:  # Only the first dimension can be unknown.
            column = pa.ListArray.from_arrays(np.cumsum([0, *map(len, values)], dtype=np.int32), column)
    return column
