"""Defines how a run holds its working directory and publishes its output.

`DiskOutput` and `StoreOutput` implement the states and transitions that docs/background/design.md shows.
"""

import abc
import contextlib
from typing import Callable

from beam_pipelines.config.run_paths import RunPaths
from beam_pipelines.errors import BusyError, UserError, printable
from beam_pipelines.publish.resumable_run import ResumePolicy, is_resumable
from beam_pipelines.storage.lease import Lease


class Jobs:
    """Finds and cancels jobs that were started on an engine by commands that have been killed.

    This base class finds no jobs. It is for engines whose jobs end with the command that started them.

    Attributes:
        name: The name of the engine.
        job_name: The name of this run's job.
    """

    name = job_name = ""

    def is_at_work(self, job: str, output: str) -> bool:
        """Returns whether the job with the given name is still running."""
        return False

    def end_others(self, output: str) -> None:
        """Cancels jobs that were started by killed commands and still write to the same output."""


class Output(abc.ABC):
    """The output of a run and the scratch directory beside it.

    Args:
        run: The run.

    Attributes:
        run: The run.
        message_start: The option and path at the start of error messages.
    """

    def __init__(self, run: RunPaths) -> None:
        self.run, self.message_start = run, f"{run.output_option}={printable(run.output)}"

    @abc.abstractmethod
    def is_at_work(self) -> bool:
        """Returns whether a live command holds the scratch directory."""

    @abc.abstractmethod
    def wait(self) -> None:
        """Waits until no other command holds the scratch directory. Raises `BusyError` if another command is running."""

    @abc.abstractmethod
    def hold(
        self, lease: Lease, resume_policy: ResumePolicy, jobs: Jobs
    ) -> contextlib.AbstractContextManager[Callable[[], None]]:
        """Context manager that holds the working directory. See `working_directory`."""

    @abc.abstractmethod
    def publish(self, last_file: bytes) -> None:
        """Writes the last file and moves the output to its final path. It is safe to call it again after success."""

    @abc.abstractmethod
    def remove_leftovers(self) -> None:
        """Removes the scratch directory of a run that was killed after it had published its output."""

    def check_still_resumable(self) -> None:
        """Raises `BusyError` if another command has resumed the run before this command acquired the lease."""
        if not is_resumable(self.run):
            problem = "another command has already resumed the interrupted run. See `recordmill status`."
            raise BusyError(f"{self.message_start}: {problem}")

    def stays(self, error: BaseException, resume_policy: ResumePolicy) -> bool:
        """Returns whether the working directory is kept after an error, because its plan is complete.

        After a `UserError`, the directory of a new run is always removed, because the input or the options are wrong.
        """
        try:
            return (resume_policy is ResumePolicy.RESUME or not isinstance(error, UserError)) and is_resumable(self.run)
        except OSError:  # A disk or store that does not respond may contain useful files.
            return True
