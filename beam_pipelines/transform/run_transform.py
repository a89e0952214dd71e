"""Runs `recordmill transform`, which applies the graph of `recordmill analyze` to all examples in one Beam job.

    shards of OUT -> transform_shards -> shards of OUT2 with the same numbers -> transform_metadata
"""

from typing import Any, Iterator, Mapping

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from beam_pipelines.config.run_paths import RunPaths
from beam_pipelines.config.job_options import TransformOptions
from beam_pipelines.parallel.progress import Stage
from beam_pipelines.publish import summary
from beam_pipelines.publish.check_paths import is_new
from beam_pipelines.quiet import import_quietly
from beam_pipelines.runners.run import Run, open_engine
from beam_pipelines.transform.transform_job import TransformedShard, TransformJob, make_job
from beam_pipelines.transform.transform_metadata import publish_transformed


def run_transform(options: TransformOptions, pipeline_options: PipelineOptions) -> str:
    """Writes the transformed dataset and publishes it when it is complete.

    Args:
        options: The options of the command.
        pipeline_options: The options of the Beam pipeline.

    Returns:
        A description of the dataset.

    Raises:
        UserError: The dataset or the options are invalid.
        RunError: The run failed, for example because a disk is full.
    """
    job = make_job(options)
    paths = [("OUT", job.directory), ("OUT2", job.output)]
    engine = open_engine(pipeline_options, "transform", paths, shared_filesystem=options.shared_filesystem, has_tensorflow=True)
    num_examples = sum(map(job.manifest.num_examples, job.manifest.splits))
    stages = lambda counts: [Stage("written", counts.written, num_examples)]
    paths = RunPaths.start(job.output, "transform", is_output_new=is_new(job.output))
    add_steps = lambda pipeline, paths, run_info: transform(pipeline, job, paths, run_info)
    Run(engine, options, job.name, paths, has_tensorflow=True).execute(add_steps, stages)
    return summary.describe_dataset(options.output)


def transform(root: beam.Pipeline, job: TransformJob, run: RunPaths, run_info: Mapping[str, Any]) -> beam.PCollection:
    """Adds the steps of `recordmill transform` to a Beam pipeline.

    Args:
        root: The pipeline.
        job: The parameters of the transform.
        run: The run. Its working directory exists and belongs to this run only.
        run_info: The contents of `run.json`.

    Returns:
        A PCollection with one element, the name of the dataset, which is emitted after the dataset is published.
    """
    addresses = [(split, index) for split, shards in job.manifest.splits.items() for index in range(len(shards))]
    shards = (
        root
        | "ListShards" >> beam.Create(addresses)  # (split, shard index)
        | "SpreadShards" >> beam.Reshuffle()
        | "TransformShards" >> beam.ParDo(_TransformShard(job, run))  # TransformedShard
    )
    publish = beam.Map(lambda unused, shards: publish_transformed(job, run, run_info, shards), beam.pvalue.AsList(shards))
    return root | "Finish" >> beam.Impulse() | "Publish" >> publish


class _TransformShard(beam.DoFn):
    def __init__(self, job: TransformJob, run: RunPaths) -> None:
        self._job, self._run = job, run

    def setup(self) -> None:
        """Imports TensorFlow in the worker only, so that invalid options are reported before the slow import."""
        self._transform_shard = import_quietly("beam_pipelines.transform.transform_shards", "tensorflow").transform_shard

    def process(self, address: tuple[str, int]) -> Iterator[TransformedShard]:
        yield self._transform_shard(self._job, self._run, *address)
