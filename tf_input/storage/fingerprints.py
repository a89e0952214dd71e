"""Whether a shard is the one that the manifest names: looked at when its file is opened, or when its ends are read from a store.

A shard's records are valid wherever the file comes from, so nothing else tells that another dataset has taken its place, or that two shards
were swapped.
"""

import os
from typing import Callable, Mapping

import google_crc32c

from tf_input.dataset_format import MANIFEST, ShardInfo, read_fingerprint
from tf_input.storage.frames import CHECKSUM_BYTES, FRAME_BYTES, HEADER_BYTES, find_damage, frame_bytes

# Reads a number of bytes of an open file, from an offset.
ReadRange = Callable[[int, int], bytes]

_BLOCK_BYTES = 4 << 20


class ReplacedShardError(ValueError):
    """The file of a shard is not the one that the manifest names. It is no damage, and `on_error="skip"` does not skip it."""


class Fingerprints:
    """Checks the shards of a dataset as they are opened.

    Args:
        shards: Path -> entry in the manifest, for each shard.
        last_offset: A function from a shard to the offset of its last record, which is called only if a checksum differs.
    """

    def __init__(self, shards: Mapping[str, ShardInfo], last_offset: Callable[[ShardInfo], int]) -> None:
        self._shards, self._last_offset = shards, last_offset
        self._identities: dict[str, tuple[int, ...]] = {}

    def __contains__(self, path: object) -> bool:
        return path in self._shards

    def check(self, path: str, read: ReadRange, status: os.stat_result | None = None) -> None:
        """Checks a shard.

        Args:
            path: The path of the shard.
            read: Reads a part of the file that was opened.
            status: The status of a local file; None: it has none.

        Raises:
            OSError: The file can't be read.
            ReplacedShardError: It is another shard, or changed since it was opened first.
        """
        shard, identity = self._shards[path], status and (status.st_ino, status.st_size, status.st_mtime_ns)
        known = self._identities.get(path)
        if identity is not None and identity == known:
            return
        if found := _find_other(shard, read, self._last_offset):
            raise ReplacedShardError(
                f"shard {path} is not the one that {MANIFEST} names: {found}. The dataset was replaced, or shards were swapped: open "
                "the dataset again, and run `recordmill verify` if the error stays."
            )
        if known is not None and (crc := _crc32c(read)) != shard.crc32c:
            raise ReplacedShardError(
                f"shard {path} changed while it was read: it has CRC-32C {crc:08x}, and {MANIFEST} says {shard.crc32c:08x}. Open the "
                "dataset again, and run `recordmill verify` if the error stays."
            )
        if identity is not None:
            self._identities[path] = identity

    def check_part(self, path: str, begin: int, data: memoryview | bytes, read: ReadRange, *, is_first: bool) -> None:
        """Checks a part of a shard that was read anyway, if it has one of the shard's ends.

        Args:
            path: The path of the shard.
            begin: The offset of the part.
            data: The bytes of the part.
            read: Reads another part of the shard.
            is_first: Whether nothing of the shard was checked yet, so that its last bytes are read if the part has neither end.

        Raises:
            OSError, ReplacedShardError: As in `check`.
        """
        shard, end = self._shards[path], begin + len(data)
        found = []
        if begin == 0 and (length := frame_bytes(bytes(data[:HEADER_BYTES]))) is not None and length <= len(data):
            found.append((bytes(data[length - CHECKSUM_BYTES : length]), shard.first_crc32c))
        if end == shard.num_bytes and len(data) >= CHECKSUM_BYTES:
            found.append((bytes(data[-CHECKSUM_BYTES:]), shard.last_crc32c))
        if not found and is_first:
            found.append((read(shard.num_bytes - CHECKSUM_BYTES, CHECKSUM_BYTES), shard.last_crc32c))
        if any(int.from_bytes(checksum, "little") != expected for checksum, expected in found):
            self.check(path, read)


def _find_other(shard: ShardInfo, read: ReadRange, last_offset: Callable[[ShardInfo], int]) -> str:
    """Describes why a file is another shard; empty if it is the right one, or only corrupt, which its records show."""
    found = read_fingerprint(read, shard.num_bytes)
    if found is None or found == shard.fingerprint:
        return ""
    first = found[0] != shard.first_crc32c
    place, index = ("first", 0) if first else ("last", 1)
    try:
        begin = 0 if first else last_offset(shard)
        num_bytes = frame_bytes(read(begin, HEADER_BYTES)) or FRAME_BYTES
        if find_damage(read(begin, num_bytes), num_bytes):
            return ""
    except ValueError:  # the index is another one, too
        pass
    return f"its {place} record has checksum {found[index]:08x}; expected {shard.fingerprint[index]:08x}"


def _crc32c(read: ReadRange) -> int:
    crc = offset = 0
    while data := read(offset, _BLOCK_BYTES):
        crc, offset = google_crc32c.extend(crc, data), offset + len(data)
    return crc
