"""CheckSplits: no image is in two splits, where the source says which split an image is in.

Two inputs with one key in one split meet when it is shuffled; those of different splits never do, unless they are brought together.
"""

from typing import Iterable, Iterator

import apache_beam as beam
import numpy as np

from beam_pipelines.errors import UserError
from beam_pipelines.references import References
from beam_pipelines.sources import Listing

# Sources in which the same file can stand twice: in others, a key belongs to a folder or a container of one split.
_KINDS = ("coco", "table", "text", "voc")
_BUCKET_BITS = 6


class CheckSplits(beam.PTransform):
    """Packed `References` -> the number of keys in each of some buckets; nothing where keys can't be in two splits."""

    def __init__(self, listing: beam.pvalue.AsSingleton) -> None:
        super().__init__()
        self._listing = listing

    def expand(self, references: beam.PCollection) -> beam.PCollection:
        return (
            references
            | "RouteKeys" >> beam.FlatMap(route_keys, self._listing).with_output_types(tuple[int, bytes])
            | "GroupKeys" >> beam.GroupByKey()
            | "CheckKeys" >> beam.Map(check_keys, self._listing)
        )


def route_keys(packed: bytes, listing: Listing) -> Iterator[tuple[int, bytes]]:
    """(bucket of shuffle keys, the packed references that belong to it)."""
    if listing.fractions is not None or len(listing.splits) < 2 or listing.source not in _KINDS:
        return
    references = References.unpack(packed)
    references.extras = None
    buckets = (references.rows["order"] >> np.uint64(64 - _BUCKET_BITS)).astype(np.int64)
    for bucket in np.unique(buckets).tolist():
        yield bucket, references.take(np.flatnonzero(buckets == bucket)).pack()


def check_keys(element: tuple[int, Iterable[bytes]], listing: Listing) -> int:
    """The number of keys in a bucket.

    Raises:
        UserError: One is in two splits.
    """
    references = References.concatenate([References.unpack(piece) for piece in element[1]])
    positions = np.lexsort((references.rows["split"], references.rows["order"])).tolist()
    for first, second in zip(positions, positions[1:]):
        if references.keys[first] == references.keys[second]:
            splits = sorted(listing.splits[references.rows["split"][index]] for index in (first, second))
            if splits[0] != splits[1]:
                raise UserError(
                    f"{references.path(first)!r} is in split {splits[0]!r} and in split {splits[1]!r}; expected each image in one, "
                    "or examples with keys of their own (--key_column)"
                )
    return len(references)
