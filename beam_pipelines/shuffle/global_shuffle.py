"""Defines a Beam transform that computes the rank of each input, which is its index in the shuffled order of its split.

The rank determines the shard. Ranks depend only on the shuffle keys (see `ranks`). The order of elements in Beam is not
used, because neither `Reshuffle` nor a `GroupByKey` with random keys shuffles them in Beam's local runner. References
are sorted in temporary files, and Beam transfers only their locations. One worker merges the references in each range
of shuffle keys. A later step joins the references of each shard into one file of the plan.
"""

import dataclasses
from typing import Any, Iterable, Iterator, Mapping

import apache_beam as beam
import numpy as np
from apache_beam.pvalue import AsIter, AsSingleton
from apache_beam.typehints.decorators import no_annotations

from beam_pipelines.config.run_paths import RunPaths
from beam_pipelines.elements.listed import Listed
from beam_pipelines.elements.listing import Listing
from beam_pipelines.elements.plan import Plan, PlannedShard, ShardAddress, SplitShards, recordmill_version
from beam_pipelines.elements.plan_files import write_plan, write_planned_shard
from beam_pipelines.elements.reference_runs import SortedRun, SpoolRange, read_references, read_range, write_chunks
from beam_pipelines.elements.references import References
from beam_pipelines.elements.shuffle_keys import buckets, merge_counts
from beam_pipelines.errors import RunError
from beam_pipelines.parallel.progress import Stopwatch, count_in_beam
from beam_pipelines.parallel.read_ahead import read_ahead
from beam_pipelines.shuffle.collisions import Collisions, reject_collisions, sort_by_shuffle_key
from beam_pipelines.shuffle.ranks import ShufflePlan, ShuffleSpec, plan_shuffle
from beam_pipelines.shuffle.sample import Measure, check_sample, smallest_of_run, take_sample
from beam_pipelines.storage.files import is_remote
from beam_pipelines.storage.spool import SpoolReader


@dataclasses.dataclass
class GlobalShuffle(beam.PTransform):
    """A Beam transform that divides sorted references into shards. It emits the shards when the plan is complete.

    Attributes:
        spec: The options and the run.
        listed: The result of the listing stage.
        measure: The function that reads and encodes a sample before anything is written. See `sample`.
    """

    spec: ShuffleSpec
    listed: Listed
    measure: Measure

    @no_annotations
    def expand(self, runs: beam.PCollection) -> beam.PCollection:
        spec, listing = self.spec, AsSingleton(self.listed.listing)
        smallest = runs | "SmallestOfRuns" >> beam.FlatMap(smallest_of_run, listing, spec)
        plan = AsSingleton(
            runs.pipeline
            | "AfterTheRuns" >> beam.Impulse()
            | "PlanShuffle" >> beam.Map(make_plan, AsIter(smallest), AsIter(self.listed.counts), listing, spec, self.measure)
        )
        cut = (
            runs
            | "RouteToBlocks" >> beam.FlatMap(route_to_blocks, plan)  # (block, SpoolRange)
            | "GroupByBlock" >> beam.GroupByKey()
            | "CutShards" >> beam.FlatMap(cut_shards, plan, spec).with_outputs("collisions", main="chunks")
        )
        planned = (
            cut.chunks  # ((split, shard index), (block, number of references, SpoolRange))
            | "GroupByShard" >> beam.GroupByKey()
            | "WritePlan" >> beam.Map(join_shard, plan, spec.run)
        )
        rejected = AsIter(cut.collisions), AsIter(self.listed.dead_letters)
        # Record the version of Recordmill that starts the run. Workers may have another version.
        version = recordmill_version()
        finished = (
            runs.pipeline
            | "AfterPlanning" >> beam.Impulse()
            | "FinishPlan" >> beam.Map(finish, AsIter(planned), *rejected, plan, listing, spec, version)
        )
        return planned | "AfterThePlan" >> beam.Map(lambda planned, unused: (str(planned.address), planned), AsSingleton(finished))


def make_plan(
    unused: bytes,
    smallest: Iterable[bytes],
    counts: Iterable[Mapping[str, bytes]],
    listing: Listing,
    spec: ShuffleSpec,
    measure: Measure,
) -> ShufflePlan:
    """Determines the number of shards, and the ranges of shuffle keys that workers sort.

    Raises an error before any shard is written, if most inputs are invalid.
    """
    by_split = merge_counts(counts)
    stopwatch = Stopwatch("plan")
    num_shards = check_sample(take_sample(smallest), listing, by_split, spec, measure)
    plan = plan_shuffle(by_split, num_shards, listing.reference_bytes)
    count_in_beam(stopwatch.lap())
    return plan


