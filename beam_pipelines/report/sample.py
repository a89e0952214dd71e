"""The first examples of each split, from the catalogs: a uniform sample, since a split lies in a random order."""

import dataclasses
import itertools
from typing import Any, Iterable, Iterator, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from beam_pipelines.errors import UserError, printable
from beam_pipelines.parallel.read_ahead import read_ahead
from beam_pipelines.storage.files import files_at, is_remote
from beam_pipelines.tfrecord.example_reader import ExampleReader
from beam_pipelines.tfrecord.record_reader import HEADER_BYTES
from tf_input.dataset_format import INDEX_HEADER, INDEX_ROW, Feature, Manifest, ShardInfo, catalog_features, read_index_header

MAX_ROWS = 20_000  # of all splits together: 0.02 s, and some megabytes
_MIN_ROWS = 2_000  # of a split, if it has so many
_MAX_EXAMPLE_BYTES = 32 << 20  # of one that is read: a larger one is not shown
_FOOTER_BYTES = 4
_INDEX_ROW = np.dtype("<u8, <u8, <u4, <i4")

# What is read of a catalog, beside the classes.
_READ_COLUMNS = ("key", "path", "offset", "num_bytes", "height", "width")


class Place(NamedTuple):
    """Where an example is: its split, its shard in that split, and its record in that shard, each by its number."""

    split: int
    shard: int
    record: int


class Labels(NamedTuple):
    """The classes of the sample, of one feature.

    Attributes:
        rows: The rows of the sample that have a label, ascending, int64 [num_labels].
        names: The names of the classes that occur.
        codes: int64 [num_labels], positions in `names`.
    """

    rows: np.ndarray
    names: list[str]
    codes: np.ndarray

    def first_rows(self, num: int, num_rows: int) -> dict[str, list[int]]:
        """Class -> the first rows that have it, at most so many; `num_rows` is the size of the sample."""
        pairs = np.unique(self.codes * num_rows + self.rows)
        codes, rows = np.divmod(pairs, max(num_rows, 1))
        rank = np.arange(len(codes)) - np.searchsorted(codes, codes)
        found: dict[str, list[int]] = {}
        for code, row in zip(codes[rank < num].tolist(), rows[rank < num].tolist()):
            found.setdefault(self.names[code], []).append(row)
        return found


