"""What one stage hands to the next: ListImages makes it, GlobalShuffle takes it."""

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import apache_beam as beam


class Listed(NamedTuple):
    """The result of the listing, for the shuffle.

    Attributes:
        runs: Spooled references: a PCollection of `Run`.
        counts: Counts of shuffle keys: a PCollection of packed `KeyCounts`, to be merged.
        listing: What is known of all inputs: a PCollection of one `Listing`.
        dead_letters: Sorted runs of dead letters, a line each: a PCollection of `SpoolStretch`.
        moved: The groups whose inputs come to the split of `--move_to`, whatever is said of them: a PCollection of one set; None: there are none.
    """

    runs: "beam.PCollection"
    counts: "beam.PCollection"
    listing: "beam.PCollection"
    dead_letters: "beam.PCollection"
    moved: "beam.PCollection | None" = None
