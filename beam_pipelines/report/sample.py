"""Reads the first examples of each split from catalogs. Examples are shuffled, so this is a uniform sample."""

import dataclasses
import itertools
from typing import Any, Iterable, Iterator, NamedTuple

import numpy as np
import pyarrow as pa

from beam_pipelines.elements.catalog_files import read_catalog
from beam_pipelines.errors import UserError, printable
from beam_pipelines.parallel.read_ahead import read_ahead
from beam_pipelines.storage.files import files_at, is_remote
from beam_pipelines.tfrecord.record_reader import HEADER_BYTES
from tf_input.dataset_format import INDEX_HEADER, INDEX_ROW, Feature, Manifest, ShardInfo, catalog_features, read_index_header
from tf_input.serialized_example import SerializedExample

MAX_ROWS = 20_000  # Maximum for all splits together. Reading the rows takes 0.02 s and a few megabytes.
_MIN_ROWS = 2_000  # Minimum for each split, if the split has that many rows.
_MAX_EXAMPLE_BYTES = 32 << 20  # Larger examples are not read, so the report does not show them.
_FOOTER_BYTES = 4
_INDEX_ROW = np.dtype("<u8, <u8, <u4, <i4")

# Catalog columns to read in addition to the classes.
_READ_COLUMNS = ("key", "path", "offset", "num_bytes", "height", "width")


class ExampleLocation(NamedTuple):
    """The location of an example: split index, shard index within the split, and record index within the shard."""

    split: int
    shard: int
    record: int


class Labels(NamedTuple):
    """The classes of the sampled examples, for one class feature.

    Attributes:
        rows: The rows of the sample that have a label, in ascending order, int64 [num_labels].
        names: The names of the classes that occur.
        codes: The index of each label's class in `names`, int64 [num_labels].
    """

    rows: np.ndarray
    names: list[str]
    codes: np.ndarray

    def first_rows(self, num: int, num_rows: int) -> dict[str, list[int]]:
        """Returns the first `num` sampled rows of each class."""
        pairs = np.unique(self.codes * num_rows + self.rows)
        codes, rows = np.divmod(pairs, max(num_rows, 1))
        rank = np.arange(len(codes)) - np.searchsorted(codes, codes)
        rows_by_name: dict[str, list[int]] = {}
        for code, row in zip(codes[rank < num].tolist(), rows[rank < num].tolist()):
            rows_by_name.setdefault(self.names[code], []).append(row)
        return rows_by_name


@dataclasses.dataclass(frozen=True)
class Sample:
    """The first examples of each split, in the order of the splits.

    Attributes:
        directory: The directory of the dataset.
        manifest: The manifest of the dataset.
        table: A table with a row for each example. It has the columns `key`, `path`, `offset`, `num_bytes`, `height`
            and `width`, and the classes. Without catalogs, it has no columns.
        splits: The index of each example's split, int64 [num_rows].
        shards: The index of each example's shard in its split, int64 [num_rows].
        records: The index of each example in its shard, int64 [num_rows].
    """

    directory: str
    manifest: Manifest
    table: pa.Table
    splits: np.ndarray
    shards: np.ndarray
    records: np.ndarray

    def __len__(self) -> int:
        return len(self.records)

    def split_names(self) -> list[str]:
        """Returns the names of the splits."""
        return list(self.manifest.splits)

    def labels(self, feature: Feature) -> Labels | None:
        """Returns the classes of the sampled examples for a feature. Returns None if the catalogs do not contain it."""
        name = _column_names(self.manifest)[feature.name]
        if name not in self.table.column_names:
            return None
        column = self.table[name].combine_chunks()
        rows = np.arange(len(column))
        if pa.types.is_list(column.type):
            lengths = np.diff(column.offsets.to_numpy())
            rows, column = np.repeat(rows, lengths), column.flatten()
        encoded = column.dictionary_encode()
        return Labels(rows, encoded.dictionary.to_pylist(), encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64))

    def numbers(self, name: str) -> np.ndarray | None:
        """Returns a numeric column, int64 [num_rows], or None if it does not exist. Unknown values are -1."""
        # A feature with this name hides the column.
        if name not in self.table.column_names or name in catalog_features(self.manifest.schema):
            return None
        return self.table[name].cast(pa.int64()).fill_null(-1).to_numpy()

    def texts(self, name: str, rows: Any) -> list[str]:
        """Returns the values of a string column in the given rows. Unknown values are empty strings."""
        if name not in self.table.column_names:
            return [""] * len(rows)
        return [text or "" for text in self.table[name].take(pa.array(rows, pa.int64())).to_pylist()]

    def location(self, row: int) -> ExampleLocation:
        """Returns the location of a sampled example."""
        return ExampleLocation(int(self.splits[row]), int(self.shards[row]), int(self.records[row]))


