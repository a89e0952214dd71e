"""Reads the labels of a prepared dataset from its index files and catalog files, without reading records."""

from typing import Iterator

import numpy as np
import pyarrow as pa

from beam_pipelines.elements.catalog_files import parse_catalog
from beam_pipelines.errors import StorageError, UserError, did_you_mean, printable
from beam_pipelines.quality.measures import LabelOrder
from beam_pipelines.quality.split_labels import NUM_PARTS, SplitLabels, label_of_set, parts_of, shards_of
from beam_pipelines.storage.files import files_at, is_remote
from tf_input.dataset_format import (
    INDEX_HEADER,
    INDEX_ROW,
    LABEL,
    MANIFEST,
    OBJECTS,
    IndexRow,
    Manifest,
    ShardInfo,
    read_index_header,
    decode_manifest,
)

_ROW = np.dtype({"names": IndexRow._fields, "formats": ["<u8", "<u8", "<u4", "<i4"], "itemsize": INDEX_ROW.size})
_SOURCE_LOCATION = ("path", "offset")  # Catalog columns that locate an example in its source.


def is_prepared_dataset(path: str) -> bool:
    """Returns whether a path is a dataset that was prepared by Recordmill."""
    return files_at(path).exists(f"{path}/{MANIFEST}")


def read_dataset_labels(directory: str, label: str | None) -> Iterator[SplitLabels]:
    """Yields the labels of each split that has examples.

    Args:
        directory: The directory of the dataset.
        label: The class feature to read. None selects `label`, the object label or the first class feature.

    Raises:
        UserError: A file is missing, corrupt or has another version, or the feature does not exist.
        StorageError: The object store failed.
    """
    path = f"{directory}/{MANIFEST}"
    try:
        manifest = decode_manifest(_read(path), path)
    except ValueError as error:
        raise UserError(printable(str(error))) from None
    feature = _choose(manifest, label, directory)
    for split, shards in manifest.splits.items():
        if any(shard.num_examples for shard in shards):
            yield _SplitReader(directory, split, shards).read(feature, manifest)


def _choose(manifest: Manifest, label: str | None, directory: str) -> str | None:
    """Returns the class feature to read, or None if the dataset has no classes."""
    class_features = [feature.name for feature in manifest.schema if feature.is_categorical]
    if label is None:
        return next((name for name in (LABEL, f"{OBJECTS}/{LABEL}", *class_features) if name in class_features), None)
    if label not in class_features:
        has = (
            f"The features with classes are {', '.join(map(printable, class_features))}"
            if class_features
            else "The dataset has no classes"
        )
        raise UserError(
            f"--label={printable(label)}: {printable(directory)} has no such classes. {has}{did_you_mean(label, class_features)}"
        )
    return label


class _SplitReader:
    """Reads the index files and catalog files of all shards of a split."""

    def __init__(self, directory: str, split: str, shards: tuple[ShardInfo, ...]) -> None:
        self._directory, self._split = directory, split
        self._shards = [shard for shard in shards if shard.num_examples]
        self._has_catalog = all(shard.catalog for shard in self._shards)

    def read(self, feature: str | None, manifest: Manifest) -> SplitLabels:
        index = np.concatenate([self._read_index(shard) for shard in self._shards])
        is_indexed = feature == LABEL and not manifest.features[LABEL].shape
        column = None if feature is None or is_indexed else feature
        table = self._read_catalogs(column) if self._has_catalog else None
        notes = [] if table is not None else ["no catalog with the source paths: the order of the source is not compared"]
        if is_indexed:
            labels, labels_are = index["label"], LABEL
        elif column is not None and table is not None:
            labels, labels_are = _labels(table.column(0)), column
        else:
            labels, labels_are = parts_of(index["image_length"]), f"size, in {NUM_PARTS} ranges"
            notes.append("no classes: the order of the sizes is tested instead")
        shards = shards_of([shard.num_examples for shard in self._shards])
        order = LabelOrder(labels, shards, None if table is None else _source_order(table))
        return SplitLabels(self._split, labels_are, order, tuple(shard.name for shard in self._shards), tuple(notes))

    def _read_index(self, shard: ShardInfo) -> np.ndarray:
        path = f"{self._directory}/{shard.index}"
        data = _read(path)
        try:
            num_rows = read_index_header(data[: INDEX_HEADER.size], len(data)).num_rows
            if num_rows != shard.num_examples:
                raise ValueError(f"{num_rows} rows instead of {shard.num_examples}, as {MANIFEST} states")
        except ValueError as error:
            raise UserError(f"{printable(path)} is corrupt: {error}. Run `recordmill verify` for details.") from None
        return np.frombuffer(data, _ROW, num_rows, INDEX_HEADER.size)

    def _read_catalogs(self, column: str | None) -> pa.Table:
        """Returns the source locations of all examples. If a feature is given, its values are the first column."""
        parts = []
        for shard in self._shards:
            path = f"{self._directory}/{shard.catalog}"
            data = _read(path)
            try:
                # A class feature with the name of a catalog column is stored under another name.
                names = [f"label_{column}", column] if column else []
                table = parse_catalog(data, shard.num_examples, [*names, *_SOURCE_LOCATION])
                wanted = [name for name in names if name in table.column_names][:1] if column else []
                parts.append(table.select([*wanted, *_SOURCE_LOCATION]))
            except (ValueError, KeyError) as error:
                raise UserError(f"{printable(path)} is corrupt: {error}. Run `recordmill verify` for details.") from None
        return pa.concat_tables(parts)


def _labels(column: pa.ChunkedArray) -> np.ndarray:
    """Returns one integer per example, which identifies its class or its set of classes."""
    values = column.combine_chunks()
    if not pa.types.is_list(values.type):
        return values.dictionary_encode().indices.fill_null(-1).to_numpy(zero_copy_only=False)
    codes = values.flatten().dictionary_encode().indices.to_numpy(zero_copy_only=False).tolist()
    ends = np.cumsum(values.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)).tolist()
    return np.array([label_of_set(codes[start:end]) for start, end in zip([0, *ends], ends)])


def _source_order(table: pa.Table) -> np.ndarray | None:
    """Returns the rank of each example in source order, or None if the catalog has no source locations."""
    paths = table.column("path").combine_chunks().dictionary_encode()
    names = np.array([name or "" for name in paths.dictionary.to_pylist()], object)
    ranks = np.empty(len(names) + 1, np.int64)
    ranks[np.argsort(names, kind="stable")] = np.arange(len(names))
    ranks[-1] = -1
    offsets = table.column("offset").combine_chunks().cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
    pairs = np.stack([ranks[paths.indices.fill_null(-1).to_numpy(zero_copy_only=False)], offsets])
    order = np.lexsort(pairs[::-1])
    differs = np.any(pairs[:, order[1:]] != pairs[:, order[:-1]], axis=0)
    example_ranks = np.empty(len(order), np.int64)
    example_ranks[order] = np.concatenate([[0], np.cumsum(differs)])
    return example_ranks if differs.any() else None


def _read(path: str) -> bytes:
    try:
        return files_at(path).read(path)
    except OSError as error:
        if is_remote(path) and not isinstance(error, FileNotFoundError):
            raise StorageError(f"{printable(path)} could not be read: {error.strerror or error}", path) from error
        raise UserError(f"{printable(path)}: {error.strerror or error}. Run `recordmill verify` for details.") from None
