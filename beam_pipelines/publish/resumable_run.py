"""Finds the state of an interrupted or failed run, which `--resume` continues and `--restart` removes.

    state of the output                     the same command     with --resume
    no complete plan                        starts over          starts over, and reports it
    a complete plan                         fails                writes the missing shards
    a manifest in the working directory     fails                moves the complete dataset to the output
    a dataset made with the same options    fails                succeeds without writing
"""

import enum
import json
import os
from typing import Mapping, NamedTuple

from beam_pipelines.config.launch_options import LaunchOptions
from beam_pipelines.config.option import find_differences
from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.config.run_paths import RunPaths
from beam_pipelines.elements.plan import Plan, recordmill_version
from beam_pipelines.elements.plan_files import is_planned, num_done, read_plan
from beam_pipelines.errors import UserError, printable
from beam_pipelines.parallel.interrupts import RESUME
from beam_pipelines.storage.files import files_at, is_remote
from beam_pipelines.storage.lease import read_lease
from beam_pipelines.storage.pinned_files import check_versions
from beam_pipelines.storage.working_directory import MARKER
from tf_input.dataset_format import MANIFEST, RUN

_RESTART = "Rerun with --restart to start over."


class ResumePolicy(enum.Enum):
    """Whether a command fails, resumes or restarts if the files of an interrupted run exist."""

    FAIL = "the command fails if the files can be resumed"
    RESUME = "the command resumes the run"
    RESTART = "the command deletes the files and starts over"

    @classmethod
    def of(cls, options: LaunchOptions) -> "ResumePolicy":
        """Returns the policy that `--resume` and `--restart` select."""
        return cls.RESUME if options.resume else cls.RESTART if options.restart else cls.FAIL


class ResumableRun(NamedTuple):
    """An interrupted run that can be resumed.

    Attributes:
        run_id: The ID of the run.
        plan: The plan of the run. None if all files are complete, and only the final rename is missing.
    """

    run_id: str
    plan: Plan | None


def of_resumable_run(run: RunPaths) -> RunPaths:
    """Returns the paths of the interrupted run with the same output. The ID is empty if no run was interrupted."""
    lease = read_lease(run.scratch_directory)
    return RunPaths(run.output, lease.run_id if lease else "", command=run.command)


def is_published(run: RunPaths) -> bool:
    """Returns whether the output contains the dataset of this run, according to the run ID."""
    files = files_at(run.output)
    if not files.exists(f"{run.output}/{run.last_file}"):
        return False
    try:
        return json.loads(files.read(f"{run.output}/{run.run_file}"))["run_id"] == run.id
    except (FileNotFoundError, ValueError, KeyError, TypeError):  # The file belongs to another program, or is corrupt.
        return False


def is_complete(run: RunPaths) -> bool:
    """Returns whether a local working directory contains a complete but unpublished dataset."""
    directory = run.working_directory
    return not is_remote(directory) and all(os.path.isfile(f"{directory}/{name}") for name in (run.last_file, run.run_file))


def is_resumable(run: RunPaths) -> bool:
    """Returns whether an interrupted run exists that this command can resume."""
    return run.can_resume and (is_complete(run) or is_planned(run))


def describe_resumable_run(run: RunPaths) -> str:
    """Returns a message about how to resume the interrupted run, or an empty string if no run can be resumed."""
    if not run.can_resume:
        return ""
    if is_complete(run):
        return f"All shards are complete. {RESUME}"
    try:
        plan = read_plan(run)
    except ValueError:
        return "The plan of an interrupted run is corrupt or from another version, so --resume cannot continue it."
    if plan is None:
        return ""
    if plan.version != recordmill_version():
        return f"The interrupted run is from {plan.version}, and --resume cannot continue it with {recordmill_version()}."
    return f"{num_done(run):,} of {sum(1 for _ in plan.shards()):,} shards are complete. {RESUME}"


