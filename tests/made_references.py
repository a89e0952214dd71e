"""Creates references to inputs in the same way as the listing stage, and plans shards without Beam."""

import pathlib
from collections import defaultdict
from typing import Any, Callable, Iterable, Mapping, NamedTuple, Sequence
from unittest import mock

import apache_beam as beam
import numpy as np

from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.config.source_config import SourceConfig
from beam_pipelines.config.run_paths import RunPaths
from beam_pipelines.config.stage_spec import Spec
from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.input_record import InputRecord
from beam_pipelines.elements.listed_values import value_writer
from beam_pipelines.elements.listing import Listing
from beam_pipelines.elements.plan import PlannedShard
from beam_pipelines.elements.reference_runs import write_run
from beam_pipelines.elements.references import References
from beam_pipelines.elements.shuffle_keys import KeyCounts, merge_counts
from beam_pipelines.shuffle.collisions import Collisions
from beam_pipelines.shuffle.global_shuffle import cut_shards, join_shard, route_to_blocks
from beam_pipelines.shuffle.ranks import ShufflePlan, ShuffleSpec, plan_shuffle
from beam_pipelines.sources.listing.list_images import join_listings
from beam_pipelines.sources.listing.list_part import list_part
from beam_pipelines.sources.listing.listed_facts import ListedFacts
from beam_pipelines.sources.listing.part_listing import ReferenceMaker
from beam_pipelines.sources.open_source import open_source
from beam_pipelines.sources.registry import find_kind
from beam_pipelines.sources.source import Source
from tf_input.dataset_format import Feature


class MadeRun(NamedTuple):
    """The options and the run of a test."""

    options: PrepareOptions
    run: RunPaths

    def spec(self, kind: type[Spec]) -> Spec:
        """Returns the values that the workers of a stage need."""
        return kind.of(self.options, self.run)


def make_run(directory: pathlib.Path, num_processes: int = 0, lists_in_threads: bool = False, **options: Any) -> MadeRun:
    """Returns a run in the given directory and creates its scratch directory."""
    defaults = {"input": "in", "output": str(directory / "out"), "name": "made", "source": SourceConfig(kind=find_kind("image_folder"))}
    given = PrepareOptions(**{**defaults, **options})
    made = MadeRun(given, RunPaths(given.output, num_processes=num_processes, lists_in_threads=lists_in_threads))
    pathlib.Path(made.run.scratch_directory).mkdir(parents=True, exist_ok=True)
    return made


def make_references(images: Sequence[InputRecord], made: MadeRun, features: Sequence[Feature] = ()) -> References:
    """Returns the references that the listing stage creates for the given inputs and features."""
    with value_writer(made.run.spool_directory) as values:
        return ReferenceMaker(made.options, features).make(images, values, ListedFacts())


def list_parts(source: Source, parts: Iterable[str]) -> tuple[list[InputRecord | DeadLetter], ListedFacts]:
    """Lists parts of a source. Returns the inputs of all parts, and the merged `ListedFacts`."""
    inputs, merged = [], ListedFacts()
    for part in parts:
        actual = ListedFacts()
        for listed in list_part(source, part, actual):
            inputs += listed if isinstance(listed, list) else [listed]
        merged.merge(actual)
    return inputs, merged


def list_input(made: MadeRun) -> tuple[list[References], list[DeadLetter], Listing]:
    """Lists the input of a run in the same way as workers, but without Beam."""
    batches, dead_letters, facts = [], [], ListedFacts()
    source = open_source(made.options, spool_directory=made.run.spool_directory)
    maker = ReferenceMaker(made.options, source.features)
    with value_writer(made.run.spool_directory) as values:
        for part in source.parts():
            actual = ListedFacts()
            for listed in list_part(source, part, actual):
                is_batch = isinstance(listed, list)
                (batches if is_batch else dead_letters).append(maker.make(listed, values, actual) if is_batch else listed)
            facts.merge(actual)
    return batches, dead_letters, join_listings(b"", [facts], *made)


def count_keys(batches: Iterable[References]) -> dict[str, np.ndarray]:
    """Returns the merged histogram of the shuffle keys in all batches, which determines the shards."""
    return merge_counts(counts_of_parts(batches))


def counts_of_parts(batches: Iterable[References]) -> list[dict[str, bytes]]:
    """Returns the serialized histogram of the shuffle keys in each batch."""
    parts = []
    for batch in batches:
        counts = KeyCounts()
        for location, split in enumerate(batch.splits):
            if (orders := batch.rows["order"][batch.rows["split"] == location]).size:
                counts.add(split, orders)
        parts.append(counts.pack())
    return parts


def reverse(address: Any, arrived: list) -> list:
    """Returns grouped values in reverse order, because a Beam runner may also change the order of the values."""
    return arrived[::-1]


def plan_without_beam(
    batches: Sequence[References],
    num_shards: Mapping[str, int],
    made: MadeRun,
    change_block: Callable[[int, list], list] = reverse,
    change_shard: Callable[[tuple[str, int], list], list] = reverse,
    block_references: int = 1 << 19,
) -> tuple[list[PlannedShard], Collisions, ShufflePlan]:
    """Plans shards without Beam. The functions `change_block` and `change_shard` imitate reordering by a runner."""
    with mock.patch("beam_pipelines.shuffle.ranks.BLOCK_REFERENCES", block_references):
        plan = plan_shuffle(count_keys(batches), num_shards)
    blocks, shards, collisions = defaultdict(list), defaultdict(list), []
    for batch in batches:
        for block, spool_range in route_to_blocks(write_run([batch], made.run.spool_directory), plan):
            blocks[block].append(spool_range)
    for block, chunks in blocks.items():
        for output in cut_shards((block, change_block(block, chunks)), plan, made.spec(ShuffleSpec)):
            if isinstance(output, beam.pvalue.TaggedOutput):
                collisions.append(output.value)
            else:
                shards[output[0]].append(output[1])
    planned = [join_shard((address, change_shard(address, chunks)), plan, made.run) for address, chunks in shards.items()]
    return sorted(planned), Collisions.merge(collisions), plan
