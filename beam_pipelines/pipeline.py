"""The Beam pipeline of `recordmill prepare`."""

import functools
from typing import Any, Iterator, Mapping

import apache_beam as beam
from apache_beam.pvalue import AsSingleton

from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.config.run_paths import RunPaths
from beam_pipelines.elements.plan import Plan
from beam_pipelines.elements.plan_files import read_plan
from beam_pipelines.errors import RunError
from beam_pipelines.leaks.written_leaks import find_written_leaks
from beam_pipelines.parallel import progress
from beam_pipelines.publish.metadata import PublishSpec
from beam_pipelines.publish.resumable_run import is_published
from beam_pipelines.publish.write_metadata import WriteMetadata
from beam_pipelines.shards.hash_images import HashImages
from beam_pipelines.shards.measure import measure_inputs
from beam_pipelines.shards.write_context import WriteSpec
from beam_pipelines.shards.write_shards import WriteShards
from beam_pipelines.shuffle.global_shuffle import GlobalShuffle
from beam_pipelines.shuffle.ranks import ShuffleSpec
from beam_pipelines.sources.listing.list_images import ListImages
from beam_pipelines.splits.assign_splits import AssignSplits
from beam_pipelines.splits.find_near_duplicates import FindNearDuplicates
from beam_pipelines.splits.resolve_near_duplicates import DuplicateSpec
from beam_pipelines.splits.split_facts import SplitSpec


def prepare(root: beam.Pipeline, options: PrepareOptions, run: RunPaths, run_info: Mapping[str, Any]) -> beam.PCollection:
    """Adds the steps of `recordmill prepare` to a Beam pipeline.

    Args:
        root: The pipeline.
        options: The options of the command, with absolute paths and a known source.
        run: The run. Its working directory exists, and no other run uses it (see `launch`).
        run_info: The contents of `run.json`, except the end time.

    Returns:
        A PCollection with one element, the name of the dataset, which is emitted after the dataset is published.
    """
    # Lists the inputs. Writes sorted references to temporary files, without reading images.
    listed = root | "ListImages" >> ListImages(options, run)

    write_spec = WriteSpec.of(options, run)
    # Reads and hashes all images, then drops or groups near-duplicates.
    if options.duplicates:
        hashed = listed.runs | "HashImages" >> HashImages(write_spec, AsSingleton(listed.listing))
        listed = hashed.runs | "FindNearDuplicates" >> FindNearDuplicates(DuplicateSpec.of(options, run), listed, hashed.dead_letters)

    # Assigns splits if they depend on more than a hash of the group.
    if options.resolves_splits:
        listed = listed._replace(**(listed.runs | "AssignSplits" >> AssignSplits(SplitSpec.of(options, run), listed))._asdict())

    measure = functools.partial(measure_inputs, spec=write_spec)
    # Plans the shards as (name, PlannedShard). Fails if two inputs have the same key.
    planned = listed.runs | "GlobalShuffle" >> GlobalShuffle(ShuffleSpec.of(options, run), listed, measure)

    # Writes the shards. Each image is read once, by the writer of its shard.
    written = planned | "WriteShards" >> WriteShards(write_spec, AsSingleton(listed.listing))

    return written | "WriteMetadata" >> WriteMetadata(PublishSpec.of(options, run), run_info, find_written_leaks)


def resume(root: beam.Pipeline, options: PrepareOptions, run: RunPaths, run_info: Mapping[str, Any]) -> beam.PCollection:
    """Adds the steps of a resumed run to a Beam pipeline. They write the missing shards and the metadata."""
    plan = root | "Start" >> beam.Impulse() | "ReadPlan" >> beam.FlatMap(read_plan_again, run)
    listing = AsSingleton(plan | "Listing" >> beam.Map(lambda plan: plan.listing))
    planned = plan | "Planned" >> beam.FlatMap(lambda plan: [(str(shard.address), shard) for shard in plan.shards()])
    written = planned | "WriteShards" >> WriteShards(WriteSpec.of(options, run), listing)
    return written | "WriteMetadata" >> WriteMetadata(PublishSpec.of(options, run), run_info, find_written_leaks)


def read_plan_again(unused: bytes, run: RunPaths) -> Iterator[Plan]:
    """Yields the plan of the run and reports its number of inputs. Yields nothing if the dataset is already published.

    Raises:
        RunError: There is neither a plan nor a published dataset.
    """
    plan = read_plan(run)
    if plan is not None:
        num_planned = sum(split.num_inputs for split in plan.splits.values())
        progress.count(run.progress_directory, listed=num_planned, listing_done=1)
        yield plan
    elif not is_published(run):
        raise RunError("the plan of the run is missing. Run the same command again.")
