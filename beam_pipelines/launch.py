"""Runs `recordmill prepare`: completes the configuration, creates a working directory and runs the job."""

import dataclasses
import os
import uuid
from typing import Any, Mapping

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from beam_pipelines.config.class_files import read_class_tables
from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.config.prepare_job import PrepareJob
from beam_pipelines.config.run_paths import RunPaths
from beam_pipelines.elements.class_tables import describe_changes
from beam_pipelines.errors import UserError, printable
from beam_pipelines.estimate import describe_estimate, make_estimate
from beam_pipelines.log import print_message
from beam_pipelines.parallel import progress
from beam_pipelines.pipeline import prepare, resume
from beam_pipelines.publish.resumable_run import ResumableRun, ResumePolicy, find_resumable_run, is_done
from beam_pipelines.publish.check_paths import check_input, check_paths, is_new
from beam_pipelines.publish.publishing import finish_publishing
from beam_pipelines.runners.engine import Engine
from beam_pipelines.runners.jobs import choose_engine
from beam_pipelines.runners.run import Run, open_engine
from beam_pipelines.sources.guess import guess_source
from beam_pipelines.sources.open_source import open_source
from beam_pipelines.splits.earlier_splits import check_earlier_splits
from beam_pipelines.storage.files import is_remote
from beam_pipelines.storage.lease import make_lease
from beam_pipelines.storage.working_directory import remove_leftovers, wait_until_unused


def run_prepare(
    config: PrepareOptions,
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
    others = (("--image_root", config.source.image_root), ("--splits_from", config.splits_from))
    paths = [("--input", config.input), ("--output", config.output), *((option, path) for option, path in others if path)]
    engine = open_engine(options, "prepare", paths, shared_filesystem=shared_filesystem, wait=wait)
    check_paths(config, overwrite, resume_policy)
    config = resolve_options(config)
    run, left = make_run(config, engine), None
    replaces = overwrite and not run.is_output_new
    if resume_policy is ResumePolicy.RESUME:
        wait_until_unused(run.scratch_directory, run.message_start)
        left = find_resumable_run(run, config)
        if not left and not overwrite and is_done(run, config):
            remove_leftovers(run.scratch_directory, make_lease(run.id, uuid.uuid4().hex), run.message_start)
            print_message("--resume: the dataset is complete, so there is nothing to do")
            return None
        if not left:
            print_message("--resume: no run to resume, so this run starts from the beginning")
            resume_policy = ResumePolicy.FAIL
    job = PrepareJob.of(config, _name_run(run, left))
    replaced = _replaced_classes(job.output) if replaces else {}
    execution = Run(
        engine,
        job,
        resume if left else prepare,
        progress.stages_with_hashing if job.duplicates and not left else None,
        [path for _, path in paths],
        resume_policy=resume_policy,
        is_finished=(lambda job: finish_publishing(job.run)) if left else lambda job: False,
        is_submitted=engine.takes_jobs and not wait,
    )
    if (submitted := execution.execute(job)) is not None:
        return engine.describe_job(submitted, job.output, may_renumber=any(replaced.values()) and not job.source.first_label_names)
    for line in describe_changes(replaced, read_class_tables(job.output)) if replaced else ():
        print_message(line, "warning")
    return None


def _name_run(run: RunPaths, left: ResumableRun | None) -> RunPaths:
    """Returns the run with a new ID, or with the ID of the interrupted run that it resumes."""
    run_id, is_output_new = uuid.uuid4().hex, run.is_output_new
    if left:
        run_id = left.run_id
        if left.plan and is_remote(run.output):
            is_output_new = left.plan.config.run.is_output_new  # An object store cannot rename files.
    return dataclasses.replace(run, id=run_id, holder=uuid.uuid4().hex, is_output_new=is_output_new)


def _replaced_classes(output: str) -> Mapping[str, tuple[str, ...]]:
    try:
        return read_class_tables(output)
    except (ValueError, UserError) as error:  # --overwrite may replace a corrupt dataset or another format version.
        print_message(f"Cannot check that classes keep their numbers: {error}", "warning")
        return {}


def run_estimate(config: PrepareOptions, options: PipelineOptions) -> str:
    """Returns a description of the estimated output size and duration. Raises `UserError` if the input is invalid."""
    beam.io.filesystems.FileSystems.set_options(options)
    check_input(config.input)
    engine = choose_engine(options)
    estimate = make_estimate(resolve_source(config))
    return describe_estimate(estimate, None if engine.is_local else engine.start_seconds)


def resolve_source(options: PrepareOptions) -> PrepareOptions:
    """Detects the kind of the source, and whether examples have images. Logs what was detected.

    Raises:
        UserError: The kind cannot be detected, or the input or options do not match the source.
    """
    if options.source.kind is None:
        guess = guess_source(options.input, options.source)
        options = _with_source(options, kind=guess.kind)
        print_message(f"--source={guess.kind.name}, detected from {guess.evidence}")
    if options.source.image_root is not None:
        options = _with_source(options, image_root=_absolute(options.source.image_root, os.path.abspath))
    if options.splits_from is not None:
        options = dataclasses.replace(options, splits_from=_absolute(options.splits_from, os.path.abspath))
        check_earlier_splits(options)
    opened, kind = open_source(options), options.source.kind
    if options.source.has_images and kind.may_omit_images and not opened.has_images:
        options = _with_source(options, has_images=False)
        if not kind.is_of_values:
            print_message(f"--image=none, because {printable(options.input)} has no images")
        opened = open_source(options)
    resolved = opened.resolved or options.source
    reads_folders = kind.has_class_folders and opened.targets and options.label_pattern is None
    if reads_folders and resolved.class_folder_depth is None and (reading := opened.choose_class_folders()):
        print_message(f"--class_folder_depth={reading.depth}, because {reading.why}")
        resolved = dataclasses.replace(resolved, class_folder_depth=reading.depth)
    if opened.detected:
        print_message(opened.detected)
    if opened.name_labels:  # The source was opened without the labels that names contain.
        resolved = dataclasses.replace(resolved, labels=options.source.labels, features=options.source.features)
    return dataclasses.replace(options, source=resolved)


def _with_source(options: PrepareOptions, **changes: Any) -> PrepareOptions:
    """Returns the configuration with the given changes to the options of the source."""
    return dataclasses.replace(options, source=dataclasses.replace(options.source, **changes))


def resolve_options(options: PrepareOptions) -> PrepareOptions:
    """Makes the paths in the user's options absolute and completes the options of the source."""
    # If the output is a symbolic link, its target is replaced instead of the link.
    output = _absolute(options.output, os.path.realpath)
    return dataclasses.replace(resolve_source(options), input=_absolute(options.input, os.path.abspath), output=output)


def make_run(options: PrepareOptions, engine: Engine) -> RunPaths:
    """Returns the paths and the processes of a run that has no ID yet. The options must be resolved."""
    return RunPaths(
        options.output,
        is_output_new=is_new(options.output),
        num_processes=engine.num_processes,
        lists_in_threads=bool(engine.num_processes) and is_remote(options.input),
    )


def _absolute(path: str, make: Any) -> str:
    """Converts a local path to an absolute path, because workers may run in a different directory."""
    return path.rstrip("/") if is_remote(path) else make(path)
