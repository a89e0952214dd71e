"""Runs `recordmill analyze`, which applies TensorFlow Transform's analyzers to a dataset in one Beam job.

    shards -> record_batches -> AnalyzeDataset(preprocessing | user_preprocessing)
        -> OUT/transform_fn, OUT/transformed_metadata
"""

import contextlib
import dataclasses
import functools
import os
from typing import Any, Iterator

import apache_beam as beam
import tensorflow as tf
from apache_beam.options.pipeline_options import PipelineOptions

from beam_pipelines.config.job_options import AnalyzeOptions
from beam_pipelines.config.run_paths import PROGRESS, RunPaths
from beam_pipelines.errors import RunError, UserError, printable
from beam_pipelines.parallel import interrupts
from beam_pipelines.parallel.progress import Counts, Stage
from beam_pipelines.runners.jobs import EngineJobs
from beam_pipelines.runners.run import open_engine, run_pipeline
from beam_pipelines.transform.analysis_directory import analysis_directory, analysis_paths, check_analysis, image_sides, publish_analysis
from beam_pipelines.transform.analysis_summary import describe_analysis
from beam_pipelines.transform.graph_failures import GraphFailure, find_graph_failure, quiet_graph_failures, read_graph_failure
from beam_pipelines.transform.preprocessing import DefaultPreprocessing
from beam_pipelines.transform.record_batches import ReadRecordBatches, tensor_adapter_config
from beam_pipelines.transform.tft_modules import tft_beam
from beam_pipelines.transform.traced_preprocessing import BadOutputsError, Traced, find_line, trace, try_graph
from beam_pipelines.transform.user_preprocessing import UserPreprocessing
from tf_input.dataset import open as open_dataset
from tf_input.dataset_format import IMAGE, Manifest, read_manifest
from tf_input.features.decode_images import NUM_CHANNELS
from tf_input.read_config import ReadConfig
from tf_input.transform.transform_format import TRANSFORM, TRANSFORM_FN, TransformInfo, manifest_digest
from tf_input.transform.transform_graph import TransformGraph

_DEFAULT_SIZE = (224, 224)


def run_analyze(options: AnalyzeOptions, pipeline_options: PipelineOptions) -> str:
    """Analyzes a dataset. The analysis is published when it is complete. If it fails, an earlier analysis is kept.

    Args:
        options: The options of the command.
        pipeline_options: The options of the Beam pipeline.

    Returns:
        A description of the analysis.

    Raises:
        UserError: The dataset, the options or the user's module are invalid.
        RunError: The run failed, for example because a disk is full.
    """
    options, manifest = check_analysis(options)
    paths = [("OUT", options.directory)]
    engine = open_engine(pipeline_options, "analyze", paths, shared_filesystem=options.shared_filesystem, has_tensorflow=True)
    run = analysis_paths(options.directory)
    engine.set_defaults(manifest.name, output=run.output, run_id=run.id, has_tensorflow=True)
    analysis = Analysis.make(dataclasses.replace(options, directory=os.path.realpath(options.directory)), manifest)
    with analysis_directory(run, options.overwrite, EngineJobs(engine)):
        # All workers can access this directory, because they can access the dataset.
        with tft_beam.Context(temp_dir=f"{run.directory}/temporary"):
            traced = analysis.trace(f"{run.directory}/temporary")
            with analysis.explained(traced), quiet_graph_failures():
                progress_directory = f"{run.directory}/{PROGRESS}"
                run_pipeline(engine, lambda pipeline: analysis.add_steps(pipeline, run), progress_directory, analysis.stages)
        graph = TransformGraph(f"{run.directory}/complete/{TRANSFORM_FN}")
        analysis.check(graph, traced)
        analysis.publish(analysis.describe(graph, traced), run)
    return describe_analysis(options.directory)