def read_examples(directory: str, manifest: Manifest, locations: Iterable[ExampleLocation]) -> Iterator[tuple[ExampleLocation, SerializedExample | None]]:
    """Yields the examples at the given locations, in the order of their shards.

    An example that is too large for the report is replaced with None.

    Raises:
        UserError: An index has too few rows.
        OSError: An index or shard cannot be read.
    """
    splits, wanted = list(manifest.splits.values()), []
    for (split, shard), in_shard in itertools.groupby(sorted(locations), lambda location: location[:2]):
        info = splits[split][shard]
        offsets = _record_offsets(directory, info)
        for location in in_shard:
            if location.record + 1 >= len(offsets):
                problem = f"{printable(info.index)} has {len(offsets) - 1} rows instead of {info.num_examples}"
                raise UserError(f"{problem}. Run `recordmill verify` for details.")
            start, end = int(offsets[location.record]) + HEADER_BYTES, int(offsets[location.record + 1]) - _FOOTER_BYTES
            wanted.append(((location, f"{directory}/{info.name}", start, end - start), max(end - start, 1)))
    return read_ahead(_read_example, wanted) if is_remote(directory) else (_read_example(item) for item, _ in wanted)


def _read_example(wanted: tuple[ExampleLocation, str, int, int]) -> tuple[ExampleLocation, SerializedExample | None]:
    location, path, start, num_bytes = wanted
    if not 0 <= num_bytes <= _MAX_EXAMPLE_BYTES:
        return location, None
    return location, SerializedExample(files_at(path).read_range(path, start, num_bytes))


def _record_offsets(directory: str, info: ShardInfo) -> np.ndarray:
    """Returns the offset of each record and the end of the last record in bytes, uint64 [num_records + 1]."""
    path = f"{directory}/{info.index}"
    data = files_at(path).read(path)
    try:
        read_index_header(data[: INDEX_HEADER.size], len(data))
    except ValueError as error:
        raise UserError(f"{printable(path)} is corrupt: {error}. Run `recordmill verify` for details.") from None
    assert _INDEX_ROW.itemsize == INDEX_ROW.size
    rows = np.frombuffer(data, _INDEX_ROW, offset=INDEX_HEADER.size)
    return np.append(rows["f0"], np.uint64(info.num_bytes))


def read_sample(directory: str, manifest: Manifest) -> Sample:
    """Reads the catalogs of the first shards of each split until the sample is large enough.

    Raises:
        UserError: A catalog is corrupt.
        OSError: A catalog cannot be read.
    """
    wanted = [*_READ_COLUMNS, *_column_names(manifest).values()]
    most = max(_MIN_ROWS, MAX_ROWS // max(len(manifest.splits), 1))
    read_shards, infos = [], []
    for split, shards in enumerate(manifest.splits.values()):
        num_left = most
        for shard, info in enumerate(shards):
            if num_left > 0 and info.num_examples:
                read_shards.append((split, shard, min(num_left, info.num_examples)))
                infos.append(info)
                num_left -= info.num_examples
    read = lambda index: _read_catalog(directory, infos[index[0]], index[1], wanted)
    items = [((index, num), infos[index].catalog_bytes) for index, (_, _, num) in enumerate(read_shards)]
    tables = list(read_ahead(read, items) if is_remote(directory) else (read(item) for item, _ in items))
    lengths = [num for _, _, num in read_shards]
    repeated = [np.repeat(np.array([index[part] for index in read_shards], np.int64), lengths) for part in range(2)]
    records = np.concatenate([np.zeros(0, np.int64), *map(np.arange, lengths)])
    table = pa.concat_tables(tables, promote_options="default") if tables else pa.table({})
    table = table.combine_chunks()
    return Sample(directory, manifest, table, *repeated, records)


def read_keys(directory: str, info: ShardInfo) -> list[str]:
    """Returns the keys of a shard in the order of its records.

    Raises:
        UserError: The catalog of the shard is corrupt.
        OSError: The catalog cannot be read.
    """
    return _read_catalog(directory, info, info.num_examples, ["key"])["key"].to_pylist()


def _read_catalog(directory: str, info: ShardInfo, num_rows: int, columns: list[str]) -> pa.Table:
    """Reads the first rows of a catalog, with the given columns if they exist. Without a catalog, the table is empty.
    """
    if not info.catalog:
        return pa.table({})
    path = f"{directory}/{info.catalog}"
    try:
        return read_catalog(path, info.num_examples, columns).slice(0, num_rows)
    except ValueError as error:
        raise UserError(f"{printable(path)} is corrupt: {error}. Run `recordmill verify` for details.") from None


def _column_names(manifest: Manifest) -> dict[str, str]:
    """Returns a mapping from each class feature to the name of its catalog column."""
    return {feature.name: name for name, feature in catalog_features(manifest.schema).items() if feature.is_categorical}
