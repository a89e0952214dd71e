"""Images in the order of the shuffle before they are read (`--shuffle_payload=inline`). Plain.

A shuffle key comes from an example's key alone, so it is known when an image is listed. A bucket is a range of shuffle keys of one
split; its images are read together, in that order, and their bytes spooled in it. So an image is read once, no bytes go
through the runner, and a shard reads one stretch of one spool file, or of a few that follow each other.
"""

from typing import Iterable, Iterator

import numpy as np

from beam_pipelines.config import PrepareConfig
from beam_pipelines.ranks import shuffle_orders
from beam_pipelines.references import LabeledImage, pack_images, unpack_images
from beam_pipelines.sources import Listing
from beam_pipelines.splits import split_positions

# About how many bytes the images of a bucket have. They are spooled as they come, not held.
BUCKET_BYTES = 32 << 20

Bucket = tuple[int, int]  # split, as a position, and number in it


# Where a listing does not say an image's size, as of a table.
ASSUMED_BYTES = 128 << 10


def choose_num_buckets(listing: Listing) -> int:
    """Buckets of each split."""
    num_bytes = listing.num_bytes or ASSUMED_BYTES * listing.num_inputs
    return max(1, -(-num_bytes // BUCKET_BYTES))


def route_to_buckets(packed: bytes, listing: Listing, config: PrepareConfig) -> Iterator[tuple[Bucket, bytes]]:
    """(bucket, those of a batch of images that belong to it, packed)."""
    images = unpack_images(packed)
    keys = [key.encode() for key in images.keys]
    groups = [group.encode() or key for group, key in zip(images.groups, keys)]
    splits = np.array(split_positions(groups, images.splits, listing.splits, listing.fractions), np.uint64)
    # Of the first 32 bits of each key, so that the product has 64.
    firsts = shuffle_orders(config.seed, keys) >> np.uint64(32)
    numbers = (firsts * np.uint64(choose_num_buckets(listing))) >> np.uint64(32)
    members: dict[Bucket, list[LabeledImage]] = {}
    for bucket, image in zip(zip(splits.tolist(), numbers.tolist()), map(LabeledImage, *images)):
        members.setdefault(bucket, []).append(image)
    for bucket, those in members.items():
        yield bucket, pack_images(those)


def join_bucket(pieces: Iterable[bytes], seed: int) -> bytes:
    """A bucket's images in the order of their shuffle keys, as one batch."""
    images = [image for piece in pieces for image in map(LabeledImage, *unpack_images(piece))]
    orders = shuffle_orders(seed, [image.key.encode() for image in images])
    return pack_images([images[position] for position in np.argsort(orders, kind="stable").tolist()])