def _warn_of_crop(options: AnalyzeOptions, image_size: tuple[int, int]) -> None:
    """Logs warnings about boxes, masks and dense targets that are lost because images are cropped."""
    data = open_dataset(options.directory)
    for split in options.splits:
        data.split_reader(split).plan(ReadConfig(1, image_size=image_size, fit=options.fit, shuffle=False, cache_in_memory=0))


@dataclasses.dataclass(frozen=True)
class Analysis:
    """The parameters of an analysis, with defaults for all unset options.

    Attributes:
        options: The options of the command, with an absolute path.
        manifest: The manifest of the dataset.
        preprocessing: The function from parsed features to transformed features. Both are dictionaries by name.
        example_bytes: The memory of a decoded example, in bytes.
    """

    options: AnalyzeOptions
    manifest: Manifest
    preprocessing: DefaultPreprocessing | UserPreprocessing
    example_bytes: int

    @classmethod
    def make(cls, options: AnalyzeOptions, manifest: Manifest) -> "Analysis":
        """Creates the parameters of an analysis.

        Raises:
            UserError: The user's module or the dataset is invalid, or the default preprocessing does not support the
                dataset.
        """
        if IMAGE not in manifest.features:
            for name in ("image_size", "fit"):
                if getattr(options, name) is not None:
                    raise UserError(f"--{name} needs images, and the dataset has none. Omit --{name}.")
        sides = image_sides(options.directory, manifest)
        image_size = options.image_size or _one_size(sides) or _DEFAULT_SIZE
        num_examples = sum(map(manifest.num_examples, options.splits))
        if options.preprocessing_module is None:
            channels = open_dataset(options.directory).channels or NUM_CHANNELS
            preprocessing = DefaultPreprocessing(manifest.schema, image_size, options.fit, num_examples, channels)
            if options.fit == "crop":
                _warn_of_crop(options, image_size)
        else:
            preprocessing = UserPreprocessing.read(options.preprocessing_module)
        # The mean size is enough to estimate the memory of a batch, because shards are shuffled.
        height, width = (side["mean"] if side else default for side, default in zip(sides, _DEFAULT_SIZE))
        num_pixels = max(height * width, image_size[0] * image_size[1])
        # Other images are assumed to have the same size as `image`.
        num_images = sum(feature.may_be_image for feature in manifest.schema)
        example_bytes = int(num_pixels) * NUM_CHANNELS * num_images if num_images else _record_bytes(manifest)
        return cls(options, manifest, preprocessing, example_bytes)

    @functools.cached_property
    def num_examples(self) -> int:
        """The number of examples to analyze."""
        return sum(map(self.manifest.num_examples, self.options.splits))

    def trace(self, temporary_directory: str) -> Traced:
        """Calls the preprocessing function once. Raises `UserError` if it fails or its outputs are invalid."""
        schema, targets = self.manifest.schema, self.manifest.targets
        file = None if isinstance(self.preprocessing, DefaultPreprocessing) else self.preprocessing.file
        try:
            with self._explained_tracing():
                return trace(self.preprocessing, tensor_adapter_config(schema), schema, targets, temporary_directory, file)
        except BadOutputsError as error:
            raise self._error(str(error), error.line) from None

    def add_steps(self, pipeline: beam.Pipeline, run: RunPaths) -> None:
        """Adds the steps that write the analysis to the directory of the run."""
        batches = pipeline | "ReadRecords" >> self._reader(f"{run.directory}/{PROGRESS}")
        with self._explained_tracing():
            transform_fn = (batches, tensor_adapter_config(self.manifest.schema)) | "Analyze" >> tft_beam.AnalyzeDataset(
                self.preprocessing
            )
        transform_fn | "WriteTransform" >> tft_beam.WriteTransformFn(f"{run.directory}/complete")

    def _reader(self, progress_directory: str = "") -> ReadRecordBatches:
        shards = [shard for split in self.options.splits for shard in self.manifest.splits[split]]
        return ReadRecordBatches(self.options.directory, shards, self.manifest.schema, self.example_bytes, progress_directory)

    def stages(self, counts: Counts) -> list[Stage]:
        """Returns the progress bar. Each phase of the analysis reads all examples."""
        num_iterations, num_done = divmod(max(counts.analyzed - 1, 0), self.num_examples)
        return [Stage("analysed", min(num_done + 1, counts.analyzed), self.num_examples, f"pass {num_iterations + 1}")]

    @contextlib.contextmanager
    def explained(self, traced: Traced) -> Iterator[None]:
        """Context manager that converts failures of the preprocessing graph to one-line errors.

        Raises:
            UserError: A graph of the user's module failed.
            RunError: A graph of the default preprocessing failed.
        """
        try:
            yield
        except (UserError, RunError, KeyboardInterrupt):
            raise
        except Exception as error:  # The runner can wrap the error in any class.
            failure = find_graph_failure(error)
            if failure is None:
                raise
            raise self._failure(failure, traced) from None

    def check(self, graph: TransformGraph, traced: Traced) -> None:
        """Applies the graph to a few records. Raises an error if it fails or does not return one row per record."""
        try:
            try_graph(graph, self._reader(), [feature.name for feature in traced.schema])
        except tf.errors.OpError as error:
            raise self._failure(read_graph_failure(error.message), traced) from None
        except BadOutputsError as error:
            raise self._error(str(error)) from None

    def _explained_tracing(self) -> contextlib.AbstractContextManager[None]:
        if isinstance(self.preprocessing, DefaultPreprocessing):
            return contextlib.nullcontext()
        return self.preprocessing.explained(BadOutputsError)

    def _error(self, reason: str, line: int | None = None) -> UserError:
        is_default = isinstance(self.preprocessing, DefaultPreprocessing)
        return UserError(reason) if is_default else self.preprocessing.error(reason, line)

    def _failure(self, failure: GraphFailure, traced: Traced) -> UserError | RunError:
        line = find_line(failure.operation, traced.lines)
        reason = failure.reason if line else f"{failure.reason} (operation {failure.operation or 'unknown'})"
        return RunError(reason) if isinstance(self.preprocessing, DefaultPreprocessing) else self._error(reason, line)

    def describe(self, graph: TransformGraph, traced: Traced) -> TransformInfo:
        """Returns the contents of `transform.json`, which describes the analysis."""
        schema, channels = traced.schema, None
        if isinstance(self.preprocessing, DefaultPreprocessing):
            if self.preprocessing.has_images:
                channels = {name: graph.value(f"channel_{name}").tolist() for name in ("mean", "variance")}
            schema = tuple(self.preprocessing.describe(feature) for feature in schema)
        digest = manifest_digest(self.manifest)
        return TransformInfo(digest, self.options.splits, self.num_examples, schema, traced.targets, channels)

    def publish(self, info: TransformInfo, run: RunPaths) -> None:
        """Publishes the analysis. Raises `RunError` if the dataset has changed or another run has taken over."""
        with open(f"{run.directory}/complete/{TRANSFORM}", "w", encoding="utf-8") as file:
            file.write(info.to_json())
        if manifest_digest(read_manifest(self.options.directory)) != info.manifest_sha256:
            raise RunError(
                f"{printable(self.options.directory)} was replaced during the analysis. Run the command again."
            )
        interrupts.check()
        publish_analysis(run)


def _record_bytes(manifest: Manifest) -> int:
    """Returns the mean length of a record, in bytes."""
    shards = [shard for shards in manifest.splits.values() for shard in shards]
    return max(1, sum(shard.num_bytes for shard in shards) // max(1, sum(shard.num_examples for shard in shards)))


def _one_size(sides: list[dict[str, Any] | None]) -> tuple[int, int] | None:
    """Returns the common (height, width) of all images, or None if the sizes differ or are unknown."""
    if any(side is None or side["min"] != side["max"] for side in sides):
        return None
    return sides[0]["max"], sides[1]["max"]
