"""Checks that shard files match the fingerprints in the manifest.

A local shard is checked when its file is opened. A remote shard is checked when its first or last bytes are read. The
fingerprint check detects files that contain a wrong shard of the same dataset, or a shard of another dataset. Record
checksums can't detect such files, because all records in the wrong shard are intact.
"""

import os
from typing import Callable, Mapping

import google_crc32c

from tf_input.dataset_format import MANIFEST, ShardInfo, read_fingerprint
from tf_input.storage.frames import CHECKSUM_BYTES, FRAME_BYTES, HEADER_BYTES, find_corruption, frame_bytes

# A function that takes an offset and a number of bytes, and reads these bytes of an open file.
ReadRange = Callable[[int, int], bytes]

_BLOCK_BYTES = 4 << 20


class ReplacedShardError(ValueError):
    """Raised if a shard file does not match the fingerprint in the manifest, even with `skip_corrupt=True`."""


class Fingerprints:
    """Checks the fingerprints of a dataset's shards.

    Args:
        shards: The entries of the shards in the manifest, by path.
        last_offset: A function that returns the offset of a shard's last record. It is called only if a checksum
            differs.
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
            read: A function that reads a part of the opened file.
            status: The status of a local file, or None for a remote file.

        Raises:
            OSError: The file cannot be read.
            ReplacedShardError: The file is another shard, or it has changed since it was first opened.
        """
        shard, identity = self._shards[path], status and (status.st_ino, status.st_size, status.st_mtime_ns)
        known = self._identities.get(path)
        if identity is not None and identity == known:
            return
        if other := _find_other(shard, read, self._last_offset):
            raise ReplacedShardError(
                f"shard {path} is not the one that {MANIFEST} names: {other}. The dataset was replaced, or shards "
                "were swapped. "
                "Open the dataset again; if the error persists, run `recordmill verify`."
            )
        if known is not None and (crc := _crc32c(read)) != shard.crc32c:
            raise ReplacedShardError(
                f"shard {path} changed while it was read: it has CRC-32C {crc:08x}, and {MANIFEST} says "
                f"{shard.crc32c:08x}. "
                "Open the dataset again; if the error persists, run `recordmill verify`."
            )
        if identity is not None:
            self._identities[path] = identity

    def check_part(self, path: str, begin: int, data: memoryview | bytes, read: ReadRange, *, is_first: bool) -> None:
        """Checks the fingerprint of a shard if the given byte range contains the first record or the last bytes of the
        shard.

        Args:
            path: The path of the shard.
            begin: The offset of the part.
            data: The bytes of the part.
            read: A function that reads another part of the shard.
            is_first: Whether the shard was not checked before. If so, and if the byte range contains neither the start
                nor the end of the shard, the shard's last bytes are read and checked.

        Raises:
            OSError, ReplacedShardError: As in `check`.
        """
        shard, end = self._shards[path], begin + len(data)
        checksums = []
        if begin == 0 and (length := frame_bytes(bytes(data[:HEADER_BYTES]))) is not None and length <= len(data):
            checksums.append((bytes(data[length - CHECKSUM_BYTES : length]), shard.first_crc32c))
        if end == shard.num_bytes and len(data) >= CHECKSUM_BYTES:
            checksums.append((bytes(data[-CHECKSUM_BYTES:]), shard.last_crc32c))
        if not checksums and is_first:
            checksums.append((read(shard.num_bytes - CHECKSUM_BYTES, CHECKSUM_BYTES), shard.last_crc32c))
        if any(int.from_bytes(checksum, "little") != expected for checksum, expected in checksums):
            self.check(path, read)


def _find_other(shard: ShardInfo, read: ReadRange, last_offset: Callable[[ShardInfo], int]) -> str:
    """Returns an error message if a file is not the expected shard of this dataset. Returns "" if it is the expected
    shard, even if it contains corrupt records.
    """
    actual = read_fingerprint(read, shard.num_bytes)
    if actual is None or actual == shard.fingerprint:
        return ""
    first = actual[0] != shard.first_crc32c
    ordinal, index = ("first", 0) if first else ("last", 1)
    try:
        begin = 0 if first else last_offset(shard)
        num_bytes = frame_bytes(read(begin, HEADER_BYTES)) or FRAME_BYTES
        if find_corruption(read(begin, num_bytes), num_bytes):
            return ""
    except ValueError:  # the index belongs to another shard, too
        pass
    return f"its {ordinal} record has checksum {actual[index]:08x} instead of {shard.fingerprint[index]:08x}"


def _crc32c(read: ReadRange) -> int:
    crc = offset = 0
    while data := read(offset, _BLOCK_BYTES):
        crc, offset = google_crc32c.extend(crc, data), offset + len(data)
    return crc
