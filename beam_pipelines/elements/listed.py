"""What one stage hands to the next: ListImages makes it, GlobalShuffle takes it."""

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import apache_beam as beam


class Listed(NamedTuple):
    """What comes of listing.

    Attributes:
        runs: Of `Run`.
        counts: Packed `KeyCounts`, to be merged.
        listing: One `Listing`.
        dead_letters: Of `Stretch`: sorted runs of them, a line each.
    """

    runs: "beam.PCollection"
    counts: "beam.PCollection"
    listing: "beam.PCollection"
    dead_letters: "beam.PCollection"