@dataclasses.dataclass(frozen=True)
class Sample:
    """The first examples of each split, the splits one behind the other.

    Attributes:
        directory: The directory of the data set.
        manifest: The manifest of the data set.
        table: A row for each example: `key`, `path`, `offset`, `num_bytes`, `height`, `width`, and the classes; without any column where
            the data set has no catalogs.
        splits: The place of each example's split, int64 [num_rows].
        shards: The place of each example's shard in that split, int64 [num_rows].
        records: The place of each example in that shard, int64 [num_rows].
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
        """The names of the splits of the data set."""
        return list(self.manifest.splits)

    def labels(self, feature: Feature) -> Labels | None:
        """The classes of a feature; None where no catalog has them."""
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
        """int64 [num_rows] of a column that is no feature, -1 where it is not known; None where no catalog has it."""
        if name not in self.table.column_names or name in catalog_features(self.manifest.schema):  # a feature that is called so
            return None
        return self.table[name].cast(pa.int64()).fill_null(-1).to_numpy()

    def texts(self, name: str, rows: Any) -> list[str]:
        """The texts of a column in some rows; empty where they are not known."""
        if name not in self.table.column_names:
            return [""] * len(rows)
        return [text or "" for text in self.table[name].take(pa.array(rows, pa.int64())).to_pylist()]

    def place(self, row: int) -> Place:
        """Where an example of the sample is."""
        return Place(int(self.splits[row]), int(self.shards[row]), int(self.records[row]))


def read_places(directory: str, manifest: Manifest, places: Iterable[Place]) -> Iterator[tuple[Place, ExampleReader | None]]:
    """Some examples with their places, in the order of the shards; None of one that is too large to be read for a page.

    Raises:
        UserError: An index has too few rows.
        OSError: It, or a shard, can't be read.
    """
    splits, wanted = list(manifest.splits.values()), []
    for (split, shard), in_shard in itertools.groupby(sorted(places), lambda place: place[:2]):
        info = splits[split][shard]
        offsets = _record_offsets(directory, info)
        for place in in_shard:
            if place.record + 1 >= len(offsets):
                found = f"{printable(info.index)} has {len(offsets) - 1} rows"
                raise UserError(f"{found}; expected {info.num_examples} (see `recordmill verify`)")
            start, end = int(offsets[place.record]) + HEADER_BYTES, int(offsets[place.record + 1]) - _FOOTER_BYTES
            wanted.append(((place, f"{directory}/{info.name}", start, end - start), max(end - start, 1)))
    return read_ahead(_read_example, wanted) if is_remote(directory) else (_read_example(one) for one, _ in wanted)


def _read_example(wanted: tuple[Place, str, int, int]) -> tuple[Place, ExampleReader | None]:
    place, path, start, num_bytes = wanted
    if not 0 <= num_bytes <= _MAX_EXAMPLE_BYTES:
        return place, None
    return place, ExampleReader(files_at(path).read_range(path, start, num_bytes))


def _record_offsets(directory: str, info: ShardInfo) -> np.ndarray:
    """uint64 [num_records + 1]: where each record begins, and the last one ends."""
    path = f"{directory}/{info.index}"
    data = files_at(path).read(path)
    try:
        read_index_header(data[: INDEX_HEADER.size], len(data))
    except ValueError as error:
        raise UserError(f"{printable(path)}: {error} (see `recordmill verify`)") from None
    assert _INDEX_ROW.itemsize == INDEX_ROW.size
    rows = np.frombuffer(data, _INDEX_ROW, offset=INDEX_HEADER.size)
    return np.append(rows["f0"], np.uint64(info.num_bytes))


def read_sample(directory: str, manifest: Manifest) -> Sample:
    """Reads the catalogs of the first shards of each split, as far as they are a part of it that is worth showing.

    Raises:
        UserError: One is damaged.
        OSError: One can't be read.
    """
    wanted = [*_READ_COLUMNS, *_column_names(manifest).values()]
    most = max(_MIN_ROWS, MAX_ROWS // max(len(manifest.splits), 1))
    places, infos = [], []
    for split, shards in enumerate(manifest.splits.values()):
        num_left = most
        for shard, info in enumerate(shards):
            if num_left > 0 and info.num_examples:
                places.append((split, shard, min(num_left, info.num_examples)))
                infos.append(info)
                num_left -= info.num_examples
    read = lambda place: _read_catalog(directory, infos[place[0]], place[1], wanted)
    items = [((place, num), infos[place].catalog_bytes) for place, (_, _, num) in enumerate(places)]
    tables = list(read_ahead(read, items) if is_remote(directory) else (read(item) for item, _ in items))
    lengths = [num for _, _, num in places]
    repeated = [np.repeat(np.array([place[part] for place in places], np.int64), lengths) for part in range(2)]
    records = np.concatenate([np.zeros(0, np.int64), *map(np.arange, lengths)])
    table = pa.concat_tables(tables, promote_options="default") if tables else pa.table({})
    table = table.combine_chunks()
    return Sample(directory, manifest, table, *repeated, records)


def read_keys(directory: str, info: ShardInfo) -> list[str]:
    """The keys of a shard, in the order of its records.

    Raises:
        UserError: The catalog of the shard is damaged.
        OSError: The catalog can't be read.
    """
    return _read_catalog(directory, info, info.num_examples, ["key"])["key"].to_pylist()


def _read_catalog(directory: str, info: ShardInfo, num_rows: int, columns: list[str]) -> pa.Table:
    """The first rows of a catalog, and of some columns those that it has; none of a data set without catalogs."""
    if not info.catalog:
        return pa.table({})
    path = f"{directory}/{info.catalog}"
    data = files_at(path).read(path)
    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        names = file.schema_arrow.names
        table = file.read([name for name in columns if name in names], use_threads=False).slice(0, num_rows)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UserError(f"{printable(path)}: {' '.join(str(error).split())[:200]} (see `recordmill verify`)") from None
    if table.num_rows != num_rows:
        raise UserError(f"{printable(path)} has {table.num_rows} rows; expected {num_rows} or more (see `recordmill verify`)")
    return table


def _column_names(manifest: Manifest) -> dict[str, str]:
    """Feature with class names -> its column in the catalogs."""
    return {feature.name: name for name, feature in catalog_features(manifest.schema).items() if feature.kind == "class_label"}
