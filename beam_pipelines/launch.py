"""A run of `prepare` from outside: what is settled before it, where it works, and what is told of it."""

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
from beam_pipelines.config.output_paths import PROGRESS
from beam_pipelines.config.prepare_config import PrepareConfig
from beam_pipelines.config.prepare_job import PrepareJob
from beam_pipelines.config.run_options import plain_options
from beam_pipelines.config.source_kinds import DEFAULT_SOURCE
from beam_pipelines.elements.class_tables import describe_changes, read_class_tables
from beam_pipelines.errors import UserError, printable
from beam_pipelines.estimate import describe_estimate, make_estimate
from beam_pipelines.log import say
from beam_pipelines.parallel import interrupts, progress
from beam_pipelines.parallel.progress import ProgressDisplay
from beam_pipelines.pipeline import prepare, resume
from beam_pipelines.publish.left_run import LeftRun, OnLeft, find_left, is_done
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
    on_left: OnLeft = OnLeft.REFUSE,
    shared_filesystem: bool = False,
    wait: bool = True,
) -> str | None:
    """Runs `prepare`. Afterwards the data set is in place, whole, or nothing is; beside it may be what another run goes on from.

    Args:
        config: The configuration of the run, as the user gave it.
        options: The options of the Beam pipeline.
        overwrite: Whether a data set at the output is replaced, once the new one is whole.
        on_left: What becomes of what an earlier run to the same output has left.
        shared_filesystem: Whether the workers see the local paths that the configuration names.
        wait: Whether to wait for the job's end; a service that takes jobs (Dataflow) needs nobody to wait for them.

    Returns:
        None once the data set is in place; without waiting, a text that tells of the job that was submitted.

    Raises:
        UserError: The input or the options are not fit to run.
        RunError: The run failed for a reason that the user can see.
    """
    beam.io.filesystems.FileSystems.set_options(options)  # what reaches an object store
    quiet_engines()
    others = (("--image_root", config.source.image_root), ("--splits_from", config.splits_from))
    paths = [("--input", config.input), ("--output", config.output), *((option, path) for option, path in others if path)]
    engine = choose_engine(options)
    engine.check(paths, shared_filesystem=shared_filesystem, wait=wait)
    check_paths(config, overwrite, on_left)
    job, left = settle_job(config, engine), None
    replaces = overwrite and not job.is_output_new
    if on_left is OnLeft.RESUME:
        wait_for_others(job)
        left = find_left(job)
        if not left and not overwrite and is_done(job):
            remove_leftovers(job)
            say("--resume: the data set is there, whole; nothing was left to do")
            return None
        if not left:
            say("--resume: no run has left a whole plan there; this one begins anew")
            on_left = OnLeft.REFUSE
    job = _name_run(job, left)
    engine.set_defaults(job.name, output=job.output, run_id=job.run_id)
    replaced = _replaced_classes(job.output) if replaces else {}
    submitted = _run(job, left, engine, on_left, [path for _, path in paths], is_submitted=engine.takes_jobs and not wait)
    if submitted is not None:
        return engine.describe_job(submitted, job.output, may_renumber=any(replaced.values()) and not job.source.first_label_names)
    for line in describe_changes(replaced, read_class_tables(job.output)) if replaced else ():
        say(line, "warning")
    return None


def _name_run(job: PrepareJob, left: LeftRun | None) -> PrepareJob:
    """Gives a job the id of its run: a new one, or that of the run that was left, which it goes on with."""
    run_id, is_output_new = uuid.uuid4().hex, job.is_output_new
    if left:
        run_id = left.run_id
        if left.plan and is_remote(job.output):
            is_output_new = left.plan.config.is_output_new  # in a store it is written where it was begun
    return dataclasses.replace(job, run_id=run_id, holder=uuid.uuid4().hex, is_output_new=is_output_new)


