"""The whole graph on one page."""

from typing import Any, Iterator, Mapping

import apache_beam as beam
from apache_beam.pvalue import AsSingleton

from beam_pipelines.config.prepare_job import PrepareJob
from beam_pipelines.elements.plan import Plan
from beam_pipelines.elements.plan_files import read_plan
from beam_pipelines.errors import RunError
from beam_pipelines.leaks.written_leaks import find_written_leaks
from beam_pipelines.publish.left_run import is_in_place
from beam_pipelines.publish.write_metadata import WriteMetadata
from beam_pipelines.shards.hash_images import HashImages
from beam_pipelines.shards.measure import measure_inputs
from beam_pipelines.shards.write_shards import WriteShards
from beam_pipelines.shuffle.global_shuffle import GlobalShuffle
from beam_pipelines.sources.list_images import ListImages
from beam_pipelines.splits.assign_splits import AssignSplits
from beam_pipelines.splits.find_twins import FindTwins


def prepare(root: beam.Pipeline, config: PrepareJob, run_info: Mapping[str, Any]) -> beam.PCollection:
    """Builds the whole graph, from a folder of images to a globally shuffled data set: list, split, plan, write.

    Args:
        root: The pipeline to which the graph is added.
        config: The job. Its working directory exists and is this run's alone (see `launch`).
        run_info: The facts about the run that `run.json` has.

    Returns:
        A PCollection of one element, the name of the data set, once that is in place.
    """
    # sorted runs of references in the spool; no image is read
    listed = root | "ListImages" >> ListImages(config)

    # the same without duplicates, or with these in one group; images are read and hashed for that
    if config.duplicates:
        hashed = listed.runs | "HashImages" >> HashImages(config, AsSingleton(listed.listing))
        listed = hashed.runs | "FindTwins" >> FindTwins(config, listed, hashed.dead_letters)

    # the same with their splits, where a hash of each input's group alone does not say them
    if config.settles_splits:
        listed = listed._replace(**(listed.runs | "AssignSplits" >> AssignSplits(config, listed))._asdict())

    # (name, PlannedShard): here the run fails, before it writes, if two inputs have one key, or the folder is a wrong one
    planned = listed.runs | "GlobalShuffle" >> GlobalShuffle(config, listed, measure_inputs)

    # ShardAddress: each image is read once, by the writer of its shard
    written = planned | "WriteShards" >> WriteShards(config, AsSingleton(listed.listing))

    return written | "WriteMetadata" >> WriteMetadata(config, run_info, find_written_leaks)


def resume(root: beam.Pipeline, config: PrepareJob, run_info: Mapping[str, Any]) -> beam.PCollection:
    """Builds the rest of the graph of a run whose plan is there: the shards that are missing, and the metadata."""
    plan = root | "Start" >> beam.Impulse() | "ReadPlan" >> beam.FlatMap(read_plan_again, config)
    listing = AsSingleton(plan | "Listing" >> beam.Map(lambda plan: plan.listing))
    planned = plan | "Planned" >> beam.FlatMap(lambda plan: [(str(shard.address), shard) for shard in plan.shards()])
    written = planned | "WriteShards" >> WriteShards(config, listing)
    return written | "WriteMetadata" >> WriteMetadata(config, run_info, find_written_leaks)


def read_plan_again(unused: bytes, config: PrepareJob) -> Iterator[Plan]:
    """Reads the plan; none where a whole job is tried again after its end was not heard."""
    plan = read_plan(config)
    if plan is not None:
        yield plan
    elif not is_in_place(config):
        raise RunError("the plan of the run is gone")
