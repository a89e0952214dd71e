"""The base class of the engines that run Beam jobs."""

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
_DIGEST_LENGTH = 8  # hex digits


class JobOptions(PipelineOptions):
    """Recordmill's additional pipeline options, which apply to all engines."""

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
    """An active job that an engine has reported.

    Attributes:
        id: The job ID that the engine assigned.
        name: The job name that `Engine.set_defaults` assigned.
        state: The state of the job as the engine names it, such as RUNNING.
        page: The URL of the engine's web page for the job.
    """

    id: str
    name: str
    state: str
    page: str


@dataclasses.dataclass(frozen=True)
class Engine:
    """The engine that runs a job. The methods of this base class have default implementations that work for any
    cluster.

    Attributes:
        name: The name of the engine, as in `--runner`.
        options: The options of the Beam pipeline.
        runs_tensorflow: Whether `recordmill analyze` and `recordmill transform` have been tested on the engine.
        takes_jobs: Whether the engine is a service that runs jobs without a waiting client. If so, the engine has a
            `describe_job` method, which returns the message for a submitted job.
        start_seconds: The expected time before the first image is read, in seconds.
        num_processes: The number of extra worker processes beside each Beam worker. It is 0 if the engine starts
            enough workers of its own.
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
        """The way in which the engine starts workers, as specified by `--environment_type`."""
        return self.options.view_as(PortableOptions).environment_type

    @property
    def is_local(self) -> bool:
        """Whether all workers run on this machine."""
        return self.environment == "LOOPBACK"

    def check(self, paths: Sequence[tuple[str, str]], *, shared_filesystem: bool, wait: bool) -> None:
        """Checks that the engine can run the job with the given options.

        Args:
            paths: Pairs of an option's name and a path that the workers must be able to read or write.
            shared_filesystem: Whether the workers can access the given local paths.
            wait: Whether the command waits for the end of the job.

        Raises:
            UserError: A path is not accessible to the workers, or a service or option that the engine needs is missing.
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

        Docker workers require an image or a package that contains recordmill and its dependencies. Beam's own image
        does not contain recordmill.
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
            output: The output directory of the dataset. If jobs of this engine can outlive this process, their names
                contain a digest of the directory, by which `find_jobs` finds them.
            run_id: The ID of the run, in hex digits.
            has_tensorflow: Whether the workers of the job import TensorFlow, which takes seconds.
        """

    def find_jobs(self, output: str) -> list[Job]:
        """Returns all active recordmill jobs that write to an output directory, including jobs of other processes.

        The list is always empty for engines whose jobs end together with their client.

        Raises:
            RunError: The engine does not list its jobs.
        """
        is_owned = re.compile(rf"-{output_digest(output)}(-[0-9a-f]{{{_DIGEST_LENGTH}}})?$")
        return [job for job in self._list_jobs() if is_owned.search(job.name)]

    def cancel_jobs(self, jobs: Sequence[Job]) -> None:
        """Cancels jobs and waits until they have ended.

        Raises:
            StillRunningError: It is unknown whether all jobs have ended.
        """
        ids = {job.id for job in jobs}
        try:
            self._cancel_until_none(lambda job: job.id in ids)
        except Exception as error:  # after any error it is unknown whether the jobs have ended
            job_texts = "; ".join(f"{job.name}, {job.page}" for job in jobs)
            raise StillRunningError(
                f"a job of an earlier run could not be canceled ({_one_line(error)}): {job_texts}. Cancel it, and run the "
                "same command again."
            ) from error

    def _cancel_until_none(self, is_selected: Callable[[Job], bool]) -> None:
        """Cancels all jobs for which `is_selected` returns true, or raises `TimeoutError` if any of these jobs does not
        end."""
        deadline = time.monotonic() + _STOP_SECONDS
        while active_jobs := [job for job in self._list_jobs() if is_selected(job)]:
            if time.monotonic() > deadline:
                raise TimeoutError(f"its state is still {active_jobs[0].state}")
            for job in active_jobs:
                if job.state != "CANCELLING":
                    self._cancel_job(job.id)
            time.sleep(self.poll_seconds)

    def _list_jobs(self) -> list[Job]:
        """Returns all active jobs of the engine, including jobs of other users, or raises `RunError`."""
        return []

    def _cancel_job(self, job_id: str) -> None:
        """Requests the cancellation of a job without waiting for its end."""
        raise NotImplementedError(self.name)

    def make_runner(self) -> PipelineRunner | None:
        """Creates the Beam runner. If the method returns None, Beam constructs the runner."""
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
        """On exit, the runner's job server is stopped, and its temporary files are deleted."""
        try:
            yield
        finally:
            if isinstance(runner, TidyRunner):
                runner.close()

    @contextlib.contextmanager
    def watching(self, interrupt: Callable[[UserError | RunError], None]) -> Iterator[None]:
        """Context manager that monitors a running job, and logs problems that the Beam client does not report.

        Args:
            interrupt: A function that stops the wait for a job whose end the client would never report.
        """
        yield

    def stop(self, result: PipelineResult | None) -> None:
        """Stops a job and waits for its end.

        Raises an exception of any class if it is not certain that the job has ended.

        Args:
            result: The result of the job's submission, or None if the submission did not complete.
        """
        if result and not self.is_local:  # a local engine is a child process, which ends when Beam's wait ends
            cancel(result)

    def explain(self, error: Exception) -> UserError | RunError | None:
        """Converts an exception of the engine to an error for the user.

        Returns None for all other exceptions.
        """
        if isinstance(error, grpc.RpcError):
            details = error.details() if isinstance(error, grpc.Call) else error
            return EngineError(f"--runner={self.name}: the job service no longer responds ({_one_line(details)})")
        if str(error).startswith("Service failed to start up"):
            return EngineError(f"--runner={self.name}: the job server ended at its start ({_one_line(error)})")
        return None


def output_digest(output: str) -> str:
    """Returns a hex digest of the absolute output path, which identifies the output directory in job names."""
    path = output.rstrip("/") if is_remote(output) else os.path.realpath(output)
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:_DIGEST_LENGTH]


def job_name(prefix: str, output: str, run_id: str = "") -> str:
    """Returns a job name that identifies the output directory and, if given, the run."""
    return "-".join([prefix, *([output_digest(output)] if output else []), *([run_id[:_DIGEST_LENGTH]] if run_id else [])])


def cancel(result: PipelineResult) -> None:
    """Cancels a job and waits for its end, or raises `TimeoutError` after 300 seconds."""
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
    """Checks that a program exists at the given local path, or downloads the program to Beam's cache."""
    if location and not is_remote(location):
        if not os.path.isfile(location):
            raise UserError(f"{option}={location} does not exist. Give the path or URL of {name}.")
        return
    try:
        download()
    except Exception as error:  # a download can fail with exceptions of many classes
        reason = str(error).partition(". ")[0].partition("\n")[0]
        raise UserError(
            f"{name} could not be downloaded ({reason}). Pass its path or URL with {option}{hint}."
        ) from None
