"""Checks a shard, its index and its catalog. Also hashes keys and groups, to compare them with other shards."""

import dataclasses
import hashlib
import itertools
from typing import Any, Iterator, NamedTuple, Sequence

import google_crc32c
import numpy as np

from beam_pipelines.elements.binary_column import digests
from beam_pipelines.errors import StorageError, printable
from beam_pipelines.parallel import progress
from beam_pipelines.parallel.worker_processes import shared
from beam_pipelines.tfrecord.index_row import IndexRows
from beam_pipelines.tfrecord.record_reader import BadRecord, NoRecordsError, Record, read_records
from beam_pipelines.tfrecord.verbatim_columns import read_values
from beam_pipelines.verify.check_catalog import FORMATS, check_catalog, check_formats, groups_of, keys_of, open_catalog, stored_sides
from beam_pipelines.verify.check_example import ExampleCheck
from beam_pipelines.verify.corruption import MAX_PROBLEMS, CorruptFileError, Corruption, open_corruptible, read_corruptible
from beam_pipelines.verify.recount import RecordCounter, ShardCounts
from beam_pipelines.verify.valid_records import ValidRecords
from tf_input.dataset_format import INDEX_HEADER, INDEX_ROW, Manifest, ShardInfo, catalog_features, decode_index
from tf_input.serialized_example import BadExampleError, SerializedExample, read_example

_COUNTED_RECORDS = 1024


@dataclasses.dataclass(frozen=True)
class VerifyContext:
    """The parameters for checking the shards of a dataset.

    Attributes:
        directory: The directory of the dataset.
        manifest: The manifest of the dataset.
        decodes: Whether to decode images and masks.
        progress_directory: The directory for progress counts. Empty if progress is not counted.
    """

    directory: str
    manifest: Manifest
    decodes: bool
    progress_directory: str


class CheckedShard(NamedTuple):
    """The result of checking a shard.

    Attributes:
        problems: The errors, ordered by file and record.
        num_examples: The number of valid records.
        keys: The hash of each key, as bytes of uint64 [num_examples].
        groups: The hash of each distinct group, as bytes of uint64 [num_groups].
        counts: The statistics of the records, or None if a file of the shard is corrupt.
    """

    problems: list[Corruption]
    num_examples: int
    keys: bytes
    groups: bytes
    counts: ShardCounts | None


def check_shard(shared_context: bytes, split: str, index: int) -> CheckedShard:
    """Checks a shard, its index and its catalog.

    Args:
        shared_context: A `VerifyContext`, from `share`.
        split, index: The split of the shard, and the index of the shard in the split.

    Raises:
        StorageError: A store failed. The files may be valid.
    """
    context: VerifyContext = shared(shared_context)
    info = context.manifest.splits[split][index]
    try:
        return _check(context, info, RecordCounter(context.manifest, split))
    except OSError as error:
        raise StorageError(f"{printable(info.name)} could not be read: {error.strerror or error}") from error


def _check(context: VerifyContext, info: ShardInfo, counter: RecordCounter) -> CheckedShard:
    problems: list[Corruption] = []
    valid_records = ValidRecords()
    of_shard = _Records(context, info, valid_records, counter).problems()
    problems += itertools.islice(of_shard, MAX_PROBLEMS)
    for _ in of_shard:  # The index and the catalog are checked against all records.
        pass
    index, of_index = _read(context, info.index, info.index_bytes, info.index_crc32c)
    problems += of_index
    if index is not None:
        problems += itertools.islice(_check_index(index, valid_records, info), MAX_PROBLEMS)
    groups: list[str] = []
    if context.manifest.is_verbatim:
        valid_records.keys = []  # unless the catalog has them
    columns: dict[str, list[str | None]] = {}
    if info.catalog:  # `recordmill transform` writes no catalog.
        catalog, of_catalog = _read(context, info.catalog, info.catalog_bytes, info.catalog_crc32c)
        problems += of_catalog
        if not of_catalog:  # A Parquet reader may crash on corrupt bytes.
            table, of_catalog = open_catalog(catalog, info)
            problems += of_catalog
            if table is not None:
                if context.manifest.is_verbatim:
                    valid_records.keys = keys_of(table)
                schema = context.manifest.columns or context.manifest.schema
                problems += itertools.islice(check_catalog(table, valid_records, info, schema), MAX_PROBLEMS)
                columns = {name: table.column(name).to_pylist() for name in FORMATS if name in table.column_names}
                problems += itertools.islice(check_formats(columns, valid_records, counter.images, info), MAX_PROBLEMS)
                groups = groups_of(table)
    counts = None if problems else counter.finish(*map(columns.get, FORMATS))
    hashes = _hashes(valid_records.keys), _hashes([group.encode() for group in groups])
    return CheckedShard(problems, len(valid_records.rows), *hashes, counts)


