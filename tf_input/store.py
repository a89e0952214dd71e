"""The files of a data set: shards and their indexes, where they lie or in a cache."""

import os
import pathlib
from typing import Sequence

from tf_input import locations
from tf_input.damaged import DamagedRecord, DamagedRecords
from tf_input.dataset_format import INDEX_HEADER, INDEX_ROW, ShardInfo
from tf_input.index import ShardIndex
from tf_input.storage.files import open_files
from tf_input.storage.record_reader import RecordReader, ShardFile


class Store:
    """Opens shards.

    Args:
        directory: Of the data set.
        source: Reads its files.
        cache: Where copies are kept, if they are.
    """

    def __init__(self, directory: str | os.PathLike[str], source: locations.Source, cache: pathlib.Path | None) -> None:
        self.skipped = DamagedRecords()
        self._directory = directory
        self._source = source
        self._cache = cache
        self._files = open_files(directory if cache is None else cache)

    def counts(self, shards: Sequence[ShardInfo], on_error: str) -> list[int]:
        """Records of each shard; of shards that are missing or cut short, and are to be read all the same, those that are there."""
        if on_error == "raise" or self._cache is not None:
            return [shard.num_examples for shard in shards]
        counts = []
        for shard, num_bytes in zip(shards, locations.shard_sizes(self._directory, shards)):
            index = self._open_index(shard)
            counts.append(count := index.num_whole(num_bytes or 0))
            if lost := shard.num_examples - count:
                reason = "the shard is missing" if num_bytes is None else f"the shard ends at byte {num_bytes}"
                path = locations.join(self._directory, shard.name)
                self.skipped.add(DamagedRecord(path, count, index.offset(count), reason, lost))
        return counts

    def paths(self, shards: Sequence[ShardInfo], on_error: str) -> list[str]:
        """Files for TensorFlow to read: copied to the cache if there is one, else checked for their size.

        Raises:
            FileNotFoundError, OSError, ValueError: One is not as the manifest says, and is not to be read all the same.
        """
        if self._cache is not None:
            return locations.cache_shards(self._source, self._directory, self._cache, shards)
        if on_error == "skip":
            return [locations.join(self._directory, shard.name) for shard in shards]
        return locations.check_shards(self._directory, shards)

    def open_records(self, shards: Sequence[ShardInfo], on_error: str, run_bytes: int) -> RecordReader:
        """Who reads records by their numbers, which count through the shards; `run_bytes` as it has them.

        Raises:
            FileNotFoundError, OSError, ValueError: A shard is not as the manifest says, and is not to be read all the same.
        """
        found = [
            ShardFile(path, shard.num_bytes, count, count == shard.num_examples)
            for path, shard, count in zip(self.paths(shards, on_error), shards, self.counts(shards, on_error))
        ]
        damaged = self.skipped if on_error == "skip" else None
        return RecordReader(self._files, found, lambda index: self._open_index(shards[index]), run_bytes, damaged)

    def _open_index(self, shard: ShardInfo) -> ShardIndex:
        path = locations.join(self._directory, shard.index)
        if self._cache is not None:
            num_bytes = INDEX_HEADER.size + shard.num_examples * INDEX_ROW.size
            path = locations.cache_file(self._source, path, self._cache / shard.index, num_bytes)
        elif locations.is_url(path):
            return ShardIndex(path, shard, self._source.read(path))
        return ShardIndex(path, shard)