def _run(
    job: PrepareJob, left: LeftRun | None, engine: Engine, on_left: OnLeft, paths: Sequence[str], *, is_submitted: bool
) -> PipelineResult | None:
    """Runs a job in its working directory, to the end; or only submits it.

    Args:
        job: The job.
        left: What another run has left, which this one goes on with.
        engine: The engine that runs it.
        on_left: What becomes of what an earlier run to the same output has left.
        paths: The paths that its workers read and write; a store that is silent for too long ends the job.
        is_submitted: Whether it is submitted, and nobody waits for its end.

    Returns:
        The result of the submission; None where all is done.
    """
    with (
        working_directory(job, on_left, EngineJobs(engine)) as detach,
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
    """Names this run in each line that is told from now on; a log gets its start and its end."""
    log.set_run(job.run_id, lambda: progress.stage_of(job.progress_directory))
    began = time.monotonic()
    if log.is_kept():
        name = engine.options.view_as(GoogleCloudOptions).job_name
        say(f"run {job.run_id} to {printable(job.output)} on {engine.name}{name and f', job {name}' or ''}", options=plain_options(job))
    try:
        yield
    except BaseException:
        stage = log.stage()  # as long as it can be found out
        log.set_run(job.run_id, lambda: stage)
        raise
    log.set_run(job.run_id, lambda: "done")
    if log.is_kept():
        say(f"done after {time.monotonic() - began:.0f} s: {printable(job.output)}")


def _make_pipeline(job: PrepareJob, engine: Engine, left: LeftRun | None) -> beam.Pipeline:
    """Makes the pipeline of the whole run, or of what is missing."""
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
    except (ValueError, UserError) as error:  # to replace a damaged one, or one of another version, is a good reason for --overwrite
        say(f"whether classes keep their numbers is not known: {error}", "warning")
        return {}


def run_estimate(config: PrepareConfig, options: PipelineOptions) -> str:
    """Estimates a run, and describes it in lines, for people; UserError where the input is not fit to run."""
    beam.io.filesystems.FileSystems.set_options(options)
    check_input(config.input)
    engine = choose_engine(options)
    estimate = make_estimate(settle_source(config))
    return describe_estimate(estimate, None if engine.runs_here else engine.start_seconds)


def settle_source(config: PrepareConfig) -> PrepareConfig:
    """Settles the kind of a configuration's source, and whether it has images.

    They are found out where the user did not say them, and then said.

    Raises:
        UserError: The kind can't be guessed, or the input is not what the source expects, or its options do not go with it.
    """
    source = config.source
    if source.kind is None:
        source = dataclasses.replace(source, kind=guess_source(config.input))
        if source.kind != DEFAULT_SOURCE:  # what was always meant goes without saying
            say(f"--source={source.kind}, by the names in {printable(config.input)}")
    if source.image_root is not None:
        source = dataclasses.replace(source, image_root=_absolute(source.image_root, os.path.abspath))
    if config.splits_from is not None:
        config = dataclasses.replace(config, splits_from=_absolute(config.splits_from, os.path.abspath))
        check_earlier_splits(config)
    config = dataclasses.replace(config, source=source)
    opened = open_source(config)
    if source.has_images and source.can.may_lack_images and not opened.has_images:
        config = dataclasses.replace(config, source=dataclasses.replace(source, has_images=False))
        if not source.can.is_of_values:
            say(f"--image=none, as {printable(config.input)} has nothing named like an image")
        opened = open_source(config)
    is_open = source.can.has_class_folders and opened.targets and source.class_folder_depth is None
    if is_open and (reading := opened.choose_class_folders()):
        say(f"--class_folder_depth={reading.depth}, as {reading.why}")
        config = dataclasses.replace(config, source=dataclasses.replace(config.source, class_folder_depth=reading.depth))
    if found := getattr(opened, "found", ""):  # which a source of foreign records has
        say(found)
    return config


def settle_job(config: PrepareConfig, engine: Engine) -> PrepareJob:
    """Settles what the user's words mean here: absolute paths, a source of some kind, processes beside the engine's.

    The job is of no run yet: it has no id.
    """
    config = settle_source(config)
    is_plain = not any_remote(config.input, config.output, config.source.image_root)  # a light process has no Beam, hence no object store
    return PrepareJob.of(
        config,
        input=_absolute(config.input, os.path.abspath),
        # Where the output is a link, what it points to is replaced, not the link.
        output=_absolute(config.output, os.path.realpath),
        is_output_new=is_new(config.output),
        num_processes=engine.num_processes if is_plain else 0,
        lists_in_threads=bool(engine.num_processes) and is_remote(config.input),
    )


def _absolute(path: str, make: Any) -> str:
    """Makes a path absolute: workers and light processes need not have this process's working directory."""
    return path.rstrip("/") if is_remote(path) else make(path)


@contextlib.contextmanager
def _progress_directory(job: PrepareJob, engine: Engine, is_submitted: bool) -> Iterator[str]:
    """Gives the directory where all workers can count; empty where nobody will look."""
    if is_submitted:
        yield ""
    elif is_remote(job.output) and engine.runs_here:
        with interrupts.temporary_folder() as directory:
            yield directory
    else:
        yield f"{job.run_directory}/{PROGRESS}"