def _read(context: VerifyContext, name: str, num_bytes: int, crc32c: int) -> tuple[bytes | None, list[Corruption]]:
    """Reads an index or catalog file. Returns its bytes (None if it cannot be read) and a list of errors."""
    try:
        data = read_corruptible(f"{context.directory}/{name}", name, can_repair=True)
    except CorruptFileError as error:
        return None, [error.corruption]
    if len(data) != num_bytes:
        return data, [Corruption(name, f"{len(data)} bytes instead of {num_bytes}", can_repair=True)]
    if google_crc32c.value(data) != crc32c:
        return data, [Corruption(name, "the checksum does not match the manifest", can_repair=True)]
    return data, []


class _Records:
    """Checks the records of a shard."""

    def __init__(self, context: VerifyContext, info: ShardInfo, valid_records: ValidRecords, counter: RecordCounter) -> None:
        self._context, self._info, self._valid_records, self._counter = context, info, valid_records, counter
        self._path = f"{context.directory}/{info.name}"
        self._check = ExampleCheck(context.manifest.schema, context.decodes)
        self._index_rows = IndexRows(context.manifest.schema)
        schema = context.manifest.schema
        self._in_catalog = [*stored_sides(schema), *(feature.name for feature in catalog_features(schema).values())]

    def problems(self) -> Iterator[Corruption]:
        """Reads all records, yields an error for each corrupt record, and collects the valid records."""
        info, index, is_complete, num_bytes, crc = self._info, 0, True, 0, 0
        try:
            with open_corruptible(self._path, info.name, bool(info.catalog)) as file:
                for record in read_records(file):
                    if isinstance(record, BadRecord):
                        yield self._corruption(record.message, index, record.offset)
                        is_complete = False
                    else:
                        yield from self._check_record(record, index)
                        for part in (record.header, record.data, record.footer):
                            crc, num_bytes = google_crc32c.extend(crc, part), num_bytes + len(part)
                    index += 1
                    if index % _COUNTED_RECORDS == 0:
                        self._count(_COUNTED_RECORDS)
        except NoRecordsError as error:
            yield self._corruption(str(error))
            return
        except CorruptFileError as error:
            yield error.corruption
            return
        self._count(index % _COUNTED_RECORDS)
        if index != info.num_examples:
            yield self._corruption(f"{index} records instead of {info.num_examples}")
        if is_complete and (num_bytes, crc) != (info.num_bytes, info.crc32c):
            yield self._corruption(
                f"the size or checksum does not match the manifest ({num_bytes} bytes instead of {info.num_bytes}), but all records are valid"
            )

    def _check_record(self, record: Record, index: int) -> Iterator[Corruption]:
        try:
            example = read_example(record.data, self._context.manifest.schema)
            is_sampled = self._counter.is_sampled(example)
            reasons = list(self._check.find(example, is_sampled))
            if not reasons:
                values = self._catalog_values(record, example)
                self._valid_records.add(index, self._index_rows.of(record, example), record, example, values)
                self._counter.add(example, self._check.decoded, is_sampled)
        except BadExampleError as error:
            reasons = [str(error)]
        yield from (self._corruption(reason, index, record.offset) for reason in reasons)

    def _catalog_values(self, record: Record, example: SerializedExample) -> dict[str, list[Any]]:
        if columns := self._context.manifest.columns:
            return {column.name: [value] for column, value in zip(columns, read_values(columns, record.data), strict=True)}
        return {name: example.values(name) for name in self._in_catalog}

    def _count(self, num: int) -> None:
        progress.count(self._context.progress_directory, analyzed=num)

    def _corruption(self, reason: str, record: int = -1, offset: int = -1) -> Corruption:
        return Corruption(self._info.name, reason, record, offset, bool(self._info.catalog))


def _check_index(data: bytes, valid_records: ValidRecords, info: ShardInfo) -> Iterator[Corruption]:
    """Compares the rows of an index with the records of its shard."""
    try:
        rows = [tuple(row) for row in decode_index(data)]
    except ValueError as error:
        yield Corruption(info.index, str(error), can_repair=True)
        return
    if len(rows) != info.num_examples:
        yield Corruption(info.index, f"{len(rows)} rows instead of {info.num_examples}", can_repair=True)
        return
    names = ("record offset", "image offset", "image length", "label")
    for index, expected in zip(valid_records.indices, valid_records.rows):
        if index < len(rows) and rows[index] != expected:
            differing = "; ".join(
                f"{name} {item} instead of {other}" for name, item, other in zip(names, rows[index], expected) if item != other
            )
            yield Corruption(info.index, differing, index, INDEX_HEADER.size + index * INDEX_ROW.size, True)


def _hashes(texts: Sequence[bytes]) -> bytes:
    return np.frombuffer(digests(hashlib.blake2b(digest_size=8, person=b"recordmill keys"), texts), np.uint64).tobytes() if texts else b""
