"""Defines the Beam transform that writes a TFRecord file, an index file and a catalog file for each shard."""

import dataclasses
from typing import Iterable, Iterator

import apache_beam as beam

from beam_pipelines.elements.listing import Listing
from beam_pipelines.elements.plan import PlannedShard, ShardAddress
from beam_pipelines.parallel import progress
from beam_pipelines.parallel.worker_processes import share
from beam_pipelines.parallel.parallel_map import ParallelMap
from beam_pipelines.shards.shard_files import finish_shard, finished
from beam_pipelines.shards.shard_writer import write_part
from beam_pipelines.shards.written_part import ShardPart, WrittenPart
from beam_pipelines.shards.write_context import WriteContext, WriteSpec

# The minimum number of inputs in a part of a shard. Starting a part takes as long as reading several inputs.
_PART_INPUTS = 256


@dataclasses.dataclass
class WriteShards(beam.PTransform):
    """A Beam transform that writes planned shards, and emits their `ShardAddress`es. It skips complete shards.

    Attributes:
        spec: The options and the run.
        listing: The `Listing`, as a side input.
    """

    spec: WriteSpec
    listing: beam.pvalue.AsSingleton

    def expand(self, planned: beam.PCollection) -> beam.PCollection:
        # Without a shuffle, the worker that planned several shards may have to write all of them sequentially.
        return planned | "SpreadShards" >> beam.GroupByKey() | "Write" >> beam.ParDo(_Write(self.spec), self.listing)


class _Write(ParallelMap):
    def __init__(self, spec: WriteSpec) -> None:
        super().__init__(spec.run.num_processes, spec.run.id)
        self._spec = spec

    def start_bundle(self) -> None:
        super().start_bundle()
        self._context: WriteContext | None = None
        self._parts: list[WrittenPart] = []

    def process(self, element: tuple[str, Iterable[PlannedShard]], listing: Listing) -> Iterator[ShardAddress]:
        _, (shard,) = element
        if self._context is None:
            self._context = WriteContext(self._spec, listing)
            self._shared = share(self._context)
        if (done := finished(self._context, shard)) is not None:
            rejected = done.statistics.dead_letters.num
            progress.count(self._spec.run.progress_directory, written=done.info.num_examples + rejected, dead_letters=rejected)
            yield done.address
            return
        num_parts = choose_num_parts(shard, self._spec.run.num_processes)
        for number in range(num_parts):
            part = ShardPart(number, num_parts)
            yield from self.run(write_part, self._shared, shard, part)

    def take(self, result: WrittenPart) -> Iterator[ShardAddress]:
        """Collects the parts of a shard in order and completes the shard after its last part."""
        self._parts.append(result)
        if len(self._parts) == result.part.num_parts:
            parts, self._parts = self._parts, []
            yield finish_shard(self._context, result.shard, parts).address


def choose_num_parts(shard: PlannedShard, num_processes: int) -> int:
    """Returns the number of parts into which a shard is divided, so that several processes can write it.

    A shard is divided only if there are too few shards to keep all processes busy.
    """
    num_shards = shard.address.num_shards
    if num_shards >= 4 * num_processes or num_shards % max(num_processes, 1) == 0:
        return 1
    return max(1, min(-(-2 * num_processes // num_shards), shard.num_inputs // _PART_INPUTS))
