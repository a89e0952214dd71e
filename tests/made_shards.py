"""Writes shards and index files without the shard writer, to test readers that locate records by number."""

import pathlib
import struct
from typing import Sequence

import google_crc32c

from tf_input.dataset_format import Fingerprint, ShardInfo, encode_index


def masked(data: bytes) -> int:
    checksum = google_crc32c.value(data)
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF


def frame(data: bytes) -> bytes:
    """Returns the bytes of a record with the length and the checksums of the TFRecord format."""
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked(length)) + data + struct.pack("<I", masked(data))


def write_shard(folder: pathlib.Path, name: str, records: Sequence[bytes]) -> ShardInfo:
    """Writes a shard `NAME` and its index `NAME.idx`."""
    frames = [frame(data) for data in records]
    offsets = [sum(map(len, frames[:index])) for index in range(len(frames))]
    contents = b"".join(frames)
    (folder / name).write_bytes(contents)
    fingerprint = fingerprint_of(frames)
    index = encode_index([(offset, offset + 12, 0, -1) for offset in offsets], fingerprint)
    (folder / f"{name}.idx").write_bytes(index)
    sums = google_crc32c.value(contents), f"{name}.idx", len(index), google_crc32c.value(index)
    return ShardInfo(name, len(records), len(contents), *sums, first_crc32c=fingerprint[0], last_crc32c=fingerprint[1])


def fingerprint_of(frames: Sequence[bytes]) -> Fingerprint:
    """Returns the checksums at the end of the first and the last record, or (0, 0) if there are no records."""
    return tuple(struct.unpack("<I", item[-4:])[0] for item in (frames[0], frames[-1])) if frames else (0, 0)


def flip(path: pathlib.Path, bit: int) -> None:
    """Flips one bit of a file."""
    contents = bytearray(path.read_bytes())
    contents[bit // 8] ^= 1 << bit % 8
    path.write_bytes(contents)
