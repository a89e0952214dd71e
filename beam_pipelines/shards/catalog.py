"""The catalog: beside each shard a Parquet file with one row an example, in record order. It is what people query.

    import duckdb
    duckdb.sql("select label, count(*), avg(num_bytes) from 'out/flowers/catalog/*.parquet' group by label")

| column | |
| --- | --- |
| `key`, `path` | the example, and the file where its image or row lay |
| `offset` | where the image lay in that file; none of a row, or where the file was the image, or is compressed |
| `num_bytes`, `crc32c` | of the image as stored, else of the serialized example |
| `height`, `width` | of the image as stored; none where nobody looked (`--check=none`) |
| `format`, `reencoded` | what the source's bytes were; why the stored ones are others |
| `group`, `weight` | where they were given |
| `content_hash` | with `--duplicates`: of the bytes at the source |
| `perceptual_hash` | with `--duplicates`: of what is seen; none where nothing is to be seen, or with `--exact_only` |
| `shard`, `record` | the file that it is in, within the data set, and its place there |
| each feature with class names | the name, or a list of names; `label_NAME` where NAME is that of another column |
| each number and text of one value | as the record has it; `feature_NAME` where NAME is that of another column |
| `NAME_path` | of each other image, the file where it lay; `image_NAME_path` where that is the name of another column |

The same rows give the same bytes.
"""

import io
from typing import Any, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from beam_pipelines.elements.image_hashes import unpack_hashes
from beam_pipelines.elements.references import References, Texts
from beam_pipelines.shards.shard_writer import WrittenPart
from beam_pipelines.storage.files import files_at
from tf_input.dataset_format import HASH_COLUMNS, Feature, catalog_features

# None is left to the defaults of a version of pyarrow that other bytes would come of.
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
    """The bytes of a shard's catalog.

    Args:
        parts: The parts of the shard, in order.
        shard: The name of the shard.
        schema: The schema of the data set.
    """
    references = References.concatenate([_kept(part) for part in parts])
    num = len(references)
    sizes = np.concatenate([part.sizes for part in parts])
    has_sizes = sizes[:, 0] > 0
    offsets = references.rows["offset"]
    has_no_offset = (offsets < 0) | (references.rows["spool"] != 0)  # else it is one in a spool that is gone
    columns: dict[str, Any] = {
        "key": (keys := _strings(references.keys)),
        "path": pc.coalesce(_strings(references.paths), keys) if references.paths.blob else keys,
        "offset": pa.array(offsets, pa.int64(), mask=has_no_offset),
        "num_bytes": pa.array(np.concatenate([part.index["length"] for part in parts]), pa.uint32()),
        "crc32c": pa.array(np.concatenate([part.crcs for part in parts]), pa.uint32()),
        "height": pa.array(sizes[:, 0], pa.int32(), mask=~has_sizes),
        "width": pa.array(sizes[:, 1], pa.int32(), mask=~has_sizes),
        "format": _names([one for part in parts for one in part.formats]),
        "reencoded": _names([one for part in parts for one in part.reencoded]),
        "group": _strings(references.groups),
        "weight": _weights(parts, num),
        "shard": pa.DictionaryArray.from_arrays(np.zeros(num, np.int32), [shard] if num else pa.array([], pa.string())),
        "record": pa.array(np.arange(num), pa.int64()),
    }
    if (hashes := unpack_hashes(references.hashes)) is not None:
        columns |= dict(zip(HASH_COLUMNS, (pa.array(hashes.contents), _binary(hashes.looks, hashes.has_look))))
    for name, feature in catalog_features(schema).items():
        if feature.kind == "class_label":
            columns[name] = _labels([one for part in parts for one in part.labels[feature.name]], feature)
        else:
            columns[name] = _values([part.values[feature.name] for part in parts], feature)
    for image in parts[0].paths:
        name = f"{image}_path"
        while name in columns:
            name = f"image_{name}"
        columns[name] = pa.array([one for part in parts for one in part.paths[image]], pa.string())
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer, use_dictionary=list(_dictionaries(columns)), **_WRITER)
    return buffer.getvalue()


def _kept(part: WrittenPart) -> References:
    return part.references if len(part.kept) == len(part.references) else part.references.take(part.kept)


def read_catalog(path: str) -> pa.Table:
    """Reads the catalog of a shard from its path, one row an example in record order.

    Raises:
        OSError: It can't be read.
        ValueError: It is damaged.
    """
    return pq.ParquetFile(pa.BufferReader(files_at(path).read(path))).read()


def _dictionaries(columns: Mapping[str, pa.Array]) -> Iterator[str]:
    """The columns, as Parquet names them, whose values come again and again."""
    for name, column in columns.items():
        if pa.types.is_dictionary(column.type):
            yield name
        elif pa.types.is_list(column.type):
            yield f"{name}.list.element"


def _strings(texts: Texts) -> pa.Array:
    """Null where they are empty."""
    ends = np.cumsum(texts.lengths, dtype=np.int64)
    offsets = np.concatenate([[0], ends]).astype(np.int64)
    present = np.packbits(texts.lengths > 0, bitorder="little")
    buffers = [pa.py_buffer(present), pa.py_buffer(offsets), pa.py_buffer(texts.blob)]
    return pa.Array.from_buffers(pa.large_string(), len(texts), buffers).cast(pa.string())


def _binary(words: np.ndarray, is_valid: np.ndarray) -> pa.Array:
    """The bytes of each row, from uint64 [num, num_words]; null where it is not valid."""
    present = np.packbits(is_valid, bitorder="little")
    return pa.Array.from_buffers(
        pa.binary(words.itemsize * words.shape[1]),
        len(words),
        [pa.py_buffer(present), pa.py_buffer(words.astype("<u8").tobytes())],
    )


def _names(values: Sequence[str]) -> pa.Array:
    """Null where they are empty."""
    return pa.array([value or None for value in values], pa.string()).dictionary_encode()


def _weights(parts: Sequence[WrittenPart], num: int) -> pa.Array:
    weights = [weight for part in parts for weight in part.weights or ()]
    return pa.array(weights or [None] * num, pa.float32())


def _values(parts: Sequence[Sequence[Any]], feature: Feature) -> pa.Array:
    """The numbers or texts of each example, as its record has them."""
    if feature.kind == "text":
        # Large, since there may be gigabytes of them.
        return pa.array([one for part in parts for one in part], pa.large_binary()).view(pa.large_string())
    return pa.array(np.concatenate([np.array(part, "<f4" if feature.kind == "float" else np.int64).reshape(-1) for part in parts]))


def _labels(values: Sequence[Any], feature: Feature) -> pa.Array:
    """The class names of each example: one, or a list of them."""
    if not feature.shape:
        return _label_names(np.array(values, np.int64).reshape(-1), feature)
    lengths = [len(those) for those in values]
    flat = np.array([label for those in values for label in those], np.int64)
    return pa.ListArray.from_arrays(
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32), _label_names(flat, feature).cast(pa.string())
    )


def _label_names(labels: np.ndarray, feature: Feature) -> pa.DictionaryArray:
    """With the names that occur alone: there may be a million others."""
    found, places = np.unique(labels, return_inverse=True)
    names = pa.array([feature.label_names[label] for label in found.tolist()], pa.string())
    return pa.DictionaryArray.from_arrays(places.astype(np.int32), names)
