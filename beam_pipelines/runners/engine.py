"""Defines the base class of the engines that run Beam jobs."""

import argparse
import contextlib
import dataclasses
import hashlib
import os
import re
import shutil
import time
from typing import Callable, Iterator, Sequence

import apache_beam as beam
import grpc
from apache_beam.options.pipeline_options import DebugOptions, PipelineOptions, PortableOptions, SetupOptions, WorkerOptions
from apache_beam.runners.runner import PipelineResult, PipelineRunner, PipelineState

from beam_pipelines.errors import EngineError, RunError, StillRunningError, UserError
from beam_pipelines.runners.job_servers import TidyRunner
from beam_pipelines.storage.files import is_remote

_STOP_SECONDS = 300
_DIGEST_LENGTH = 8  # Hex digits.


class JobOptions(PipelineOptions):
    """Recordmill's pipeline options for all engines, in addition to Beam's options."""

    @classmethod
    def _add_argparse_args(cls, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--job_timeout",
            type=_parse_seconds,
            help="Seconds after which an unfinished job is stopped as with Ctrl-C. Default: no limit.",
        )


def _parse_seconds(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text}: not a positive whole number of seconds")
    return int(text)


@dataclasses.dataclass(frozen=True)
class Job:
    """An active job of an engine.

    Attributes:
        id: The job ID, which the engine assigns.
        name: The job name, from `Engine.set_defaults`.
        state: The state of the job in the engine's terms, such as RUNNING.
        page: The URL of the engine's web page for the job.
    """

    id: str
    name: str
    state: str
    page: str


@dataclasses.dataclass(frozen=True)
class Engine:
    """An engine that runs Beam jobs. The methods of this base class work for any cluster.

    Attributes:
        name: The name of the engine, as in `--runner`.
        options: The options of the Beam pipeline.
        runs_tensorflow: Whether `recordmill analyze` and `recordmill transform` have been tested with the engine.
        takes_jobs: Whether jobs continue without a waiting client. If so, the engine has a method `describe_job`, which
            returns the message for a submitted job.
        start_seconds: The expected time until the first image is read, in seconds.
        num_processes: The number of worker processes of each Beam worker. 0 if the engine starts enough Beam workers.
        poll_seconds: The interval between two polls of a job's state, in seconds.
    """

    name: str
    options: PipelineOptions
    runs_tensorflow = False
    takes_jobs = False
    start_seconds = 20
    num_processes = 0
    poll_seconds = 1.0

    @property
    def environment(self) -> str | None:
        """How the engine starts workers (`--environment_type`)."""
        return self.options.view_as(PortableOptions).environment_type

    @property
    def is_local(self) -> bool:
        """Whether all workers run on this machine."""
        return self.environment == "LOOPBACK"

    def check(self, paths: Sequence[tuple[str, str]], *, shared_filesystem: bool, wait: bool) -> None:
        """Checks that the engine can run the job with the given options.

        Args:
            paths: The (option, path) pairs of the paths that workers must be able to access.
            shared_filesystem: Whether the workers can access the given local paths.
            wait: Whether the command waits until the job ends.

        Raises:
            UserError: Workers cannot access a path, or a service or option that the engine needs is missing.
        """
        if not self.is_local:
            for option, path in paths:
                self._check_path(option, path, shared_filesystem)
        self._check_needs(wait)

    def _check_path(self, option: str, path: str, shared_filesystem: bool) -> None:
        if not is_remote(path) and not shared_filesystem:
            raise UserError(
                f"{option}={path}: the workers of {self.name} may not have access to this path. Give a gs:// or s3:// "
                "path, or "
                "pass --shared_filesystem if they have access."
            )

    def _check_needs(self, wait: bool) -> None:
        """Checks the options that the engine needs.

        Beam's own Docker image contains neither Recordmill nor its dependencies. Docker workers therefore need another
        image or a package.
        """
        if self.environment not in (None, "DOCKER") or self.is_local:
            return
        setup = self.options.view_as(SetupOptions)
        image = self.options.view_as(WorkerOptions).sdk_container_image or self.options.view_as(PortableOptions).environment_config
        has_package = (setup.setup_file or setup.extra_packages) and setup.requirements_file
        if not image and not has_package:
            raise UserError(
                f"--runner={self.name}: the workers would lack recordmill or its dependencies. Pass "
                "--sdk_container_image=IMAGE, or --setup_file=./setup.py with --requirements_file=FILE (see deploy/)."
            )

    def set_defaults(self, name: str, *, output: str = "", run_id: str = "", has_tensorflow: bool = False) -> None:
        """Sets default values for options that the user did not set.

        Args:
            name: The name of the dataset.
            output: The output directory of the dataset. If jobs can outlive this process, their names contain a digest
                of the directory, which `find_jobs` uses to find them.
            run_id: The ID of the run, in hex digits.
            has_tensorflow: Whether the workers import TensorFlow, which takes seconds.
        """

    def find_jobs(self, output: str) -> list[Job]:
        """Returns all active Recordmill jobs that write to an output directory, including jobs of other processes.

        The list is empty for engines whose jobs end with their client.

        Raises:
            RunError: The engine did not list its jobs.
        """
        is_owned = re.compile(rf"-{output_digest(output)}(-[0-9a-f]{{{_DIGEST_LENGTH}}})?$")
        return [job for job in self._list_jobs() if is_owned.search(job.name)]

    def cancel_jobs(self, jobs: Sequence[Job]) -> None:
        """Cancels jobs and waits until they end.

        Raises:
            StillRunningError: It is unknown whether all jobs have ended.
        """
        ids = {job.id for job in jobs}
        try:
            self._cancel_until_none(lambda job: job.id in ids)
        except Exception as error:  # After any error, it is unknown whether the jobs have ended.
            job_texts = "; ".join(f"{job.name}, {job.page}" for job in jobs)
            raise StillRunningError(
                f"a job of an earlier run could not be canceled ({_one_line(error)}): {job_texts}. Cancel it, and run the "
                "same command again."
            ) from error

    def _cancel_until_none(self, is_selected: Callable[[Job], bool]) -> None:
        """Cancels the selected jobs and waits until they end. Raises `TimeoutError` if a job does not end."""
        deadline = time.monotonic() + _STOP_SECONDS
        while active_jobs := [job for job in self._list_jobs() if is_selected(job)]:
            if time.monotonic() > deadline:
                raise TimeoutError(f"its state is still {active_jobs[0].state}")
            for job in active_jobs:
                if job.state != "CANCELLING":
                    self._cancel_job(job.id)
            time.sleep(self.poll_seconds)

    def _list_jobs(self) -> list[Job]:
        """Returns all active jobs of the engine, including those of other users. Raises `RunError` if the engine fails.
        """
        return []

    def _cancel_job(self, job_id: str) -> None:
        """Requests the cancellation of a job without waiting for it."""
        raise NotImplementedError(self.name)

    def make_runner(self) -> PipelineRunner | None:
        """Returns the Beam runner, or None if Beam creates the runner."""
        return None

    def make_pipeline(self) -> beam.Pipeline:
        """Creates an empty pipeline."""
        if self.environment in ("LOOPBACK", "PROCESS"):
            self.options.view_as(DebugOptions).add_experiment("disable_logging_submission_environment")
        pipeline = beam.Pipeline(runner=self.make_runner(), options=self.options)
        shutil.rmtree(pipeline.local_tempdir, ignore_errors=True)
        return pipeline

    @contextlib.contextmanager
    def closing(self, runner: PipelineRunner) -> Iterator[None]:
        """Context manager that stops the runner's job server and deletes its temporary files on exit."""
        try:
            yield
        finally:
            if isinstance(runner, TidyRunner):
                runner.close()

    @contextlib.contextmanager
    def watching(self, interrupt: Callable[[UserError | RunError], None]) -> Iterator[None]:
        """Context manager that monitors a running job, and logs problems that Beam does not report.

        Args:
            interrupt: A function that stops waiting for a job whose end Beam would never report.
        """
        yield

    def stop(self, result: PipelineResult | None) -> None:
        """Stops a job and waits until it ends. If this method raises an exception, the job may still be running.

        Args:
            result: The result of the submission, or None if the submission did not complete.
        """
        if result and not self.is_local:  # A local engine is a child process, which ends when Beam stops waiting.
            cancel(result)

    def explain(self, error: Exception) -> UserError | RunError | None:
        """Converts an exception from the engine to an error for the user. Returns None for all other exceptions."""
        if isinstance(error, grpc.RpcError):
            details = error.details() if isinstance(error, grpc.Call) else error
            return EngineError(f"--runner={self.name}: the job service no longer responds ({_one_line(details)})")
        if str(error).startswith("Service failed to start up"):
            return EngineError(f"--runner={self.name}: the job server ended at its start ({_one_line(error)})")
        return None