def route_to_blocks(run: SortedRun, plan: ShufflePlan) -> Iterator[tuple[int, SpoolRange]]:
    """Yields the index of each range of shuffle keys, and the byte range of the references with these keys."""
    return run.cut(plan.order_bounds())


def cut_shards(element: tuple[int, Iterable[SpoolRange]], plan: ShufflePlan, spec: ShuffleSpec) -> Iterator[Any]:
    """Sorts the references in one range of shuffle keys and yields the references that belong to each shard.

    Raises:
        RunError: The runner lost or repeated references.
    """
    block, chunks = element
    stopwatch = Stopwatch("plan")
    with SpoolReader(spec.run.spool_directory) as spool:
        references = References.concatenate(_read_all(list(chunks), spool, spec.run.spool_directory))
    first, stop = plan.block_bounds[block : block + 2].tolist()
    in_block = buckets(references.rows["order"])
    ordered, collisions = sort_by_shuffle_key(references, np.flatnonzero((in_block >= first) & (in_block < stop)), spec.seed)
    addresses, ranges, behind = [], [], 0
    for split_number, name in enumerate(ordered.splits):
        actual = int(np.count_nonzero(ordered.rows["split"] == split_number))
        split = plan.splits.get(name)
        begin, end = split.before[[first, stop]].tolist() if split else (0, 0)
        if actual != end - begin:
            raise RunError(
                f"split {name}: {actual} of {end - begin} references with ranks {begin} to {end} arrived. The runner "
                "lost or repeated some. Run the same command again."
            )
        for shard_index, low, high in split.cut(begin, end) if split else ():
            addresses.append((name, shard_index))
            ranges.append((behind + low - begin, behind + high - begin))
        behind += actual
    if collisions.num:
        yield beam.pvalue.TaggedOutput("collisions", collisions)
    chunks = write_chunks(ordered, ranges, spec.run.spool_directory)
    count_in_beam(stopwatch.lap())
    for address, (start, stop), spool_range in zip(addresses, ranges, chunks):
        yield address, (block, stop - start, spool_range)


def _read_all(chunks: list[SpoolRange], spool: SpoolReader, spool_directory: str) -> list[References]:
    if not is_remote(spool_directory):
        return [read_references(spool_range, spool) for spool_range in chunks]
    return list(read_ahead(lambda spool_range: read_references(spool_range, spool), ((spool_range, spool_range.num_bytes) for spool_range in chunks)))


def join_shard(
    element: tuple[tuple[str, int], Iterable[tuple[int, int, SpoolRange]]], plan: ShufflePlan, run: RunPaths
) -> PlannedShard:
    """Joins the sorted references of a shard and writes these references to one file of the plan.

    Raises:
        RunError: The runner lost or repeated references.
    """
    (split, shard_index), chunks = element
    chunks = sorted(chunks)
    actual, of_split = sum(num for _, num, _ in chunks), plan.splits[split]
    expected = of_split.first_rank(shard_index + 1) - of_split.first_rank(shard_index)
    address = ShardAddress(split, shard_index, of_split.num_shards)
    if actual != expected:
        raise RunError(
            f"shard {address}: {actual} of {expected} references arrived. The runner lost or repeated some. Run the "
            "same command again."
        )
    with SpoolReader(run.spool_directory) as spool:
        data = b"".join(read_range(spool_range, spool) for _, _, spool_range in chunks)
    return write_planned_shard(run, PlannedShard(address, expected), data)


def finish(
    unused: bytes,
    planned: Iterable[PlannedShard],
    collisions: Iterable[Collisions],
    dead_letters: Iterable[SpoolRange],
    plan: ShufflePlan,
    listing: Listing,
    spec: ShuffleSpec,
    version: str,
) -> None:
    """Writes the plan's summary after checking that keys are unique and all shards are planned.

    Raises:
        UserError: Two inputs have the same key.
        RunError: The runner lost or repeated shards.
    """
    reject_collisions(Collisions.merge(collisions), spec.input, spec.source, listing)
    splits = {split: SplitShards(entry.num_inputs, entry.num_shards) for split, entry in plan.splits.items()}
    num_planned, num_shards = sum(1 for _ in planned), sum(split.num_shards for split in splits.values())
    if num_planned != num_shards:
        raise RunError(
            f"{num_planned} of {num_shards} shards were planned. The runner lost or repeated some. Run the same "
            "command again."
        )
    if listing.division:
        division = listing.division.with_inputs({split: item.num_inputs for split, item in splits.items()})
        listing = dataclasses.replace(listing, division=division)
    write_plan(spec.run, Plan(spec.texts, spec.run.is_output_new, listing, splits, tuple(dead_letters), version))
