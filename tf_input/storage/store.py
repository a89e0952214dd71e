"""The files of a data set: shards and their indexes."""

import collections
import functools
import os
import threading
from typing import Sequence

import numpy as np

from tf_input.dataset_format import MANIFEST, Manifest, ShardInfo
from tf_input.epochs.selection import Selection
from tf_input.storage.damaged import REPAIR, DamagedRecord, DamagedRecords
from tf_input.storage.files import Files
from tf_input.storage.fingerprints import Fingerprints
from tf_input.storage.index import ShardIndex
from tf_input.storage.paths import join, local_path, scheme_of
from tf_input.storage.record_reader import RecordReader, ShardFile
from tf_input.storage.users import Users

# Local indexes are read into memory, as a file that is mapped and then cut short ends the process (SIGBUS); larger ones row by row.
_MAX_LOCAL_BYTES = 256 << 20
_MAX_HELD_BYTES, _NUM_HELD = 16 << 20, 16  # of all, where a row takes a request and they are held; of larger ones the last so many


class Store:
    """Opens shards, and indexes once a data set: these stay open with it, and files as long as anybody reads.

    Args:
        directory: The directory of the data set.
        files: The files, which shards and indexes are read from.
        manifest: The manifest of the data set.

    Attributes:
        skipped: The damaged records that were left out.
        files: The files, which shards and indexes are read from.
        users: The users of the files, while of whom there is any these stay open.
    """

    def __init__(self, directory: str | os.PathLike[str], files: Files, manifest: Manifest) -> None:
        self.skipped = DamagedRecords()
        self.files = files
        self._directory = directory
        self.users = Users(files.release)
        self._sizes: dict[str, int | None] = {}
        all_shards = [shard for shards in manifest.splits.values() for shard in shards]
        sizes = {join(directory, shard.index): shard.index_bytes for shard in all_shards}
        index_bytes = sum(sizes.values())
        is_held = index_bytes <= _MAX_LOCAL_BYTES if files.is_local else not files.can_hold(sizes)
        open_index = functools.partial(_open_index, directory, files, is_held)  # of nothing that holds the store itself
        is_bounded = is_held and not files.is_local and index_bytes > _MAX_HELD_BYTES
        self._indexes = functools.lru_cache(_NUM_HELD if is_bounded else None)(open_index)
        last_offset = functools.partial(_last_offset, directory, files)
        files.watch(Fingerprints({join(directory, shard.name): shard for shard in all_shards}, last_offset))
        self._index_locks: collections.defaultdict[str, threading.Lock] = collections.defaultdict(threading.Lock)

    def index(self, shard: ShardInfo) -> ShardIndex:
        """The index of a shard, which is opened by the first who asks for it."""
        with self._index_locks[shard.name]:
            return self._indexes(shard)

    def counts(self, shards: Sequence[ShardInfo], on_error: str) -> list[int]:
        """Records of each shard; of shards that are missing or cut short, and are to be read all the same, those that are there."""
        if on_error == "raise":
            return [shard.num_examples for shard in shards]
        counts = []
        for shard, num_bytes in zip(shards, self._find_sizes(shards)):
            if num_bytes is not None and num_bytes >= shard.num_bytes:
                counts.append(shard.num_examples)
                continue
            index = self.index(shard)
            counts.append(count := index.num_whole(num_bytes or 0))
            if lost := shard.num_examples - count:
                reason = "the shard is missing" if num_bytes is None else f"the shard ends at byte {num_bytes}"
                path = join(self._directory, shard.name)
                self.skipped.add(DamagedRecord(path, count, index.offset(count), reason, lost))
        return counts

    def check(self, shards: Sequence[ShardInfo]) -> None:
        """Rejects an incomplete copy of a dataset before an epoch begins. Each shard is looked at once; a local one is also opened.

        Raises:
            FileNotFoundError: A shard is missing.
            OSError: A shard can't be looked at.
            ValueError: A shard has another size, or is not the one that the manifest names.
        """
        unchecked = [shard for shard in shards if self._sizes.get(shard.name) != shard.num_bytes]
        for shard, num_bytes in zip(unchecked, self._find_sizes(unchecked)):
            path = join(self._directory, shard.name)
            if num_bytes is None:
                raise FileNotFoundError(f"shard {path} is missing; {MANIFEST} lists it; {REPAIR}")
            if num_bytes != shard.num_bytes:
                raise ValueError(f"shard {path} has {num_bytes} bytes; {MANIFEST} says {shard.num_bytes}")
            if self.files.is_local:
                self.files.read_range(path, 0, 1)

    def paths(self, shards: Sequence[ShardInfo], on_error: str) -> list[str]:
        """Paths of shards, which are checked if they are to be read without an error."""
        if on_error == "raise":
            self.check(shards)
        return [join(self._directory, shard.name) for shard in shards]

    def tensorflow_paths(self, shards: Sequence[ShardInfo], on_error: str) -> list[str]:
        """Paths of shards as TensorFlow itself opens them.

        Raises:
            ValueError: TensorFlow does not read where the data set lies.
        """
        import tensorflow as tf  # ranges are read without it

        scheme = scheme_of(self._directory)
        if scheme and scheme not in tf.io.gfile.get_registered_schemes():
            raise ValueError(
                f"{self._directory}: a tf.data service reads files by TensorFlow, which does not read {scheme}://; expected a directory "
                "that its workers see, or gs://"
            )
        return [local_path(path) for path in self.paths(shards, on_error)]

    def open_records(
        self, shards: Sequence[ShardInfo], on_error: str, run_bytes: int, selection: Selection | None = None
    ) -> RecordReader:
        """Who reads records by their numbers, which count through the shards; `run_bytes` and `selection` as it has them.

        Raises:
            FileNotFoundError, OSError, ValueError: A shard is not as the manifest says, and is not to be read all the same.
        """
        found = [
            ShardFile(path, shard.num_bytes, count, count == shard.num_examples)
            for path, shard, count in zip(self.paths(shards, on_error), shards, self.counts(shards, on_error))
        ]
        if selection is not None and not all(file.is_whole for file in found):
            selection = selection.keep_first([shard.num_examples for shard in shards], [file.num_examples for file in found])
        damaged = self.skipped if on_error == "skip" else None
        return RecordReader(self.files, found, lambda number: self.index(shards[number]), run_bytes, damaged, self.users, selection)

    def labels(self, shards: Sequence[ShardInfo]) -> np.ndarray:
        """The label of each record by the indexes: int64 [n], `NO_LABEL` where it has not one class.

        Raises:
            OSError, ValueError: An index can't be read.
        """
        return np.concatenate([np.zeros(0, np.int64), *(self.index(shard).labels() for shard in shards)])

    def close(self) -> None:
        """Closes files and indexes, which are opened again for who reads on."""
        self.files.release()
        self._indexes.cache_clear()

    def _find_sizes(self, shards: Sequence[ShardInfo]) -> list[int | None]:
        found = self.files.sizes(self._directory, [shard.name for shard in shards])
        self._sizes.update(zip((shard.name for shard in shards), found))
        return found


def _open_index(directory: str | os.PathLike[str], files: Files, is_held: bool, shard: ShardInfo) -> ShardIndex:
    """Opens an index that is kept in memory if it is small, or whose rows are read as they are looked up."""
    path = join(directory, shard.index)
    return ShardIndex.read(path, shard, files) if is_held else ShardIndex(path, shard, files=files)


def _last_offset(directory: str | os.PathLike[str], files: Files, shard: ShardInfo) -> int:
    return _open_index(directory, files, False, shard).offset(shard.num_examples - 1)