def check_resumable(run: RunPaths, resume_policy: ResumePolicy) -> None:
    """Raises an error if a run can be resumed, but the user did not say whether to resume it.

    Args:
        run: The run.
        resume_policy: The user's choice.

    Raises:
        UserError: The output of an interrupted run exists.
    """
    if resume_policy is not ResumePolicy.FAIL:
        return
    run = of_resumable_run(run)
    if not run.can_resume and is_planned(run):
        shown = printable(run.scratch_directory)
        raise UserError(
            f"{run.message_start}: an interrupted run of `recordmill prepare` left files in {shown}. Choose another path, or remove them."
        )
    if description := describe_resumable_run(run):
        with_restart = f"{RESUME[:-1]}, or with --restart to start over."
        raise UserError(
            f"{run.message_start}: {description.replace(RESUME, with_restart) if RESUME in description else f'{description} {_RESTART}'}"
        )


def find_resumable_run(options: PrepareOptions) -> ResumableRun | None:
    """Returns the run that `--resume` continues, or None if no run can be resumed.

    Raises:
        UserError: The earlier run used other options or another version, or its plan is corrupt.
        DataError: A file of the input has changed since the earlier run listed it.
    """
    message_start, run = f"--output={printable(options.output)}", of_resumable_run(RunPaths(options.output))
    if is_complete(run):
        _check_options(message_start, _written_options(run.working_directory, message_start), options)
        return ResumableRun(run.id, None)
    try:
        plan = read_plan(run)
    except ValueError:
        raise UserError(f"{message_start}: the plan of the interrupted run is corrupt or from another version. {_RESTART}") from None
    if plan is None:
        return None
    if plan.version != recordmill_version():
        problem = f"the interrupted run is from {plan.version}, but this is {recordmill_version()}"
        raise UserError(f"{message_start}: {problem}. {_RESTART}")
    _check_options(message_start, plan.options, options)
    _check_output(message_start, plan, run)
    check_versions(plan.listing.versions)
    return ResumableRun(run.id, plan)


def is_done(options: PrepareOptions) -> bool:
    """Returns whether the requested dataset already exists, without an interrupted run beside it.

    Raises:
        UserError: The dataset was made with other options.
    """
    output, store, message_start = options.output, files_at(options.output), f"--output={printable(options.output)}"
    if not store.exists(f"{output}/{MANIFEST}") or (is_remote(output) and store.exists(f"{output}/{MARKER}")):
        return False
    earlier_options = _written_options(output, message_start, "Rerun with --overwrite to replace the dataset.")
    if differences := find_differences(PrepareOptions, earlier_options, options.texts):
        raise UserError(f"{message_start} exists with other options: {'; '.join(differences)}. Choose a new path, or pass --overwrite.")
    return True


def _written_options(directory: str, message_start: str, advice: str = _RESTART) -> Mapping[str, str]:
    """Reads the options of a finished run from `run.json`."""
    try:
        return dict(json.loads(files_at(directory).read(f"{directory}/{RUN}"))["options"])
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"{message_start}: {RUN} is corrupt. {advice}") from None


def _check_options(message_start: str, earlier_options: Mapping[str, str], options: PrepareOptions) -> None:
    if differences := find_differences(PrepareOptions, earlier_options, options.texts):
        raise UserError(
            f"--resume of {message_start}: {'; '.join(differences)}. Use the same options, or rerun with --restart to start over."
        )


def _check_output(message_start: str, plan: Plan, run: RunPaths) -> None:
    """Raises `UserError` if another dataset was published at the output after the run was interrupted."""
    if not is_remote(run.output) or not plan.is_output_new:
        return
    store = files_at(run.output)
    if store.exists(f"{run.output}/{MANIFEST}") and not store.exists(f"{run.output}/{MARKER}"):
        raise UserError(
            f"{message_start}: another dataset was written after the interrupted run started. Rerun with --restart to replace it."
        )
