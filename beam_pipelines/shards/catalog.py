"""Encodes the catalog of a shard: a Parquet file for queries, with one row per example in record order.

    import duckdb
    duckdb.sql("select label, count(*), avg(num_bytes) from 'out/flowers/catalog/*.parquet' group by label")

| column | |
| --- | --- |
| `key`, `path` | the key of the example, and the source file of its image or row |
| `offset` | the offset of the image in that file; null for rows, whole files and compressed files |
| `num_bytes`, `crc32c` | size and checksum of the stored image, or of the serialized example without an image |
| `height`, `width` | size of the stored image; null if the image was not checked (`--check=none`) |
| `format`, `reencoded` | the format of the source image; the reason why the stored image differs |
| `group`, `weight` | group and weight, if the source has them |
| `content_hash` | with `--duplicates`: a hash of the source image's bytes |
| `perceptual_hash` | with `--duplicates`: a hash of the visible content; null for tensors or with `--exact_only` |
| `shard`, `record` | the path of the shard in the dataset, and the index of the record in the shard |
| each class feature | the class name, or a list of names; called `label_NAME` if NAME is already a column |
| each scalar number or string | the stored value, or null in a verbatim record that lacks it; called `feature_NAME` if NAME is already a column |
| `NAME_path` | the source file of each other image; called `image_NAME_path` if the name is already a column |

Equal rows produce equal bytes.
"""

import io
from typing import Any, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from beam_pipelines.elements.image_hashes import unpack_hashes
from beam_pipelines.elements.references import References, BinaryColumn
from beam_pipelines.shards.written_part import WrittenPart
from tf_input.dataset_format import HASH_COLUMNS, Feature, catalog_features

# All options that affect the bytes are set, because their defaults depend on the version of pyarrow.
_WRITER: Mapping[str, Any] = {
    "version": "2.6",
    "data_page_version": "1.0",
    "data_page_size": 1 << 20,
    "dictionary_pagesize_limit": 1 << 20,
    "row_group_size": 1 << 20,
    "compression": "zstd",
    "compression_level": 3,
    "write_statistics": True,
    "store_schema": False,
}


def encode_catalog(parts: Sequence[WrittenPart], shard: str, schema: Sequence[Feature]) -> bytes:
    """Returns the bytes of a shard's catalog.

    Args:
        parts: The parts of the shard, in order.
        shard: The name of the shard.
        schema: The schema of the dataset, or the catalog columns of verbatim records.
    """
    references = References.concatenate([_kept(part) for part in parts])
    num = len(references)
    sizes = np.concatenate([part.sizes for part in parts])
    has_sizes = sizes[:, 0] > 0
    offsets = references.rows["offset"]
    # After the run, spool files are deleted, so offsets in them are not stored.
    has_no_offset = (offsets < 0) | (references.rows["spool"] != 0)
    columns: dict[str, Any] = {
        "key": (keys := _strings(references.keys)),
        "path": pc.coalesce(_strings(references.paths), keys) if references.paths.blob else keys,
        "offset": pa.array(offsets, pa.int64(), mask=has_no_offset),
        "num_bytes": pa.array(np.concatenate([part.index["length"] for part in parts]), pa.uint32()),
        "crc32c": pa.array(np.concatenate([part.crcs for part in parts]), pa.uint32()),
        "height": pa.array(sizes[:, 0], pa.int32(), mask=~has_sizes),
        "width": pa.array(sizes[:, 1], pa.int32(), mask=~has_sizes),
        "format": _names([item for part in parts for item in part.formats]),
        "reencoded": _names([entry for part in parts for entry in part.reencoded]),
        "group": _strings(references.groups),
        "weight": _weights(parts, num),
        "shard": pa.DictionaryArray.from_arrays(np.zeros(num, np.int32), [shard] if num else pa.array([], pa.string())),
        "record": pa.array(np.arange(num), pa.int64()),
    }
    if (hashes := unpack_hashes(references.hashes)) is not None:
        columns |= dict(zip(HASH_COLUMNS, (pa.array(hashes.contents), _binary(hashes.visual_hashes, hashes.has_visual_hash))))
    for name, feature in catalog_features(schema).items():
        if feature.is_categorical:
            columns[name] = _labels([label for part in parts for label in part.labels[feature.name]], feature)
        else:
            columns[name] = _values([part.values[feature.name] for part in parts], feature)
    for image in parts[0].paths:
        name = f"{image}_path"
        while name in columns:
            name = f"image_{name}"
        columns[name] = pa.array([path for part in parts for path in part.paths[image]], pa.string())
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer, use_dictionary=list(_dictionaries(columns)), **_WRITER)
    return buffer.getvalue()


