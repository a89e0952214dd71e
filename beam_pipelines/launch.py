"""Runs `recordmill prepare`: completes the options, creates a working directory and runs the job."""

import os
from typing import Callable, Mapping

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from beam_pipelines.config.class_files import read_class_tables
from beam_pipelines.config.launch_options import LaunchOptions
from beam_pipelines.config.prepare_options import PrepareOptions
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


def run_prepare(options: PrepareOptions, launch: LaunchOptions, pipeline_options: PipelineOptions) -> str | None:
    """Runs `recordmill prepare`.

    After success, the output directory contains the complete dataset. After a failure, it contains no new files, but
    files from which the run can be resumed may remain beside it.

    Args:
        options: The options that determine the dataset.
        launch: The options that determine how the command runs.
        pipeline_options: The options of the Beam pipeline.

    Returns:
        None if the dataset is complete. A message about the submitted job if the function did not wait.

    Raises:
        UserError: The input or the options are invalid.
        RunError: The run failed, for example because a disk is full.
    """
    others = (("--image_root", options.source.image_root), ("--splits_from", options.splits_from))
    paths = [("--input", options.input), ("--output", options.output), *((option, path) for option, path in others if path)]
    engine = open_engine(pipeline_options, "prepare", paths, shared_filesystem=launch.shared_filesystem, wait=launch.wait)
    resume_policy, left = ResumePolicy.of(launch), None
    check_paths(options, launch.overwrite, resume_policy)
    options = resolve_options(options)
    if resume_policy is ResumePolicy.RESUME:
        new = make_paths(options, engine)
        wait_until_unused(new.scratch_directory, new.message_start)
        left = find_resumable_run(options)
        if not left and not launch.overwrite and is_done(options):
            remove_leftovers(new.scratch_directory, make_lease(new.id, new.holder), new.message_start)
            print_message("--resume: the dataset is complete, so there is nothing to do")
            return None
        if not left:
            print_message("--resume: no run to resume, so this run starts from the beginning")
            resume_policy = ResumePolicy.FAIL
    replaced = _replaced_classes(options.output) if launch.overwrite and not is_new(options.output) else {}
    run = Run(
        engine,
        options,
        options.name,
        make_paths(options, engine, left),
        [path for _, path in paths],
        resume_policy=resume_policy,
        is_submitted=engine.takes_jobs and not launch.wait,
    )
    add_steps = lambda pipeline, paths, run_info: (resume if left else prepare)(pipeline, options, paths, run_info)
    stages = progress.stages_with_hashing if options.duplicates and not left else None
    if (submitted := run.execute(add_steps, stages, is_finished=finish_publishing if left else lambda paths: False)) is not None:
        return engine.describe_job(submitted, options.output, may_renumber=any(replaced.values()) and not options.source.first_label_names)
    for line in describe_changes(replaced, read_class_tables(options.output)) if replaced else ():
        print_message(line, "warning")
    return None


def make_paths(options: PrepareOptions, engine: Engine, left: ResumableRun | None = None) -> RunPaths:
    """Returns the paths of a new run, or of the interrupted run to resume. The options must be resolved."""
    is_output_new = is_new(options.output)
    if left and left.plan and is_remote(options.output):
        is_output_new = left.plan.is_output_new  # An object store cannot rename files.
    return RunPaths.start(
        options.output,
        run_id=left.run_id if left else "",
        is_output_new=is_output_new,
        num_processes=engine.num_processes,
        lists_in_threads=bool(engine.num_processes) and is_remote(options.input),
    )


def _replaced_classes(output: str) -> Mapping[str, tuple[str, ...]]:
    try:
        return read_class_tables(output)
    except (ValueError, UserError) as error:  # --overwrite may replace a corrupt dataset or another format version.
        print_message(f"Cannot check that classes keep their numbers: {error}", "warning")
        return {}


def run_estimate(options: PrepareOptions, pipeline_options: PipelineOptions) -> str:
    """Returns a description of the estimated output size and duration. Raises `UserError` if the input is invalid."""
    beam.io.filesystems.FileSystems.set_options(pipeline_options)
    check_input(options.input)
    engine = choose_engine(pipeline_options)
    estimate = make_estimate(resolve_options(options))
    return describe_estimate(estimate, None if engine.is_local else engine.start_seconds)


def resolve_options(options: PrepareOptions) -> PrepareOptions:
    """Makes the paths in the user's options absolute, detects the kind of the source, and completes the options of the
    source. Logs what was detected.

    Raises:
        UserError: The kind cannot be detected, or the input or options do not match the source.
    """
    if options.source.kind is None:
        guess = guess_source(options.input, options.source)
        options = options.derive(source={"kind": guess.kind})
        print_message(f"--source={guess.kind.name}, detected from {guess.evidence}")
    if options.source.image_root is not None:
        options = options.derive(source={"image_root": _absolute(options.source.image_root, os.path.abspath)})
    splits_from = options.splits_from and _absolute(options.splits_from, os.path.abspath)
    if splits_from:
        check_earlier_splits(splits_from, options.shares, options.divide, options.folds)
    opened, kind, given = open_source(options), options.source.kind, options.source
    if given.has_images and kind.may_omit_images and not opened.has_images:
        options = options.derive(source={"has_images": False})
        if not kind.is_of_values:
            print_message(f"--image=none, because {printable(options.input)} has no images")
        opened = open_source(options)
    resolved = opened.resolved or options.source
    if opened.detected:
        print_message(opened.detected)
    # If there are name labels, the source was opened without the labels that names contain.
    changes = {"labels": given.labels, "features": given.features} if opened.name_labels else {}
    # If the output is a symbolic link, its target is replaced instead of the link.
    paths = {"input": _absolute(options.input, os.path.abspath), "output": _absolute(options.output, os.path.realpath)}
    return options.derive(source={**vars(resolved), **changes}, **paths, splits_from=splits_from)


def _absolute(path: str, make: Callable[[str], str]) -> str:
    """Converts a local path to an absolute path, because workers may run in a different directory."""
    return path.rstrip("/") if is_remote(path) else make(path)
