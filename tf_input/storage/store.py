"""Opens the shards and indexes of a dataset."""

import collections
import functools
import os
import threading
from typing import Sequence

import numpy as np

from tf_input.dataset_format import MANIFEST, Manifest, ShardInfo
from tf_input.epochs.selection import Selection
from tf_input.storage.corrupt_records import REPAIR, CorruptRecord, CorruptRecords
from tf_input.storage.files import Files
from tf_input.storage.fingerprints import Fingerprints
from tf_input.storage.index import ShardIndex
from tf_input.storage.paths import join
from tf_input.storage.record_reader import RecordReader, ShardFile, Users

# Local indexes up to this total size are read into memory. Larger indexes are read row by row. Memory-mapping them would
# be dangerous: if a mapped file is truncated, reading it kills the process (SIGBUS).
_MAX_LOCAL_BYTES = 256 << 20
_MAX_CACHED_INDEX_BYTES, _NUM_CACHED_INDEXES = 16 << 20, 16  # above this total size, only the 16 latest remote indexes stay in memory


class Store:
    """Opens the shards and indexes of a dataset.

    Indexes stay open until the store is closed. A shard stays open as long as a reader uses it.

    Args:
        directory: The directory of the dataset.
        files: The object that reads the shards and indexes.
        manifest: The manifest of the dataset.

    Attributes:
        skipped: The corrupt records that were skipped.
        files: The object that reads the shards and indexes.
        users: The counter of the readers of the files. Files stay open as long as a reader uses them.
    """

    def __init__(self, directory: str | os.PathLike[str], files: Files, manifest: Manifest) -> None:
        self.skipped = CorruptRecords()
        self.files = files
        self._directory = directory
        self.users = Users(files.release)
        self._sizes: dict[str, int | None] = {}
        all_shards = [shard for shards in manifest.splits.values() for shard in shards]
        sizes = {join(directory, shard.index): shard.index_bytes for shard in all_shards}
        index_bytes = sum(sizes.values())
        is_cached = index_bytes <= _MAX_LOCAL_BYTES if files.is_local else not files.fits_in_cache(sizes)
        open_index = functools.partial(_open_index, directory, files, is_cached)  # without a reference to the store
        is_bounded = is_cached and not files.is_local and index_bytes > _MAX_CACHED_INDEX_BYTES
        self._indexes = functools.lru_cache(_NUM_CACHED_INDEXES if is_bounded else None)(open_index)
        last_offset = functools.partial(_last_offset, directory, files)
        files.watch(Fingerprints({join(directory, shard.name): shard for shard in all_shards}, last_offset))
        self._index_locks: collections.defaultdict[str, threading.Lock] = collections.defaultdict(threading.Lock)

    def index(self, shard: ShardInfo) -> ShardIndex:
        """Returns the index of a shard. The index file of a shard is opened when it is first requested."""
        with self._index_locks[shard.name]:
            return self._indexes(shard)

    def counts(self, shards: Sequence[ShardInfo], skip_corrupt: bool) -> list[int]:
        """Returns the number of readable records in each shard.

        Unless `skip_corrupt` is set, the numbers are read from the manifest. Otherwise, the records of missing shards and
        the missing records of truncated shards are added to the skipped records instead of being counted.
        """
        if not skip_corrupt:
            return [shard.num_examples for shard in shards]
        counts = []
        for shard, num_bytes in zip(shards, self._find_sizes(shards)):
            if num_bytes is not None and num_bytes >= shard.num_bytes:
                counts.append(shard.num_examples)
                continue
            index = self.index(shard)
            counts.append(count := index.num_complete(num_bytes or 0))
            if lost := shard.num_examples - count:
                reason = "the shard is missing" if num_bytes is None else f"the shard ends at byte {num_bytes}"
                path = join(self._directory, shard.name)
                self.skipped.add(CorruptRecord(path, count, index.offset(count), reason, lost))
        return counts

    def check(self, shards: Sequence[ShardInfo]) -> None:
        """Checks before an epoch that all shards exist and are complete.

        The size of each shard is checked only once. Local shards are also opened to check their fingerprints.

        Raises:
            FileNotFoundError: A shard is missing.
            OSError: The size of a shard cannot be determined.
            ValueError: A shard has another size, or is not the shard that the manifest describes.
        """
        unchecked = [shard for shard in shards if self._sizes.get(shard.name) != shard.num_bytes]
        for shard, num_bytes in zip(unchecked, self._find_sizes(unchecked)):
            path = join(self._directory, shard.name)
            if num_bytes is None:
                raise FileNotFoundError(f"shard {path} is missing; {MANIFEST} lists it; {REPAIR}")
            if num_bytes != shard.num_bytes:
                raise ValueError(f"shard {path} has {num_bytes} bytes; {MANIFEST} says {shard.num_bytes}; {REPAIR}")
            if self.files.is_local:
                self.files.read_range(path, 0, 1)

    def paths(self, shards: Sequence[ShardInfo], skip_corrupt: bool) -> list[str]:
        """Returns the paths of shards. Unless `skip_corrupt` is set, first checks that all shards are complete."""
        if not skip_corrupt:
            self.check(shards)
        return [join(self._directory, shard.name) for shard in shards]

    def open_records(
        self, shards: Sequence[ShardInfo], skip_corrupt: bool, run_bytes: int, selection: Selection | None = None
    ) -> RecordReader:
        """Returns a reader of the records in shards.

        Args:
            shards: The shards to read.
            skip_corrupt: Whether to skip corrupt and missing records. Otherwise, the shards are checked first.
            run_bytes: The size of the reader's chunks, in bytes.
            selection: The records of an epoch. None selects each record once.

        Raises:
            FileNotFoundError, OSError, ValueError: A shard contradicts the manifest, and `skip_corrupt` is not set.
        """
        files = [
            ShardFile(path, shard.num_bytes, count)
            for path, shard, count in zip(self.paths(shards, skip_corrupt), shards, self.counts(shards, skip_corrupt))
        ]
        written, readable = [shard.num_examples for shard in shards], [file.num_examples for file in files]
        if selection is not None and readable != written:
            selection = selection.keep_first(written, readable)
        corrupt = self.skipped if skip_corrupt else None
        return RecordReader(self.files, files, lambda number: self.index(shards[number]), run_bytes, corrupt, self.users, selection)

    def labels(self, shards: Sequence[ShardInfo]) -> np.ndarray:
        """Returns the labels of all records, int64 [n]. Records that do not have exactly one class get `NO_LABEL`.

        Raises:
            OSError, ValueError: An index cannot be read.
        """
        return np.concatenate([np.zeros(0, np.int64), *(self.index(shard).labels() for shard in shards)])

    def close(self) -> None:
        """Closes all files and indexes. Later reads open them again."""
        self.files.release()
        self._indexes.cache_clear()

    def _find_sizes(self, shards: Sequence[ShardInfo]) -> list[int | None]:
        sizes = self.files.sizes(self._directory, [shard.name for shard in shards])
        self._sizes.update(zip((shard.name for shard in shards), sizes))
        return sizes


def _open_index(directory: str | os.PathLike[str], files: Files, is_cached: bool, shard: ShardInfo) -> ShardIndex:
    """Opens the index of a shard. If `is_cached` is set, index files that are local or small are cached in memory."""
    path = join(directory, shard.index)
    return ShardIndex.read(path, shard, files) if is_cached else ShardIndex(path, shard, files=files)


def _last_offset(directory: str | os.PathLike[str], files: Files, shard: ShardInfo) -> int:
    return _open_index(directory, files, False, shard).offset(shard.num_examples - 1)
