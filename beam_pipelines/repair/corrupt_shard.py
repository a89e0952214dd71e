"""Describes a shard with corrupt files and reads the keys of its examples from the intact files."""

import contextlib
from typing import Any, Iterator, Mapping, NamedTuple

import google_crc32c

from beam_pipelines.elements.plan import ShardAddress
from beam_pipelines.elements.catalog_files import read_catalog
from beam_pipelines.storage.files import open_file
from beam_pipelines.tfrecord.record_reader import NoRecordsError, Record, read_records
from tf_input.dataset_format import ShardInfo
from tf_input.serialized_example import BadExampleError, SerializedExample


class CorruptShard(NamedTuple):
    """A shard with at least one corrupt or missing file.

    Attributes:
        address: The address of the shard.
        info: The entry of the shard in the manifest.
        corruption: A mapping from the name of each corrupt file to its error.
        has_keys: Whether records contain the keys of the examples.
    """

    address: ShardAddress
    info: ShardInfo
    corruption: Mapping[str, str]
    has_keys: bool

    @property
    def has_catalog(self) -> bool:
        """Whether the catalog is intact."""
        return self.info.catalog not in self.corruption

    @property
    def is_lost(self) -> bool:
        """Whether the keys of the examples are lost, because both the catalog and the records are corrupt."""
        return not self.has_catalog and self.has_keys and self.info.name in self.corruption

    @property
    def needs_plan(self) -> bool:
        """Whether the keys of the examples are only known after all shards have been planned again, because the catalog is
        corrupt, and records of verbatim datasets do not have keys."""
        return not self.has_catalog and not self.has_keys

    def keys(self, directory: str) -> list[bytes]:
        """Returns the keys of the examples in record order, from the catalog or, if it is corrupt, from the records."""
        if self.has_catalog:
            return [key.encode() for key in read_catalog(f"{directory}/{self.info.catalog}").column("key").to_pylist()]
        return [row["key"].encode() for row in record_rows(f"{directory}/{self.info.name}")]


def catalog_rows(path: str) -> list[dict[str, Any]]:
    """Returns the rows of a catalog."""
    return read_catalog(path).to_pylist()


def record_rows(path: str) -> Iterator[dict[str, Any]]:
    """Yields the key and a checksum of each feature of each valid record. Files without records yield nothing."""
    with contextlib.suppress(NoRecordsError, OSError), open_file(path) as file:
        for record in read_records(file):
            if not isinstance(record, Record):
                continue
            with contextlib.suppress(BadExampleError):
                example = SerializedExample(record.data)
                digests = {name: _digest(record.data, of.lists) for name, of in example.features.items()}
                for key in example.values("key"):
                    yield {**digests, "key": key.decode()}


def _digest(data: bytes, ranges: list[tuple[int, int]]) -> int:
    return google_crc32c.value(b"".join([data[begin:end] for begin, end in ranges]))
