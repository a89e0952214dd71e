"""`recordmill transform`: the graph of `recordmill analyze`, applied to every example, in one Beam job.

    OUT's shards -> transform_shards -> OUT2's shards, of the same numbers -> transform_metadata
"""

from typing import Any, Iterator, Mapping

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from beam_pipelines.config.transform_config import TransformConfig
from beam_pipelines.parallel.progress import Counts, ProgressDisplay, Stage
from beam_pipelines.publish import summary
from beam_pipelines.publish.output_directory import working_directory
from beam_pipelines.publish.run_info import make_run_info
from beam_pipelines.quiet import import_quietly, quiet_engines
from beam_pipelines.runners.jobs import EngineJobs, choose_engine, explained_errors
from beam_pipelines.runners.waiting import run_job
from beam_pipelines.transform.transform_job import TransformedShard, TransformJob, make_job
from beam_pipelines.transform.transform_metadata import publish_transformed


def run_transform(config: TransformConfig, options: PipelineOptions) -> str:
    """Writes the transformed data set. Afterwards it is in place, whole, or nothing is.

    Args:
        config: The options of the command.
        options: The options of the Beam pipeline.

    Returns:
        The text to tell of the data set.

    Raises:
        UserError: The data set or the options are not fit to run.
        RunError: The run failed for a reason that the user can see.
    """
    quiet_engines()
    job = make_job(config)
    engine = choose_engine(options, "transform", has_tensorflow=True)
    paths = [("OUT", job.directory), ("OUT2", job.output)]
    engine.check(paths, shared_filesystem=config.shared_filesystem, wait=True)
    engine.set_defaults(job.name, output=job.output, run_id=job.run_id, has_tensorflow=True)
    num_examples = sum(map(job.manifest.num_examples, job.manifest.splits))
    with working_directory(job, jobs=EngineJobs(engine)), explained_errors(engine):
        pipeline = engine.make_pipeline()
        transform(pipeline, job, make_run_info(config, options, job.run_id))
        with ProgressDisplay(job.progress_directory, lambda counts: _stages(counts, num_examples)):
            run_job(pipeline, engine)
    return summary.describe_data_set(config.output)


def transform(root: beam.Pipeline, job: TransformJob, run_info: Mapping[str, Any]) -> beam.PCollection:
    """Adds the whole graph to a pipeline.

    Args:
        root: The pipeline to add it to.
        job: The job to do. Its working directory exists and is this run's alone.
        run_info: The contents of `run.json` for the run.

    Returns:
        The name of the data set, as the one element, once it is in place.
    """
    addresses = [(split, index) for split, shards in job.manifest.splits.items() for index in range(len(shards))]
    shards = (
        root
        | "ListShards" >> beam.Create(addresses)  # (split, shard index)
        | "SpreadShards" >> beam.Reshuffle()
        | "TransformShards" >> beam.ParDo(_TransformShard(job))  # TransformedShard
    )
    publish = beam.Map(lambda unused, shards: publish_transformed(job, run_info, shards), beam.pvalue.AsList(shards))
    return root | "Finish" >> beam.Impulse() | "Publish" >> publish


class _TransformShard(beam.DoFn):
    def __init__(self, job: TransformJob) -> None:
        self._job = job

    def setup(self) -> None:
        """TensorFlow is for workers: what is wrong with the options is answered without it."""
        self._transform_shard = import_quietly("beam_pipelines.transform.transform_shards", "tensorflow").transform_shard

    def process(self, address: tuple[str, int]) -> Iterator[TransformedShard]:
        yield self._transform_shard(self._job, *address)


def _stages(counts: Counts, num_examples: int) -> list[Stage]:
    return [Stage("written", counts.written, num_examples)]
