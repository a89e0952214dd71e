"""ListImages: the source's inputs, a batch to an element, and what is known once all are listed."""

from typing import Any, Iterable, Iterator

import apache_beam as beam
from apache_beam.typehints.decorators import no_annotations

from beam_pipelines.buckets import Bucket, join_bucket, route_to_buckets
from beam_pipelines.config import PrepareConfig
from beam_pipelines.counters import count
from beam_pipelines.dead_letters import DeadLetter
from beam_pipelines.files import make_folder
from beam_pipelines.listing import ListedPart, list_part, make_listing
from beam_pipelines.references import LabeledImage, pack_images
from beam_pipelines.sources import Listing
from beam_pipelines.sources.open_source import open_source

# Enough images to make the cost of an element nothing, few enough that every worker gets some.
BATCH_IMAGES = 256


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
            | "List" >> beam.ParDo(_List(self._config)).with_outputs("found", "dead_letters", main="images")
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
    make_folder(config.working_directory)  # gone where a whole job is tried again after its end was not heard
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
    def __init__(self, config: PrepareConfig) -> None:
        self._config = config

    def process(self, part: str) -> Iterator[Any]:
        config = self._config
        source = open_source(config, with_sizes=config.is_inline, spool_directory=config.spool_directory)
        found = ListedPart()
        batch: list[LabeledImage] = []
        held: list[bytes] = []
        for listed in list_part(source, part, found):
            if isinstance(listed, DeadLetter):
                yield beam.pvalue.TaggedOutput("dead_letters", listed)
                continue
            batch.append(listed)
            if len(batch) == BATCH_IMAGES:
                if any(image.spool for image in batch):
                    held.append(self._pack(batch))  # until the source has closed its spool: nobody can read it before
                else:
                    yield self._pack(batch)
                batch = []
        yield from held
        if batch:
            yield self._pack(batch)
        yield beam.pvalue.TaggedOutput("found", found)

    def _pack(self, batch: list[LabeledImage]) -> bytes:
        count(self._config.progress_directory, listed=len(batch))
        return pack_images(batch)
