"""The Beam pipeline of `recordmill prepare`."""

from typing import Any, Iterator, Mapping

import apache_beam as beam
from apache_beam.pvalue import AsSingleton

from beam_pipelines.config.prepare_job import PrepareJob
from beam_pipelines.config.run_paths import RunPaths
from beam_pipelines.elements.plan import Plan
from beam_pipelines.elements.plan_files import read_plan
from beam_pipelines.errors import RunError
from beam_pipelines.leaks.written_leaks import find_written_leaks
from beam_pipelines.parallel import progress
from beam_pipelines.publish.resumable_run import is_published
from beam_pipelines.publish.write_metadata import WriteMetadata
from beam_pipelines.shards.hash_images import HashImages
from beam_pipelines.shards.measure import measure_inputs
from beam_pipelines.shards.write_shards import WriteShards
from beam_pipelines.shuffle.global_shuffle import GlobalShuffle
from beam_pipelines.sources.listing.list_images import ListImages
from beam_pipelines.splits.assign_splits import AssignSplits
from beam_pipelines.splits.find_near_duplicates import FindNearDuplicates


def prepare(root: beam.Pipeline, config: PrepareJob, run_info: Mapping[str, Any]) -> beam.PCollection:
    """Adds the steps of `recordmill prepare` to a Beam pipeline.

    Args:
        root: The pipeline.
        config: The configuration of the job. Its working directory exists, and no other run uses it (see `launch`).
        run_info: The contents of `run.json`, except the end time.

    Returns:
        A PCollection with one element, the name of the dataset, which is emitted after the dataset is published.
    """
    # Lists the inputs. Writes sorted references to temporary files, without reading images.
    listed = root | "ListImages" >> ListImages(config)

    # Reads and hashes all images, then drops or groups near-duplicates.
    if config.duplicates:
        hashed = listed.runs | "HashImages" >> HashImages(config, AsSingleton(listed.listing))
        listed = hashed.runs | "FindNearDuplicates" >> FindNearDuplicates(config, listed, hashed.dead_letters)

    # Assigns splits if they depend on more than a hash of the group.
    if config.resolves_splits:
        listed = listed._replace(**(listed.runs | "AssignSplits" >> AssignSplits(config, listed))._asdict())

    # Plans the shards as (name, PlannedShard). Fails if two inputs have the same key.
    planned = listed.runs | "GlobalShuffle" >> GlobalShuffle(config, listed, measure_inputs)

    # Writes the shards. Each image is read once, by the writer of its shard.
    written = planned | "WriteShards" >> WriteShards(config, AsSingleton(listed.listing))

    return written | "WriteMetadata" >> WriteMetadata(config, run_info, find_written_leaks)


def resume(root: beam.Pipeline, config: PrepareJob, run_info: Mapping[str, Any]) -> beam.PCollection:
    """Adds the steps of a resumed run to a Beam pipeline. They write the missing shards and the metadata."""
    plan = root | "Start" >> beam.Impulse() | "ReadPlan" >> beam.FlatMap(read_plan_again, config.run)
    listing = AsSingleton(plan | "Listing" >> beam.Map(lambda plan: plan.listing))
    planned = plan | "Planned" >> beam.FlatMap(lambda plan: [(str(shard.address), shard) for shard in plan.shards()])
    written = planned | "WriteShards" >> WriteShards(config, listing)
    return written | "WriteMetadata" >> WriteMetadata(config, run_info, find_written_leaks)


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