def output_digest(output: str) -> str:
    """Returns a hex digest of the absolute path of an output directory, which identifies it in job names."""
    path = output.rstrip("/") if is_remote(output) else os.path.realpath(output)
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:_DIGEST_LENGTH]


def job_name(prefix: str, output: str, run_id: str = "") -> str:
    """Returns a job name that identifies the output directory and the run, if they are given."""
    return "-".join([prefix, *([output_digest(output)] if output else []), *([run_id[:_DIGEST_LENGTH]] if run_id else [])])


def cancel(result: PipelineResult) -> None:
    """Cancels a job and waits until it ends. Raises `TimeoutError` after 300 seconds."""
    if PipelineState.is_terminal(result.state):
        return
    result.cancel()
    deadline = time.monotonic() + _STOP_SECONDS
    while not PipelineState.is_terminal(result.state):
        if time.monotonic() > deadline:
            raise TimeoutError(f"its state is still {result.state}")
        time.sleep(1)


def _one_line(error: object) -> str:
    return " ".join(str(error).split())[:200]


def check_program(name: str, option: str, location: str | None, download: Callable[[], str], hint: str = "") -> None:
    """Checks that a program exists at the given local path. If no path is given, downloads it to Beam's cache."""
    if location and not is_remote(location):
        if not os.path.isfile(location):
            raise UserError(f"{option}={location} does not exist. Give the path or URL of {name}.")
        return
    try:
        download()
    except Exception as error:  # A download can raise exceptions of many classes.
        reason = str(error).partition(". ")[0].partition("\n")[0]
        raise UserError(
            f"{name} could not be downloaded ({reason}). Pass its path or URL with {option}{hint}."
        ) from None
