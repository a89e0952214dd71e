"""Writes references to the listed inputs to temporary files. Each file is a run: its references are sorted by shuffle
key."""

from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.reference_runs import RUN_BYTES, RUN_REFERENCES, SortedRun, SpoolRange, write_dead_letters, write_run
from beam_pipelines.elements.references import References
from beam_pipelines.elements.shuffle_keys import KeyCounts
from beam_pipelines.sources.listing.listed_facts import ListedFacts

# The number of dead letters that are sorted together.
_RUN_DEAD_LETTERS = 1 << 16

# The references of a part are written only if they fill this share of a full run. Otherwise, they wait for other parts.
_MIN_SHARE = 1 / 8

# When parts are merged, the first run has 1/32 of the full size. Each later run has at least 1/4 of the references in all
# earlier runs, up to the full size. Thus few references wait in memory, and a hundred million inputs make few runs.
_FIRST_SHARE, _GROWTH = 1 / 32, 1 / 4


class ListedRuns:
    """The inputs of one or more parts of a source, as references in temporary files, with facts about the inputs. At most
    one run is in memory.

    Args:
        spool_directory: The directory for runs.
        share: The size of each run as a share of a full run, if several runs are filled in parallel. If it is None,
            runs start small and grow with the number of references.

    Attributes:
        runs: The runs of references that were written.
        dead_letter_runs: The runs of dead letters that were written.
        counts: The histograms of the shuffle keys in the runs.
        facts: The facts about the inputs.
    """

    def __init__(self, spool_directory: str, share: float | None = None) -> None:
        self.runs: list[SortedRun] = []
        self.dead_letter_runs: list[SpoolRange] = []
        self.counts = KeyCounts()
        self.facts = ListedFacts()
        self._spool_directory, self._share = spool_directory, share
        self._waiting: list[References] = []
        self._num_waiting = self._num_bytes = self._num_written = 0
        self._dead_letters: list[DeadLetter] = []

    def add(self, listed: References | DeadLetter) -> None:
        """Adds references or a dead letter."""
        if isinstance(listed, References):
            self._waiting.append(listed)
            self._num_waiting += len(listed)
            self._num_bytes += listed.num_bytes
            self.write(self._share or min(1.0, max(_FIRST_SHARE, _GROWTH * self._num_written / RUN_REFERENCES)))
        else:
            self._dead_letters.append(listed)
            if len(self._dead_letters) >= _RUN_DEAD_LETTERS:
                self._write_dead_letters()

    def merge(self, other: "ListedRuns") -> None:
        """Adds the references and facts of another part."""
        self.runs += other.runs
        self.dead_letter_runs += other.dead_letter_runs
        self.facts.merge(other.facts)
        self.counts.merge(other.counts)
        for listed in (*other._waiting, *other._dead_letters):
            self.add(listed)

    def write(self, share: float = _MIN_SHARE) -> None:
        """Sorts the references in memory, and writes them as a run if they fill the given share of a full run."""
        if self._num_waiting >= share * RUN_REFERENCES or self._num_bytes >= share * RUN_BYTES:
            self.counts.add_references(self._waiting)
            references, self._waiting = References.concatenate(self._waiting), []  # releases the batches before the sort
            self.runs.append(write_run([references], self._spool_directory))
            self._num_written += self._num_waiting
            self._num_waiting = self._num_bytes = 0

    def write_rest(self) -> None:
        """Writes all waiting references and dead letters."""
        if self._waiting:
            self.write(0.0)
        if self._dead_letters:
            self._write_dead_letters()

    def _write_dead_letters(self) -> None:
        self.dead_letter_runs.append(write_dead_letters(self._dead_letters, self._spool_directory))
        self._dead_letters = []