def _kept(part: WrittenPart) -> References:
    return part.references if len(part.kept) == len(part.references) else part.references.take(part.kept)


def _dictionaries(columns: Mapping[str, pa.Array]) -> Iterator[str]:
    """Yields the names of the Parquet columns that are dictionary-encoded."""
    for name, column in columns.items():
        if pa.types.is_dictionary(column.type):
            yield name
        elif pa.types.is_list(column.type):
            yield f"{name}.list.element"


def _strings(texts: BinaryColumn) -> pa.Array:
    """Converts byte strings to a string array. Empty strings become null."""
    ends = np.cumsum(texts.lengths, dtype=np.int64)
    offsets = np.concatenate([[0], ends]).astype(np.int64)
    present = np.packbits(texts.lengths > 0, bitorder="little")
    buffers = [pa.py_buffer(present), pa.py_buffer(offsets), pa.py_buffer(texts.blob)]
    return pa.Array.from_buffers(pa.large_string(), len(texts), buffers).cast(pa.string())


def _binary(words: np.ndarray, is_valid: np.ndarray) -> pa.Array:
    """Converts each row of a uint64 array [num_rows, num_words] to bytes. Invalid rows become null."""
    present = np.packbits(is_valid, bitorder="little")
    return pa.Array.from_buffers(
        pa.binary(words.itemsize * words.shape[1]),
        len(words),
        [pa.py_buffer(present), pa.py_buffer(words.astype("<u8").tobytes())],
    )


def _names(values: Sequence[str]) -> pa.Array:
    """Dictionary-encodes strings. Empty strings become null."""
    return pa.array([value or None for value in values], pa.string()).dictionary_encode()


def _weights(parts: Sequence[WrittenPart], num: int) -> pa.Array:
    weights = [weight for part in parts for weight in part.weights or ()]
    return pa.array(weights or [None] * num, pa.float32())


def _values(parts: Sequence[Sequence[Any]], feature: Feature) -> pa.Array:
    """Returns the value of a scalar feature for each example, as numbers or strings. None becomes null."""
    if feature.is_text:
        # Together, the strings can exceed 2 GiB, which requires the large type.
        return pa.array([item for part in parts for item in part], pa.large_binary()).view(pa.large_string())
    dtype, is_null = "<f4" if feature.storage == "float" else np.int64, [item is None for part in parts for item in part]
    numbers = [np.array([0 if item is None else item for item in part], dtype).reshape(-1) for part in parts]
    return pa.array(np.concatenate(numbers), mask=np.array(is_null, bool))


def _labels(values: Sequence[Any], feature: Feature) -> pa.Array:
    """Returns the class name, or the list of class names, of each example."""
    if not feature.shape:
        return _label_names(np.array(values, np.int64).reshape(-1), feature)
    lengths = [len(value) for value in values]
    flat = np.array([label for others in values for label in others], np.int64)
    return pa.ListArray.from_arrays(
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32), _label_names(flat, feature).cast(pa.string())
    )


def _label_names(labels: np.ndarray, feature: Feature) -> pa.DictionaryArray:
    """Dictionary-encodes class names."""
    used_labels, indices = np.unique(labels, return_inverse=True)
    names = pa.array([feature.label_names[label] for label in used_labels.tolist()], pa.string())
    return pa.DictionaryArray.from_arrays(indices.astype(np.int32), names)
