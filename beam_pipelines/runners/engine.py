"""What is asked of every engine; each runner's module answers it for one."""

import dataclasses
import os
import time
from typing import Callable, Sequence

from apache_beam.options.pipeline_options import PipelineOptions, PortableOptions, SetupOptions, WorkerOptions
from apache_beam.runners.runner import PipelineResult, PipelineRunner, PipelineState

from beam_pipelines.errors import RunError, UserError
from beam_pipelines.storage.files import is_remote

_STOP_SECONDS = 300


@dataclasses.dataclass(frozen=True)
class Engine:
    """The engine of a job. What is written here holds for a cluster of whatever kind; modules of runners say what differs.

    Attributes:
        name: What `--runner` says.
        options: Beam's.
        runs_tensorflow: `recordmill analyze` and `recordmill transform` have been seen to run there.
        takes_jobs: It is a service that takes jobs: nobody need wait for one, and `describe_job` says what to tell of it.
        start_seconds: What it needs before the first image is read.
        num_processes: Light processes beside a worker of it; 0: it starts workers enough.
    """

    name: str
    options: PipelineOptions
    runs_tensorflow = False
    takes_jobs = False
    start_seconds = 20
    num_processes = 0

    @property
    def environment(self) -> str | None:
        """How its workers are started, as `--environment_type` says."""
        return self.options.view_as(PortableOptions).environment_type

    @property
    def runs_here(self) -> bool:
        """Whether every worker is on this machine."""
        return self.environment == "LOOPBACK"

    def check(self, paths: Sequence[tuple[str, str]], *, shared_filesystem: bool, wait: bool) -> None:
        """Fails where a job could not run as it is asked for.

        Args:
            paths: What its workers are to see, each with the option that names it.
            shared_filesystem: Whether workers see the local paths that are given.
            wait: For the job's end.

        Raises:
            UserError: Something that the engine needs is missing or does not answer.
        """
        if not self.runs_here:
            for option, path in paths:
                self._check_path(option, path, shared_filesystem)
        self._check_needs(wait)

    def _check_path(self, option: str, path: str, shared_filesystem: bool) -> None:
        if not is_remote(path) and not shared_filesystem:
            raise UserError(
                f"{option}={path}: workers of {self.name} may not see this machine's files; expected a gs:// or s3:// path, or "
                "--shared_filesystem to say that they do"
            )

    def _check_needs(self, wait: bool) -> None:
        """Beam's own image has no recordmill in it; and installed from its source alone, recordmill is the trainer's half."""
        if self.environment not in (None, "DOCKER") or self.runs_here:
            return
        setup = self.options.view_as(SetupOptions)
        image = self.options.view_as(WorkerOptions).sdk_container_image or self.options.view_as(PortableOptions).environment_config
        has_package = (setup.setup_file or setup.extra_packages) and setup.requirements_file
        if not image and not has_package:
            raise UserError(
                f"--runner={self.name}: its workers would lack recordmill or what it imports; expected "
                "--sdk_container_image=IMAGE, or --setup_file=./setup.py with --requirements_file=FILE (see deploy/)"
            )

    def set_defaults(self, name: str, *, has_tensorflow: bool = False) -> None:
        """What suits our jobs there, where the user did not choose: changes the options.

        Args:
            name: Of the data set.
            has_tensorflow: The job's workers import TensorFlow, which takes seconds.
        """

    def make_runner(self) -> PipelineRunner | None:
        """The runner; None lets Beam construct it."""
        return None

    def stop(self, result: PipelineResult) -> None:
        """Stops a job and waits for its end; raises whatever where that was not seen."""
        if not self.runs_here:  # else the engine is this process's child, and has ended with Beam's waiting
            cancel(result)

    def explain(self, error: Exception) -> UserError | RunError | None:
        """What is behind an error of the engine's own; None for any other."""
        return None


def cancel(result: PipelineResult) -> None:
    """Cancels a job and waits for its end; TimeoutError where that was not seen."""
    if PipelineState.is_terminal(result.state):
        return
    result.cancel()
    deadline = time.monotonic() + _STOP_SECONDS
    while not PipelineState.is_terminal(result.state):
        if time.monotonic() > deadline:
            raise TimeoutError(f"it is still {result.state}")
        time.sleep(1)


def check_program(name: str, option: str, location: str | None, download: Callable[[], str], hint: str = "") -> None:
    """A program that is given by a path must be there; one that is not is downloaded now, and then not again."""
    if location and not is_remote(location):
        if not os.path.isfile(location):
            raise UserError(f"{option}={location} does not exist; expected the path or URL of {name}")
        return
    try:
        download()
    except Exception as error:  # of whatever class: it is all the download's
        reason = str(error).partition(". ")[0].partition("\n")[0]
        raise UserError(f"{name} could not be downloaded ({reason}); give its path or URL with {option}{hint}") from None
