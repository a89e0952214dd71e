"""The result of the listing stage, which is the input of the shuffle stage."""

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import apache_beam as beam


class Listed(NamedTuple):
    """PCollections with the result of the listing.

    Attributes:
        runs: Sorted runs of references in the spool: a PCollection of `Run`.
        counts: Counts of shuffle keys: a PCollection of packed `KeyCounts`, which the shuffle merges.
        listing: Facts about all inputs: a PCollection of one `Listing`.
        dead_letters: Sorted lines of dead letters: a PCollection of `SpoolRange`.
        moved: The groups that must move to the split of `--move_to`: a PCollection of one set, or None.
    """

    runs: "beam.PCollection"
    counts: "beam.PCollection"
    listing: "beam.PCollection"
    dead_letters: "beam.PCollection"
    moved: "beam.PCollection | None" = None
