"""Image bytes that travel through the runner's shuffle with their references, and out of it into the spool. Plain.

A bucket is a range of shuffle keys of one split. Its images, brought together, are spooled in the order of their keys. So each shard
reads one stretch of one spool file, or of a few that follow each other; what comes after need not know how the bytes
got there.
"""

from typing import Iterable, Iterator, Sequence

import numpy as np

from beam_pipelines.references import References
from beam_pipelines.spool import own_spool

# About how many bytes the images of one bucket have. A worker holds them at once, and so does Flink's TaskManager, several times.
BUCKET_BYTES = 8 << 20

_LENGTH_BYTES = 8

Bucket = tuple[int, int]  # split, as a position, and number in it


def choose_num_buckets(num_bytes: int, shard_bytes: int | None) -> int:
    """Buckets of each split, so that none has more than a shard should have, or `BUCKET_BYTES`.

    Args:
        num_bytes: Of all images of the data set.
        shard_bytes: Of a shard, where that was asked for.
    """
    return max(1, -(-num_bytes // min(shard_bytes or BUCKET_BYTES, BUCKET_BYTES)))


def group_by_bucket(
    references: References, images: Sequence[bytes], num_buckets: int
) -> Iterator[tuple[Bucket, bytes]]:
    """(bucket, its references with their image bytes, packed)."""
    rows = references.rows
    # Of the first 32 bits of each key, so that the product has 64: there are no more buckets than bits can tell apart.
    numbers = ((rows["order"] >> np.uint64(32)) * np.uint64(num_buckets)) >> np.uint64(32)
    buckets = np.stack([rows["split"].astype(np.uint64), numbers], axis=1)
    for bucket in np.unique(buckets, axis=0):
        members = np.flatnonzero((buckets == bucket).all(axis=1))
        yield tuple(bucket.tolist()), pack(references.take(members), [images[index] for index in members.tolist()])


def pack(references: References, images: Sequence[bytes]) -> bytes:
    """Images lie in the order of the references, each as long as its row says."""
    packed = references.pack()
    return b"".join([len(packed).to_bytes(_LENGTH_BYTES, "little"), packed, *images])


def unpack(payload: bytes) -> tuple[References, list[memoryview]]:
    end = _LENGTH_BYTES + int.from_bytes(payload[:_LENGTH_BYTES], "little")
    references = References.unpack(payload[_LENGTH_BYTES:end])
    view, images = memoryview(payload), []
    for num_bytes in references.rows["num_bytes"].tolist():
        images.append(view[end : end + num_bytes])
        end += num_bytes
    return references, images


def spool_bucket(payloads: Iterable[bytes], spool_directory: str) -> bytes:
    """Spools a bucket's images in the order of their shuffle keys; returns the packed references that point to them."""
    unpacked = [unpack(payload) for payload in payloads]
    references = References.concatenate([part for part, _ in unpacked])
    images = [image for _, part in unpacked for image in part]
    positions = np.argsort(references.rows["order"], kind="stable")
    references = references.take(positions)
    with own_spool(spool_directory) as spool:
        references.rows["spool"] = spool.spool
        references.rows["offset"] = [spool.append(images[position]) for position in positions.tolist()]
    return references.pack()
