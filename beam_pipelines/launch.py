"""Runs `recordmill prepare`: completes the configuration, creates a working directory and runs the job."""

import contextlib
import dataclasses
import os
import time
import uuid
from typing import Any, Iterator, Mapping, Sequence

import apache_beam as beam
from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions
from apache_beam.runners.runner import PipelineResult

from beam_pipelines import log
from beam_pipelines.config.class_files import read_class_tables
from beam_pipelines.config.option import texts
from beam_pipelines.config.output_paths import PROGRESS
from beam_pipelines.config.prepare_config import PrepareConfig
from beam_pipelines.config.prepare_job import PrepareJob
from beam_pipelines.elements.class_tables import describe_changes
from beam_pipelines.errors import UserError, printable
from beam_pipelines.estimate import describe_estimate, make_estimate
from beam_pipelines.log import print_message
from beam_pipelines.parallel import interrupts, progress
from beam_pipelines.parallel.progress import ProgressDisplay
from beam_pipelines.pipeline import prepare, resume
from beam_pipelines.publish.resumable_run import ResumableRun, ResumePolicy, find_resumable_run, is_done
from beam_pipelines.publish.output_directory import check_input, check_paths, is_new, remove_leftovers, wait_for_others, working_directory
from beam_pipelines.publish.publishing import finish_publishing
from beam_pipelines.publish.run_info import make_run_info
from beam_pipelines.quiet import quiet_engines
from beam_pipelines.runners.engine import Engine
from beam_pipelines.runners.jobs import EngineJobs, choose_engine, explained_errors
from beam_pipelines.runners.waiting import run_job
from beam_pipelines.sources.guess import guess_source
from beam_pipelines.sources.open_source import open_source
from beam_pipelines.splits.earlier_splits import check_earlier_splits
from beam_pipelines.storage.files import any_remote, is_remote


def run_prepare(
    config: PrepareConfig,
    options: PipelineOptions,
    *,
    overwrite: bool = False,
    resume_policy: ResumePolicy = ResumePolicy.FAIL,
    shared_filesystem: bool = False,
    wait: bool = True,
) -> str | None:
    """Runs `recordmill prepare`.

    After success, the output directory contains the complete dataset. After a failure, it contains no new files, but
    files from which the run can be resumed may remain beside it.

    Args:
        config: The user's configuration of the run.
        options: The options of the Beam pipeline.
        overwrite: Whether to replace a dataset at the output when the new dataset is complete.
        resume_policy: What to do if an interrupted run to the same output exists.
        shared_filesystem: Whether workers can access local paths.
        wait: Whether to wait until the job ends. Services such as Dataflow can run a job without a waiting client.

    Returns:
        None if the dataset is complete. A message about the submitted job if the function did not wait.

    Raises:
        UserError: The input or the options are invalid.
        RunError: The run failed, for example because a disk is full.
    """
    beam.io.filesystems.FileSystems.set_options(options)  # Credentials and endpoints for object stores.
    quiet_engines()
    others = (("--image_root", config.source.image_root), ("--splits_from", config.splits_from))
    paths = [("--input", config.input), ("--output", config.output), *((option, path) for option, path in others if path)]
    engine = choose_engine(options)
    engine.check(paths, shared_filesystem=shared_filesystem, wait=wait)
    check_paths(config, overwrite, resume_policy)
    job, left = resolve_job(config, engine), None
    replaces = overwrite and not job.is_output_new
    if resume_policy is ResumePolicy.RESUME:
        wait_for_others(job)
        left = find_resumable_run(job)
        if not left and not overwrite and is_done(job):
            remove_leftovers(job)
            print_message("--resume: the dataset is complete, so there is nothing to do")
            return None
        if not left:
            print_message("--resume: no run to resume, so this run starts from the beginning")
            resume_policy = ResumePolicy.FAIL
    job = _name_run(job, left)
    engine.set_defaults(job.name, output=job.output, run_id=job.run_id)
    replaced = _replaced_classes(job.output) if replaces else {}
    submitted = _run(job, left, engine, resume_policy, [path for _, path in paths], is_submitted=engine.takes_jobs and not wait)
    if submitted is not None:
        return engine.describe_job(submitted, job.output, may_renumber=any(replaced.values()) and not job.source.first_label_names)
    for line in describe_changes(replaced, read_class_tables(job.output)) if replaced else ():
        print_message(line, "warning")
    return None


def _name_run(job: PrepareJob, left: ResumableRun | None) -> PrepareJob:
    """Returns a job with a new run ID, or with the ID of the interrupted run that it resumes."""
    run_id, is_output_new = uuid.uuid4().hex, job.is_output_new
    if left:
        run_id = left.run_id
        if left.plan and is_remote(job.output):
            is_output_new = left.plan.config.is_output_new  # An object store cannot rename files.
    return dataclasses.replace(job, run_id=run_id, holder=uuid.uuid4().hex, is_output_new=is_output_new)


def _run(
    job: PrepareJob, left: ResumableRun | None, engine: Engine, resume_policy: ResumePolicy, paths: Sequence[str], *, is_submitted: bool
) -> PipelineResult | None:
    """Runs a job until it ends, or only submits it.

    Args:
        job: The job.
        left: The interrupted run to resume, or None.
        engine: The engine that runs the job.
        resume_policy: What to do if an interrupted run to the same output exists.
        paths: The paths that workers access. If an object store does not respond for too long, the job is stopped.
        is_submitted: Whether to only submit the job, without waiting until it ends.

    Returns:
        The result of the submission, or None if the job has ended.
    """
    with (
        working_directory(job, resume_policy, EngineJobs(engine)) as detach,
        _progress_directory(job, engine, is_submitted) as progress_directory,
    ):
        job = dataclasses.replace(job, progress_directory=progress_directory)
        with _logged(job, engine), explained_errors(engine):
            if left and finish_publishing(job):
                return None
            pipeline = _make_pipeline(job, engine, left)
            if is_submitted:
                submitted = pipeline.run()
                detach()
                return submitted
            with ProgressDisplay(progress_directory, progress.stages_with_hashing if job.duplicates and not left else None):
                run_job(pipeline, engine, paths)
    return None


