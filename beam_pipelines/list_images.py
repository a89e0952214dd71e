"""ListImages: the source's inputs, a batch to an element, and what is known once all are listed."""

from typing import Any, Iterator

import apache_beam as beam
from apache_beam.typehints.decorators import no_annotations

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

# Where image bytes go along, a batch of them is in memory.
BATCH_BYTES = 32 << 20


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
        # Only to spread the batches over the workers: the shuffle that matters comes later, by rank.
        images = listed.images | "SpreadOverWorkers" >> beam.Reshuffle()
        return images, listed.listing, listed.dead_letters


class _List(beam.DoFn):
    def __init__(self, config: PrepareConfig) -> None:
        self._config = config

    def process(self, unused: Any) -> Iterator[Any]:
        make_folder(self._config.working_directory)  # gone where a whole job is tried again after its end was not heard
        source = open_folder(self._config, with_sizes=self._config.is_inline)
        batch: list[LabeledImage] = []
        splits: set[str | None] = set()
        num_images = num_bytes = batch_bytes = 0
        dead_letters = DeadLetterCount()
        for listed in source:
            if isinstance(listed, DeadLetter):
                dead_letters.add([listed])
                yield beam.pvalue.TaggedOutput("dead_letters", listed)
                continue
            splits.add(listed.split)
            batch.append(listed)
            num_bytes += listed.num_bytes
            batch_bytes += listed.num_bytes
            if len(batch) == BATCH_IMAGES or batch_bytes >= BATCH_BYTES:
                num_images += len(batch)
                yield self._pack(batch)
                batch, batch_bytes = [], 0
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
