"""Creates a table with the split, key, labels, group and hashes of each image in one or more datasets."""

import dataclasses
from typing import Mapping, Sequence

import numpy as np
import pyarrow as pa

from beam_pipelines.elements.label_conflicts import Label
from beam_pipelines.images.visual_groups import HASH_ROW
from beam_pipelines.images.perceptual_hash import HASH_WORDS
from beam_pipelines.elements.catalog_files import read_catalog
from tf_input.dataset_format import HASH_COLUMNS, Feature, Manifest, catalog_features


@dataclasses.dataclass(frozen=True)
class ImageTable:
    """A table of the images in one or more datasets, with one row per image.

    Attributes:
        parts: The names of the splits. With several datasets, the name of the dataset is a prefix.
        of_images: The index of each image's split in `parts`, int64 [num_images].
        keys: The key of each image, string [num_images].
        labels: A mapping from class feature to the label of each image, string or list [num_images]. Null if unknown.
        groups: The group of each image, string [num_images]. Null if it has no group.
        hashes: The hashes of each image, `HASH_ROW` [num_images].
        numbers: The names of class features with integer labels, which cannot be compared with other datasets.
        are_as_stored: Whether the content hashes of images without a perceptual hash are hashes of the stored bytes.
            Catalogs contain hashes of the source bytes.
    """

    parts: tuple[str, ...]
    of_images: np.ndarray
    keys: pa.ChunkedArray
    labels: Mapping[str, pa.ChunkedArray]
    groups: pa.ChunkedArray
    hashes: np.ndarray
    numbers: frozenset[str] = frozenset()
    are_as_stored: bool = True

    @property
    def sizes(self) -> np.ndarray:
        """The number of images in each split, int64 [num_parts]."""
        return np.bincount(self.of_images, minlength=len(self.parts))


def join_tables(tables: Sequence[ImageTable]) -> ImageTable:
    """Concatenates tables."""
    firsts = np.cumsum([0, *(len(table.parts) for table in tables)])
    names = dict.fromkeys(name for table in tables for name in table.labels)
    return ImageTable(
        tuple(part for table in tables for part in table.parts),
        np.concatenate([np.zeros(0, np.int64), *(table.of_images + first for table, first in zip(tables, firsts))]),
        _join([table.keys for table in tables]),
        {name: _join([table.labels.get(name, _nulls(len(table.keys))) for table in tables]) for name in names},
        _join([table.groups for table in tables]),
        np.concatenate([np.zeros(0, HASH_ROW), *(table.hashes for table in tables)]),
        frozenset().union(*(table.numbers for table in tables)),
        all(table.are_as_stored for table in tables),
    )


def _join(columns: Sequence[pa.ChunkedArray]) -> pa.ChunkedArray:
    """Concatenates columns of strings or of lists of strings."""
    kind = next((column.type for column in columns if pa.types.is_list(column.type)), pa.string())
    chunks = [chunk for column in columns for chunk in column.chunks]
    return pa.chunked_array([chunk if chunk.type == kind else _as_lists(chunk) for chunk in chunks], kind)


def _as_lists(texts: pa.Array) -> pa.Array:
    """Converts each string to a list with one string. Nulls stay null."""
    return pa.ListArray.from_arrays(pa.array(np.arange(len(texts) + 1), pa.int32()), texts, mask=texts.is_null())


def _nulls(num: int) -> pa.ChunkedArray:
    return pa.chunked_array([pa.nulls(num, pa.string())])


def make_table(
    part: str, keys: Sequence[str], labels: Mapping[str, Sequence[Label | None]], groups: pa.ChunkedArray | None, hashes: np.ndarray
) -> ImageTable:
    """Creates the table of one split."""
    columns = {}
    for name, values in labels.items():
        has_lists = any(isinstance(value, tuple) for value in values)
        columns[name] = pa.chunked_array([pa.array(values, pa.list_(pa.string()) if has_lists else pa.string())])
    names, groups = pa.chunked_array([pa.array(keys, pa.string())]), _nulls(len(keys)) if groups is None else groups
    return ImageTable((part,), np.zeros(len(hashes), np.int64), names, columns, groups, hashes)


def read_table(directory: str, manifest: Manifest) -> ImageTable | None:
    """Reads the table of a dataset from its catalogs. Returns None if the catalogs have no image hashes.

    Raises:
        OSError: A catalog cannot be read.
        ValueError: A catalog is corrupt.
    """
    tables = []
    for split, shards in manifest.splits.items():
        for shard in shards:
            catalog = read_catalog(f"{directory}/{shard.catalog}") if shard.catalog else None
            if catalog is None or not set(HASH_COLUMNS) <= set(catalog.column_names):
                return None
            rows, is_other = _hash_rows(catalog), catalog.column("reencoded").is_valid().to_numpy()
            are_as_stored = not (is_other & ~rows["has_visual_hash"]).any()
            part_numbers, names = np.zeros(catalog.num_rows, np.int64), catalog_names(catalog, manifest.schema)
            tables.append(ImageTable((split,), part_numbers, *names, rows, are_as_stored=are_as_stored))
    return join_parts(tables)


def join_parts(tables: Sequence[ImageTable]) -> ImageTable:
    """Concatenates tables and merges splits with the same name."""
    joined = join_tables(tables)
    names = tuple(dict.fromkeys(joined.parts))
    part_numbers = np.array([names.index(part) for part in joined.parts] or [0], np.int64)
    return dataclasses.replace(joined, parts=names, of_images=part_numbers[joined.of_images])


def catalog_names(catalog: pa.Table, schema: Sequence[Feature]) -> tuple[pa.ChunkedArray, dict[str, pa.ChunkedArray], pa.ChunkedArray]:
    """Returns the key, the labels and the group of each example in a catalog."""
    labels = {}
    for name, feature in catalog_features(schema).items():
        if feature.is_categorical:
            column = catalog.column(name)
            labels[feature.name] = column.cast(pa.list_(pa.string()) if pa.types.is_list(column.type) else pa.string())
    return catalog.column("key").cast(pa.string()), labels, catalog.column("group").cast(pa.string())


def _hash_rows(catalog: pa.Table) -> np.ndarray:
    content, look = (catalog.column(name) for name in HASH_COLUMNS)
    rows = np.zeros(catalog.num_rows, HASH_ROW)
    rows["content"][:, 0] = content.to_numpy()
    rows["has_visual_hash"] = has_visual_hash = look.is_valid().to_numpy()
    known = look.drop_null().combine_chunks().cast(pa.binary(8 * HASH_WORDS))
    rows["visual_hash"][has_visual_hash] = np.frombuffer(
        known.buffers()[1], "<u8", len(known) * HASH_WORDS, known.offset * 8 * HASH_WORDS
    ).reshape(-1, HASH_WORDS)
    return rows
