"""WriteShards: a TFRecord file and an index for each shard."""

from typing import Any, Iterator

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.windowed_value import WindowedValue

from beam_pipelines.config import PrepareConfig
from beam_pipelines.counters import count
from beam_pipelines.light_processes import TaskWindow, share
from beam_pipelines.shard_writer import ShardAddress, WriteContext, WrittenShard, write_shard
from beam_pipelines.sources import Listing


class WriteShards(beam.PTransform):
    """((split, shard index, number of shards), packed `References` in rank order) -> `WrittenShard`."""

    def __init__(self, config: PrepareConfig, listing: beam.pvalue.AsSingleton) -> None:
        super().__init__()
        self._config = config
        self._listing = listing

    def expand(self, shards: beam.PCollection) -> beam.PCollection:
        return shards | "Write" >> beam.ParDo(_Write(self._config), self._listing)


class _Write(beam.DoFn):
    def __init__(self, config: PrepareConfig) -> None:
        self._config = config

    def start_bundle(self) -> None:
        self._tasks = TaskWindow(self._config.num_processes)
        self._context = b""

    def process(self, element: tuple[tuple[str, int, int], bytes], listing: Listing) -> Iterator[Any]:
        if not self._context:
            self._context = share(self._make_context(listing))
        address, references = element
        yield from self._count(self._tasks.run(write_shard, self._context, ShardAddress(*address), references))

    def finish_bundle(self) -> Iterator[WindowedValue]:
        for shard in self._count(self._tasks.drain()):
            yield WindowedValue(shard, 0, [GlobalWindow()])

    def _count(self, shards: Iterator[WrittenShard]) -> Iterator[WrittenShard]:
        for shard in shards:
            count(self._config.progress_directory, written=shard.info.num_examples)
            yield shard

    def _make_context(self, listing: Listing) -> WriteContext:
        return WriteContext(
            root=listing.root,
            directory=self._config.working_directory,
            spool_directory=self._config.spool_directory,
            name=self._config.name,
            schema=listing.schema,
            has_checksums=self._config.check != "none",
            layout=self._config.output_layout,
        )
