"""ListImages: the source's inputs, a batch to an element, and what is known once all are listed."""

import uuid
from typing import Any, Iterable, Iterator

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindow
from apache_beam.typehints.decorators import no_annotations
from apache_beam.utils.windowed_value import WindowedValue

from beam_pipelines.buckets import Bucket, join_bucket, route_to_buckets
from beam_pipelines.config import PrepareConfig
from beam_pipelines.counters import count
from beam_pipelines.dead_letters import DeadLetter
from beam_pipelines.files import is_remote
from beam_pipelines.light_processes import TaskWindow, share
from beam_pipelines.list_part import PackedBatch, PartContext, list_in_batches, list_whole_part, open_to_list
from beam_pipelines.listing import ListedPart, make_listing
from beam_pipelines.marked_directory import make_marked
from beam_pipelines.sources import Listing, Source
from beam_pipelines.sources.open_source import open_source

# Kinds of sources with many parts, each of some thousands of images: so what is listed of one fits into memory.
SMALL_PARTS = ("tfrecord", "voc", "webdataset")


class ListImages(beam.PTransform):
    """begin -> (packed batches of `LabeledImage`, one `Listing`, dead letters)."""

    def __init__(self, config: PrepareConfig) -> None:
        super().__init__()
        self._config = config

    @no_annotations  # Beam takes no tuple of PCollections for an output type
    def expand(self, begin: beam.pvalue.PBegin) -> tuple[beam.PCollection, beam.PCollection, beam.PCollection]:
        listed = (
            begin
            | "Start" >> beam.Impulse()
            | "ListParts" >> beam.FlatMap(list_parts, self._config)
            | "SpreadParts" >> beam.Reshuffle()
            | "List" >> beam.ParDo(_List(self._config)).with_outputs("images", "found", "dead_letters")
        )
        listing = (
            listed.found
            | "MergeFound" >> beam.CombineGlobally(merge_found).without_defaults()
            | "MakeListing" >> beam.Map(finish_listing, self._config)
        )
        spread = self._in_shuffle_order if self._config.is_inline else self._in_any_order
        return spread(listed.images, beam.pvalue.AsSingleton(listing)), listing, listed.dead_letters

    def _in_any_order(self, images: beam.PCollection, unused: beam.pvalue.AsSingleton) -> beam.PCollection:
        """Only to spread the batches over the workers: the shuffle that matters comes later, by rank."""
        return images | "SpreadOverWorkers" >> beam.Reshuffle()

    def _in_shuffle_order(self, images: beam.PCollection, listing: beam.pvalue.AsSingleton) -> beam.PCollection:
        return (
            images
            | "RouteToBuckets" >> beam.FlatMap(route_to_buckets, listing, self._config)
            | "GroupByBucket" >> beam.GroupByKey()
            | "JoinBucket" >> beam.Map(join_group, self._config.seed)
        )


def list_parts(unused: Any, config: PrepareConfig) -> list[str]:
    if not is_remote(config.working_directory):
        make_marked(config.working_directory)  # gone where a whole job is tried again after its end was not heard
    return open_source(config).parts()


def merge_found(parts: Iterable[ListedPart]) -> ListedPart:
    merged = ListedPart()
    for part in parts:
        merged.merge(part)
    return merged


def finish_listing(found: ListedPart, config: PrepareConfig) -> Listing:
    listing = make_listing(config, open_source(config), found)
    count(config.progress_directory, listing_done=1)
    return listing


def join_group(element: tuple[Bucket, Iterable[bytes]], seed: int) -> bytes:
    return join_bucket(element[1], seed)


class _List(beam.DoFn):
    """A part -> packed batches, dead letters, and one `ListedPart`."""

    def __init__(self, config: PrepareConfig) -> None:
        self._config = config

    def start_bundle(self) -> None:
        self._tasks = TaskWindow(self._config.num_processes)
        self._context = share(PartContext(self._config, uuid.uuid4().hex))
        self._source: Source | None = None

    def process(self, part: str) -> Iterator[Any]:
        if self._config.source.kind in SMALL_PARTS:
            for batches, dead_letters, found in self._tasks.run(list_whole_part, self._context, part):
                yield from self._outputs([*batches, *dead_letters, found])
        else:
            self._source = self._source or open_to_list(self._config)
            yield from self._outputs(list_in_batches(self._source, part))

    def finish_bundle(self) -> Iterator[Any]:
        for batches, dead_letters, found in self._tasks.drain():
            for output in self._outputs([*batches, *dead_letters, found]):
                yield beam.pvalue.TaggedOutput(output.tag, WindowedValue(output.value, 0, [GlobalWindow()]))

    def _outputs(self, listed: Iterable[PackedBatch | DeadLetter | ListedPart]) -> Iterator[beam.pvalue.TaggedOutput]:
        for one in listed:
            if isinstance(one, PackedBatch):
                count(self._config.progress_directory, listed=one.num_images)
                yield beam.pvalue.TaggedOutput("images", one.images)
            else:
                yield beam.pvalue.TaggedOutput("dead_letters" if isinstance(one, DeadLetter) else "found", one)
