"""PrepareImages: reads and checks the images behind a listing, and keeps of each a reference."""

from typing import Any, Iterable, Iterator, Sequence

import apache_beam as beam
from apache_beam.typehints.decorators import no_annotations
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.windowed_value import WindowedValue

from beam_pipelines.config import PrepareConfig
from beam_pipelines.counters import count
from beam_pipelines.light_processes import TaskWindow, share
from beam_pipelines.input_reader import ReadContext
from beam_pipelines.read_images import ReadBatch, read_batch
from beam_pipelines.sources import Listing
from beam_pipelines.statistics import merge_statistics


class PrepareImages(beam.PTransform):
    """Packed batches of `LabeledImage` -> (packed `References`, one `ImageStatistics`, dead letters).

    Attributes:
        config: Which checks, and what is made of the images.
        listing: What is known of all of them.
        checked: What has to have ended before the first of them is read.
    """

    def __init__(self, config: PrepareConfig, listing: beam.pvalue.AsSingleton, checked: beam.pvalue.AsList) -> None:
        super().__init__()
        self._config = config
        self._listing = listing
        self._checked = checked

    @no_annotations  # Beam takes no tuple of PCollections for an output type
    def expand(self, images: beam.PCollection) -> tuple[beam.PCollection, beam.PCollection, beam.PCollection]:
        read = images | "Read" >> beam.ParDo(_Read(self._config), self._listing, self._checked).with_outputs(
            "references", "statistics", "dead_letters"
        )
        statistics = read.statistics | "MergeStatistics" >> beam.CombineGlobally(merge_statistics).without_defaults()
        return read.references, statistics, read.dead_letters


class _Read(beam.DoFn):
    def __init__(self, config: PrepareConfig) -> None:
        self._config = config

    def start_bundle(self) -> None:
        self._tasks = TaskWindow(self._config.num_processes)
        self._context = b""

    def process(self, images: bytes, listing: Listing, unused_checked: Sequence[None]) -> Iterator[Any]:
        if not self._context:
            self._context = share(self._make_context(listing))
        yield from self._outputs(self._tasks.run(read_batch, self._context, images))

    def finish_bundle(self) -> Iterator[Any]:
        for output in self._outputs(self._tasks.drain()):
            yield beam.pvalue.TaggedOutput(output.tag, WindowedValue(output.value, 0, [GlobalWindow()]))

    def _outputs(self, batches: Iterable[ReadBatch]) -> Iterator[beam.pvalue.TaggedOutput]:
        for batch in batches:
            num_bad = len(batch.dead_letters)
            num_checked = batch.statistics.num_examples + num_bad
            count(self._config.progress_directory, checked=num_checked, dead_letters=num_bad)
            yield beam.pvalue.TaggedOutput("references", batch.references)
            yield beam.pvalue.TaggedOutput("statistics", batch.statistics)
            for dead_letter in batch.dead_letters:
                yield beam.pvalue.TaggedOutput("dead_letters", dead_letter)

    def _make_context(self, listing: Listing) -> ReadContext:
        return ReadContext(
            root=listing.root,
            check=self._config.check,
            seed=self._config.seed,
            splits=listing.splits,
            fractions=listing.fractions,
            schema=listing.schema,
            num_inputs=listing.num_inputs,
            spool_directory=self._config.spool_directory,
            spools_all=self._config.is_inline,
            images=self._config.images,
            bad_boxes=self._config.source.bad_boxes,
        )