@contextlib.contextmanager
def _logged(job: PrepareJob, engine: Engine) -> Iterator[None]:
    """Context manager that logs the start and the end of a run, and adds the run ID to all log messages."""
    log.set_run(job.run_id, lambda: progress.stage_of(job.progress_directory))
    began = time.monotonic()
    if log.is_kept():
        name = engine.options.view_as(GoogleCloudOptions).job_name
        print_message(f"run {job.run_id} to {printable(job.output)} on {engine.name}{name and f', job {name}' or ''}", options=texts(job))
    try:
        yield
    except BaseException:
        stage = log.stage()  # Read before the progress files are removed.
        log.set_run(job.run_id, lambda: stage)
        raise
    log.set_run(job.run_id, lambda: "done")
    if log.is_kept():
        print_message(f"done after {time.monotonic() - began:.0f} s: {printable(job.output)}")


def _make_pipeline(job: PrepareJob, engine: Engine, left: ResumableRun | None) -> beam.Pipeline:
    """Creates the pipeline of a new run or of a resumed run."""
    pipeline = engine.make_pipeline()
    run_info = make_run_info(job, engine.options, job.run_id)
    if left is None:
        prepare(pipeline, job, run_info)
    else:
        num_planned = sum(split.num_inputs for split in left.plan.splits.values())
        progress.count(job.progress_directory, listed=num_planned, listing_done=1)
        resume(pipeline, job, run_info)
    return pipeline


def _replaced_classes(output: str) -> Mapping[str, tuple[str, ...]]:
    try:
        return read_class_tables(output)
    except (ValueError, UserError) as error:  # --overwrite may replace a corrupt dataset or another format version.
        print_message(f"Cannot check that classes keep their numbers: {error}", "warning")
        return {}


def run_estimate(config: PrepareConfig, options: PipelineOptions) -> str:
    """Returns a text with the estimated output size and duration. Raises `UserError` if the input is invalid."""
    beam.io.filesystems.FileSystems.set_options(options)
    check_input(config.input)
    engine = choose_engine(options)
    estimate = make_estimate(resolve_source(config))
    return describe_estimate(estimate, None if engine.is_local else engine.start_seconds)


def resolve_source(config: PrepareConfig) -> PrepareConfig:
    """Detects the kind of the source, and whether examples have images. Logs what was detected.

    Raises:
        UserError: The kind cannot be detected, or the input or options do not match the source.
    """
    source = config.source
    if source.kind is None:
        guess = guess_source(config.input, source)
        source = dataclasses.replace(source, kind=guess.kind)
        print_message(f"--source={guess.kind.name}, detected from {guess.evidence}")
    if source.image_root is not None:
        source = dataclasses.replace(source, image_root=_absolute(source.image_root, os.path.abspath))
    if config.splits_from is not None:
        config = dataclasses.replace(config, splits_from=_absolute(config.splits_from, os.path.abspath))
        check_earlier_splits(config)
    config = dataclasses.replace(config, source=source)
    opened = open_source(config)
    if source.has_images and source.kind.may_omit_images and not opened.has_images:
        config = dataclasses.replace(config, source=dataclasses.replace(source, has_images=False))
        if not source.kind.is_of_values:
            print_message(f"--image=none, because {printable(config.input)} has no images")
        opened = open_source(config)
    reads_folders = source.kind.has_class_folders and opened.targets and config.label_pattern is None
    is_open = reads_folders and source.class_folder_depth is None
    if is_open and (reading := opened.choose_class_folders()):
        print_message(f"--class_folder_depth={reading.depth}, because {reading.why}")
        config = dataclasses.replace(config, source=dataclasses.replace(config.source, class_folder_depth=reading.depth))
    if opened.detected:
        print_message(opened.detected)
    if (resolved := opened.resolved) is not None:
        if opened.name_labels:
            resolved = dataclasses.replace(resolved, labels=config.source.labels, features=config.source.features)
        config = dataclasses.replace(config, source=resolved)
    return config


def resolve_job(config: PrepareConfig, engine: Engine) -> PrepareJob:
    """Completes a configuration with absolute paths, the source kind and the number of processes. Sets no run ID."""
    config = resolve_source(config)
    is_plain = not any_remote(config.input, config.output, config.source.image_root)  # Object stores need Beam.
    return PrepareJob.of(
        config,
        input=_absolute(config.input, os.path.abspath),
        # If the output is a symbolic link, its target is replaced instead of the link.
        output=_absolute(config.output, os.path.realpath),
        is_output_new=is_new(config.output),
        num_processes=engine.num_processes if is_plain else 0,
        lists_in_threads=bool(engine.num_processes) and is_remote(config.input),
    )


def _absolute(path: str, make: Any) -> str:
    """Converts a local path to an absolute path, because workers may run in a different directory."""
    return path.rstrip("/") if is_remote(path) else make(path)


@contextlib.contextmanager
def _progress_directory(job: PrepareJob, engine: Engine, is_submitted: bool) -> Iterator[str]:
    """Context manager for a directory in which workers store progress counts. For a submitted job, it yields ""."""
    if is_submitted:
        yield ""
    elif is_remote(job.output) and engine.is_local:
        with interrupts.temporary_folder() as directory:
            yield directory
    else:
        yield f"{job.run_directory}/{PROGRESS}"
