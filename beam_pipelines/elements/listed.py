"""The result of the listing stage, which is the input of the shuffle stage."""

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import apache_beam as beam


class Listed(NamedTuple):
    """The PCollections that the listing stage creates.

    Attributes:
        runs: `SortedRun`s. A run is a temporary file with references to inputs, sorted by shuffle key.
        counts: Packed `KeyCounts`, the histograms of the shuffle keys. The shuffle stage merges them.
        listing: A single `Listing` with the properties of all inputs.
        dead_letters: `SpoolRange`s with sorted lines of dead letters.
    """

    runs: "beam.PCollection"
    counts: "beam.PCollection"
    listing: "beam.PCollection"
    dead_letters: "beam.PCollection"
