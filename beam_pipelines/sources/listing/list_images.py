"""Defines the Beam transform `ListImages`, which lists the inputs of a source."""

import dataclasses
import functools
import gc
from typing import Any, Iterable, Iterator, Mapping, NamedTuple

import apache_beam as beam
from apache_beam.pvalue import TaggedOutput
from apache_beam.typehints.decorators import no_annotations

from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.config.run_paths import RunPaths
from beam_pipelines.elements.listed import Listed
from beam_pipelines.elements.listing import Listing
from beam_pipelines.parallel import progress
from beam_pipelines.parallel.worker_processes import share
from beam_pipelines.parallel.parallel_map import ParallelMap
from beam_pipelines.sources.listing.listed_facts import ListedFacts
from beam_pipelines.sources.listing.listed_runs import ListedRuns
from beam_pipelines.sources.listing.make_listing import make_listing
from beam_pipelines.sources.open_source import open_source
from beam_pipelines.sources.listing.part_listing import PartContext, list_shared_part, list_side_by_side, list_entire_part
from beam_pipelines.storage.files import is_remote, make_folder
from beam_pipelines.storage.working_directory import make_marked
from beam_pipelines.storage.versions import noting_versions


@dataclasses.dataclass
class ListImages(beam.PTransform):
    """A Beam transform that lists the inputs of a source, and returns `Listed`."""

    options: PrepareOptions
    run: RunPaths

    @no_annotations  # Beam supports no tuple of PCollections as an output type
    def expand(self, begin: beam.pvalue.PBegin) -> Listed:
        listed = (
            begin
            | "Start" >> beam.Impulse()
            | "ListParts" >> beam.FlatMap(list_parts, self.options, self.run)
            | "SpreadParts" >> beam.GroupByKey()  # like a Reshuffle, with half the steps
            | "List" >> beam.ParDo(_List(self.options, self.run)).with_outputs("runs", "counts", "facts", "dead_letters")
        )
        listing = (
            begin
            | "AfterListing" >> beam.Impulse()
            | "MakeListing" >> beam.Map(join_listings, beam.pvalue.AsIter(listed.facts), self.options, self.run)
        )
        return Listed(runs=listed.runs, counts=listed.counts, listing=listing, dead_letters=listed.dead_letters)


class PartFacts(NamedTuple):
    """Information about a part of the source that is known before the part is listed.

    Attributes:
        memory_bytes: The memory for listing the part, in bytes.
        versions: Path -> version of the files that were opened to find the parts. Empty except for the first part.
    """

    memory_bytes: int
    versions: Mapping[str, str]


def list_parts(unused: Any, options: PrepareOptions, run: RunPaths) -> list[tuple[str, PartFacts]]:
    """Returns the parts of the source as keyed elements, so that Beam can distribute them over workers."""
    if not is_remote(run.scratch_directory):  # The directories are missing if a finished job is retried.
        make_marked(run.scratch_directory)
        make_folder(run.directory)
    versions: dict[str, str] = {}
    with noting_versions(versions):
        source = open_source(options)
        parts = source.parts()
    return [(part, PartFacts(source.memory_bytes(part), {} if number else versions)) for number, part in enumerate(parts)]


def join_listings(unused: bytes, parts: Iterable[ListedFacts], options: PrepareOptions, run: RunPaths) -> Listing:
    """Merges the facts about all parts into a single `Listing`."""
    listed = ListedFacts()
    for part in parts:
        listed.merge(part)
    with noting_versions(listed.versions):  # the schema must match the files that were listed
        listing = make_listing(options, open_source(options), listed)
    progress.count(run.progress_directory, listing_done=1)
    return listing


@functools.cache
def _freeze_imported_objects() -> None:
    """Excludes existing objects from garbage collection, so that listing millions of files is faster. Runs only once
    per process, because later calls would also keep unused objects in memory."""
    gc.freeze()


class _List(ParallelMap):
    """Lists parts. Yields sorted files of references and of dead letters. At the end of a bundle, yields key counts and
    facts about all its parts."""

    def __init__(self, options: PrepareOptions, run: RunPaths) -> None:
        super().__init__(run.num_processes, run.id)
        self._options, self._run = options, run

    def setup(self) -> None:
        super().setup()
        _freeze_imported_objects()

    def start_bundle(self) -> None:
        super().start_bundle()
        self._context = PartContext(self._options, self._run)
        self._shared = share(self._context)
        self._listed = ListedRuns(self._run.spool_directory)
        self._aside: list[str] = []

    def process(self, element: tuple[str, Iterable[PartFacts]]) -> Iterator[Any]:
        part, (facts, *_) = element
        self._listed.facts.versions.merge(facts.versions)
        if self._run.lists_in_threads and self._options.source.kind.has_class_folders:
            self._aside.append(part)
            return iter(())
        if self._run.num_processes:
            return self.run(list_shared_part, self._shared, part, memory_bytes=facts.memory_bytes)
        # `shared` would keep too few contexts for all threads of a worker.
        return self.take(list_entire_part(self._context, part))

    def take(self, result: ListedRuns) -> Iterator[TaggedOutput]:
        self._listed.merge(result)
        return self._give_runs()

    def finish(self) -> Iterator[TaggedOutput]:
        if self._aside:
            for result in list_side_by_side(self._options, self._run, self._aside):
                yield from self.take(result)
        self._listed.write_rest()
        yield from self._give_runs()
        yield TaggedOutput("counts", self._listed.counts.pack())
        yield TaggedOutput("facts", self._listed.facts)

    def _give_runs(self) -> Iterator[TaggedOutput]:
        for tag, runs in (("runs", self._listed.runs), ("dead_letters", self._listed.dead_letter_runs)):
            yield from (TaggedOutput(tag, run) for run in runs)
            runs.clear()
