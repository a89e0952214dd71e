"""Holds the working directory of a run, on a disk or in an object store.

The page docs/background/design.md shows the states and transitions of the directory.
"""

import contextlib
import pathlib
import shutil
from typing import Callable, Iterator

from beam_pipelines.config.run_paths import PROGRESS, RunPaths
from beam_pipelines.errors import BusyError, SilentStoreError, StillRunningError, UserError, printable
from beam_pipelines.parallel import interrupts
from beam_pipelines.parallel.interrupts import RESUME
from beam_pipelines.parallel.worker_processes import end_running_tasks
from beam_pipelines.publish.resumable_run import ResumePolicy, check_resumable, describe_resumable_run, is_published, is_resumable
from beam_pipelines.storage.files import files_at, is_remote, make_folder
from beam_pipelines.storage.lease import make_lease
from beam_pipelines.storage.local_files import remove_temporary_files
from beam_pipelines.storage.working_directory import MARKER, WorkingDirectory


class Jobs:
    """Finds and cancels jobs on an engine that were started by killed commands.

    This base class is for engines whose jobs end with their process, and never finds jobs.

    Attributes:
        name: The name of the engine.
        job_name: The name of this run's job.
    """

    name = job_name = ""

    def is_at_work(self, job: str, output: str) -> bool:
        """Returns whether the job with the given name still runs."""
        return False

    def end_others(self, output: str) -> None:
        """Cancels jobs of killed commands that still write to the same output."""


@contextlib.contextmanager
def working_directory(
    run: RunPaths, resume_policy: ResumePolicy = ResumePolicy.FAIL, jobs: Jobs = Jobs()
) -> Iterator[Callable[[], None]]:
    """Context manager for the working directory of a run.

    After an error, the working directory is removed unless the run can be resumed.

    Args:
        run: The run.
        resume_policy: Whether to reject, resume or remove the output of an interrupted run. `RESUME` requires such
            output.
        jobs: The jobs of the engine.

    Yields:
        A function to call if the job continues after this process ends.

    Raises:
        BusyError: Another run is using the directory.
    """
    resumes = resume_policy is ResumePolicy.RESUME

    def check() -> None:
        if resumes and not is_resumable(run):
            problem = "another command has already resumed the interrupted run. See `recordmill status`."
            raise BusyError(f"{run.message_start}: {problem}")
        check_resumable(run, resume_policy)
        jobs.end_others(run.output)

    directory = WorkingDirectory(
        run.scratch_directory,
        make_lease(run.id, run.holder, jobs.name, jobs.job_name, run.command),
        run.message_start,
        check,
        resumes,
        lambda error: _stays(run, error, resumes),
        lambda other: jobs.name != other.engine or jobs.is_at_work(other.job, run.output),
        run.working_directory if is_remote(run.output) else "",
        run.last_file,
    )
    with _without_new_parents(run.scratch_directory), directory.hold() as held:
        if not is_remote(run.output):
            make_folder(run.directory)
            remove_temporary_files(run.scratch_directory)
            shutil.rmtree(f"{run.directory}/{PROGRESS}", ignore_errors=True)  # The counts of a killed run.
        interrupts.note(lambda: _describe(run))
        try:
            yield held.detach
        except StillRunningError:
            interrupts.note(lambda: f"Rerun with --resume to continue from {printable(run.scratch_directory)}.")
            raise
        except BaseException:
            end_running_tasks()  # Running tasks could write to the files that are removed next.
            if not is_remote(run.output):
                remove_temporary_files(run.scratch_directory)
            raise


@contextlib.contextmanager
def _without_new_parents(path: str) -> Iterator[None]:
    """Context manager that finally removes those parent folders of a local path that were missing, if they are empty."""
    missing = [] if is_remote(path) else [parent for parent in pathlib.Path(path).parents if not parent.exists()]
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # A parent that contains the output is not empty.
            for parent in missing:
                parent.rmdir()


def _stays(run: RunPaths, error: BaseException, resumes: bool) -> bool:
    """Returns whether the working directory is kept after an error, because its plan is complete.

    After a `UserError`, the directory of a new run is always removed, because the input or the options are wrong.
    """
    try:
        return (resumes or not isinstance(error, UserError)) and is_resumable(run)
    except OSError:  # A disk or store that does not respond may contain useful files.
        return True


def _describe(run: RunPaths) -> str:
    """Returns a message that says whether the output contains a complete dataset or a resumable run."""
    try:
        if is_published(run):
            return f"{printable(run.output)} is complete."
        description = describe_resumable_run(run)
        is_replaced = not run.is_output_new and files_at(run.output).exists(f"{run.output}/{MARKER}")
        if description and is_replaced:  # The old dataset in a store was already removed.
            return f"{run.output} was being replaced and is incomplete: {description}"
        return description
    except SilentStoreError:  # The failure is reported elsewhere.
        return f"The state of {run.output} is unknown, because the store does not respond. {RESUME}"
    except OSError as error:
        return f"The state of {run.output} is unknown: {error.strerror or error}."
