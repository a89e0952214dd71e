"""Runs the Beam job of a command: chooses the engine, holds the working directory, and shows the progress."""

import contextlib
import dataclasses
import time
from typing import Any, Callable, Iterator, Mapping, Sequence

import apache_beam as beam
from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions
from apache_beam.runners.runner import PipelineResult

from beam_pipelines import log
from beam_pipelines.config.option import Options
from beam_pipelines.config.run_paths import PROGRESS, RunPaths
from beam_pipelines.errors import printable
from beam_pipelines.log import print_message
from beam_pipelines.parallel import interrupts, progress
from beam_pipelines.parallel.progress import Counts, ProgressDisplay, Stage
from beam_pipelines.publish.output import working_directory
from beam_pipelines.publish.resumable_run import ResumePolicy
from beam_pipelines.publish.run_info import make_run_info
from beam_pipelines.quiet import quiet_engines
from beam_pipelines.runners.engine import Engine
from beam_pipelines.runners.jobs import EngineJobs, choose_engine, explained_errors
from beam_pipelines.runners.waiting import run_job
from beam_pipelines.storage.files import is_remote

# Converts progress counts to progress bars.
Stages = Callable[[Counts], list[Stage]]


def open_engine(
    options: PipelineOptions,
    command: str,
    paths: Sequence[tuple[str, str]],
    *,
    shared_filesystem: bool,
    wait: bool = True,
    has_tensorflow: bool = False,
) -> Engine:
    """Returns the engine of a command and applies the options for object stores in this process.

    Args:
        options: The options of the Beam pipeline.
        command: The name of the command.
        paths: The (option, path) pairs of the paths that workers must be able to access.
        shared_filesystem: Whether workers can access local paths.
        wait: Whether the command waits until the job ends.
        has_tensorflow: Whether the job needs TensorFlow.

    Raises:
        UserError: The engine is unknown, cannot access a path, or cannot run the job with these options.
    """
    beam.io.filesystems.FileSystems.set_options(options)
    quiet_engines()
    engine = choose_engine(options, command, has_tensorflow=has_tensorflow)
    engine.check(paths, shared_filesystem=shared_filesystem, wait=wait)
    return engine


@dataclasses.dataclass(frozen=True)
class Run:
    """A run of a command that writes an output directory.

    Attributes:
        engine: The engine that runs the job.
        options: The options of the command, which `run.json` contains.
        name: The name of the dataset.
        paths: The paths, the ID and the processes of the run.
        inputs: The paths that workers access. If an object store does not respond for too long, the job is stopped.
        has_tensorflow: Whether the job needs TensorFlow.
        resume_policy: What to do if an interrupted run to the same output exists.
        is_submitted: Whether to only submit the job, without waiting until it ends.
    """

    engine: Engine
    options: Options
    name: str
    paths: RunPaths
    inputs: Sequence[str] = ()
    has_tensorflow: bool = False
    resume_policy: ResumePolicy = ResumePolicy.FAIL
    is_submitted: bool = False

    def execute(
        self,
        add_steps: Callable[[beam.Pipeline, RunPaths, Mapping[str, Any]], object],
        stages: Stages | None = None,
        *,
        is_finished: Callable[[RunPaths], bool] = lambda paths: False,
        finish: Callable[[RunPaths], object] = lambda paths: None,
    ) -> PipelineResult | None:
        """Runs the job in its working directory until it ends, or only submits the job.

        Args:
            add_steps: A function that adds the steps of the command to a pipeline, given the pipeline, the paths with
                the progress directory, and the contents of `run.json`.
            stages: A function that converts progress counts to progress bars. None shows the bars of `prepare`.
            is_finished: A function that returns whether the job is complete, so that no pipeline has to run.
            finish: A function to call in the working directory after the job has ended.

        Returns:
            The result of the submission, or None if the job has ended.
        """
        engine, paths = self.engine, self.paths
        engine.set_defaults(self.name, output=paths.output, run_id=paths.id, has_tensorflow=self.has_tensorflow)
        run_info = make_run_info(self.options, engine.options, paths.id)
        with (
            working_directory(paths, self.resume_policy, EngineJobs(engine)) as detach,
            _progress_directory(paths, engine, self.is_submitted) as directory,
            _logged(paths, directory, engine, run_info["options"]),
            explained_errors(engine),
        ):
            paths = dataclasses.replace(paths, progress_directory=directory)
            if is_finished(paths):
                return None
            if self.is_submitted:
                add_steps(pipeline := engine.make_pipeline(), paths, run_info)
                submitted = pipeline.run()
                detach()
                return submitted
            run_pipeline(engine, lambda pipeline: add_steps(pipeline, paths, run_info), directory, stages, self.inputs)
            finish(paths)
        return None


def run_pipeline(
    engine: Engine,
    add_steps: Callable[[beam.Pipeline], object],
    progress_directory: str,
    stages: Stages | None = None,
    paths: Sequence[str] = (),
) -> None:
    """Runs a job until it ends, and shows its progress unless the progress directory is an empty string."""
    with explained_errors(engine):
        add_steps(pipeline := engine.make_pipeline())
        with ProgressDisplay(progress_directory, stages) if progress_directory else contextlib.nullcontext():
            run_job(pipeline, engine, paths)


@contextlib.contextmanager
def _progress_directory(run: RunPaths, engine: Engine, is_submitted: bool) -> Iterator[str]:
    """Context manager for a directory in which workers store progress counts. For a submitted job, it yields ""."""
    if is_submitted:
        yield ""
    elif is_remote(run.output) and engine.is_local:
        with interrupts.temporary_folder() as directory:
            yield directory
    else:
        yield f"{run.directory}/{PROGRESS}"


@contextlib.contextmanager
def _logged(run: RunPaths, directory: str, engine: Engine, options: Mapping[str, Any]) -> Iterator[None]:
    """Context manager that logs the start and the end of a run, and adds the run ID to all log messages."""
    log.set_run(run.id, lambda: progress.stage_of(directory) if run.command == "prepare" else "write")
    began = time.monotonic()
    if log.is_kept():
        name = engine.options.view_as(GoogleCloudOptions).job_name
        message = f"run {run.id} to {printable(run.output)} on {engine.name}{name and f', job {name}' or ''}"
        print_message(message, options=options)
    try:
        yield
    except BaseException:
        stage = log.stage()  # Read before the progress files are removed.
        log.set_run(run.id, lambda: stage)
        raise
    log.set_run(run.id, lambda: "done")
    if log.is_kept():
        print_message(f"done after {time.monotonic() - began:.0f} s: {printable(run.output)}")
