"""ListImages: the source's inputs, a batch to an element, and what is known once all are listed."""

from typing import Any, Iterable, Iterator

import apache_beam as beam
from apache_beam.typehints.decorators import no_annotations

from beam_pipelines.buckets import Bucket, join_bucket, route_to_buckets
from beam_pipelines.config import DEFAULT_SPLITS, PrepareConfig
from beam_pipelines.counters import count
from beam_pipelines.dead_letters import DeadLetter, DeadLetterCount
from beam_pipelines.errors import UserError
from beam_pipelines.files import make_folder
from beam_pipelines.references import LabeledImage, pack_images
from beam_pipelines.sources import Listing
from beam_pipelines.sources.image_objects import open_folder

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
            | "List" >> beam.ParDo(_List(self._config)).with_outputs("listing", "dead_letters", main="images")
        )
        spread = self._in_shuffle_order if self._config.is_inline else self._in_any_order
        return spread(listed.images, beam.pvalue.AsSingleton(listed.listing)), listed.listing, listed.dead_letters

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


def join_group(element: tuple[Bucket, Iterable[bytes]], seed: int) -> bytes:
    return join_bucket(element[1], seed)


class _List(beam.DoFn):
    def __init__(self, config: PrepareConfig) -> None:
        self._config = config

    def process(self, unused: Any) -> Iterator[Any]:
        make_folder(self._config.working_directory)  # gone where a whole job is tried again after its end was not heard
        source = open_folder(self._config, with_sizes=self._config.is_inline)
        batch: list[LabeledImage] = []
        splits: set[str | None] = set()
        num_images = num_bytes = 0
        dead_letters = DeadLetterCount()
        for listed in source:
            if isinstance(listed, DeadLetter):
                dead_letters.add([listed])
                yield beam.pvalue.TaggedOutput("dead_letters", listed)
                continue
            splits.add(listed.split)
            batch.append(listed)
            num_bytes += listed.num_bytes
            if len(batch) == BATCH_IMAGES:
                num_images += len(batch)
                yield self._pack(batch)
                batch = []
        if batch:
            num_images += len(batch)
            yield self._pack(batch)
        if not num_images:
            raise UserError(f"no class has a readable image; among the dead letters:{dead_letters.describe()}")
        count(self._config.progress_directory, listing_done=1)
        by_key = splits <= {None}
        fractions = (self._config.splits or DEFAULT_SPLITS) if by_key else None
        yield beam.pvalue.TaggedOutput(
            "listing",
            Listing(
                root=source.root,
                label_names=tuple(sorted(source.labels)),
                splits=tuple(fractions) if fractions else tuple(sorted(splits, key=_split_order)),
                fractions=fractions,
                num_inputs=num_images + dead_letters.num,
                num_bytes=num_bytes,
                num_ignored=source.num_ignored,
                dead_letters=dead_letters,
            ),
        )

    def _pack(self, batch: list[LabeledImage]) -> bytes:
        count(self._config.progress_directory, listed=len(batch))
        return pack_images(batch)


def _split_order(split: str) -> tuple[int, str]:
    known = ("train", "validation", "test")
    return (known.index(split) if split in known else len(known), split)
