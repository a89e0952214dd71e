"""ListImages: the source's inputs as sorted runs of references in the spool, and what is known once all are listed."""

import gc
import uuid
from collections import defaultdict
from typing import Any, Iterable, Iterator

import apache_beam as beam
import numpy as np
from apache_beam.transforms.window import GlobalWindow
from apache_beam.typehints.decorators import no_annotations
from apache_beam.utils.windowed_value import WindowedValue

from beam_pipelines.config.prepare_config import PrepareConfig
from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.listed import Listed
from beam_pipelines.elements.listing import Listing
from beam_pipelines.elements.reference_runs import RUN_BYTES, RUN_REFERENCES, write_dead_letters, write_run
from beam_pipelines.elements.references import References
from beam_pipelines.elements.shuffle_keys import KeyCounts
from beam_pipelines.parallel.counters import count
from beam_pipelines.parallel.light_processes import TaskWindow, share
from beam_pipelines.sources.list_part import SMALL_PARTS, PartContext, list_in_batches, list_whole_part, open_to_list
from beam_pipelines.sources.listed_part import ListedPart, make_listing
from beam_pipelines.sources.open_source import open_source
from beam_pipelines.sources.source import Source
from beam_pipelines.storage.files import is_remote
from beam_pipelines.storage.marked_directory import make_marked

# Dead letters that are sorted at once.
_RUN_DEAD_LETTERS = 1 << 16


class ListImages(beam.PTransform):
    """begin -> `Listed`."""

    def __init__(self, config: PrepareConfig) -> None:
        super().__init__()
        self._config = config

    @no_annotations  # Beam takes no tuple of PCollections for an output type
    def expand(self, begin: beam.pvalue.PBegin) -> Listed:
        listed = (
            begin
            | "Start" >> beam.Impulse()
            | "ListParts" >> beam.FlatMap(list_parts, self._config)
            | "SpreadParts" >> beam.GroupByKey()  # as a Reshuffle does, with half its steps
            | "List" >> beam.ParDo(_List(self._config)).with_outputs("runs", "counts", "found", "dead_letters")
        )
        listing = (
            begin
            | "AfterListing" >> beam.Impulse()
            | "MakeListing" >> beam.Map(make_one_listing, beam.pvalue.AsIter(listed.found), self._config)
        )
        return Listed(runs=listed.runs, counts=listed.counts, listing=listing, dead_letters=listed.dead_letters)


def list_parts(unused: Any, config: PrepareConfig) -> list[tuple[str, None]]:
    if not is_remote(config.working_directory):
        make_marked(config.working_directory)  # gone where a whole job is tried again after its end was not heard
    return [(part, None) for part in open_source(config).parts()]


def make_one_listing(unused: bytes, parts: Iterable[ListedPart], config: PrepareConfig) -> Listing:
    found = ListedPart()
    for part in parts:
        found.merge(part)
    listing = make_listing(config, open_source(config), found)
    count(config.progress_directory, listing_done=1)
    return listing


class _List(beam.DoFn):
    """Parts -> sorted runs and sorted runs of dead letters; a bundle gives one packed `KeyCounts` and one `ListedPart` of all."""

    def __init__(self, config: PrepareConfig) -> None:
        self._config = config

    def setup(self) -> None:
        gc.freeze()  # else all that was imported is looked through again and again while millions of names are listed

    def start_bundle(self) -> None:
        self._tasks = TaskWindow(self._config.num_processes)
        self._context = share(PartContext(self._config, uuid.uuid4().hex))
        self._source: Source | None = None
        self._waiting: list[References] = []
        self._dead_letters: list[DeadLetter] = []
        self._counts = KeyCounts()
        self._found = ListedPart()

    def process(self, element: tuple[str, Iterable[None]]) -> Iterator[Any]:
        part, _ = element
        if self._config.source.kind in SMALL_PARTS:
            for batches, dead_letters, found in self._tasks.run(list_whole_part, self._context, part):
                yield from self._take([*map(References.unpack, batches), *dead_letters, found])
        else:
            self._source = self._source or open_to_list(self._config)
            yield from self._take(list_in_batches(self._source, part, self._config))

    def finish_bundle(self) -> Iterator[Any]:
        for output in self._finish():
            yield beam.pvalue.TaggedOutput(output.tag, WindowedValue(output.value, 0, [GlobalWindow()]))

    def _finish(self) -> Iterator[beam.pvalue.TaggedOutput]:
        for batches, dead_letters, found in self._tasks.drain():
            yield from self._take([*map(References.unpack, batches), *dead_letters, found])
        if self._waiting:
            yield self._write_run()
        if self._dead_letters:
            yield self._write_dead_letters()
        yield beam.pvalue.TaggedOutput("counts", self._counts.pack())
        yield beam.pvalue.TaggedOutput("found", self._found)

    def _take(self, listed: Iterable[References | DeadLetter | ListedPart]) -> Iterator[beam.pvalue.TaggedOutput]:
        for one in listed:
            if isinstance(one, References):
                count(self._config.progress_directory, listed=len(one))
                self._waiting.append(one)
                if sum(map(len, self._waiting)) >= RUN_REFERENCES or sum(some.num_bytes for some in self._waiting) >= RUN_BYTES:
                    yield self._write_run()
            elif isinstance(one, DeadLetter):
                self._dead_letters.append(one)
                if len(self._dead_letters) >= _RUN_DEAD_LETTERS:
                    yield self._write_dead_letters()
            else:
                self._found.merge(one)

    def _write_run(self) -> beam.pvalue.TaggedOutput:
        waiting, self._waiting = self._waiting, []
        by_split: defaultdict[str, list[np.ndarray]] = defaultdict(list)
        for references in waiting:
            for place, split in enumerate(references.splits):
                by_split[split].append(references.rows["order"][references.rows["split"] == place])
        for split, orders in by_split.items():
            if any(map(len, orders)):
                self._counts.add(split, np.concatenate(orders))
        return beam.pvalue.TaggedOutput("runs", write_run(waiting, self._config.spool_directory))

    def _write_dead_letters(self) -> beam.pvalue.TaggedOutput:
        waiting, self._dead_letters = self._dead_letters, []
        return beam.pvalue.TaggedOutput("dead_letters", write_dead_letters(waiting, self._config.spool_directory))
