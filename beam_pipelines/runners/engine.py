"""What is asked of every engine; each runner's module answers it for one."""

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
    """Options of ours that hold for every engine."""

    @classmethod
    def _add_argparse_args(cls, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--job_timeout",
            type=_parse_seconds,
            help="Seconds, after which a job that is not done is stopped, as by Ctrl-C (default: never).",
        )


def _parse_seconds(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text}: expected a whole number of seconds, 1 or more")
    return int(text)


@dataclasses.dataclass(frozen=True)
class Job:
    """A job that has not ended, as its engine tells of it.

    Attributes:
        id: The id of the job, as the engine gives it.
        name: The name of the job, as `Engine.set_defaults` gives it.
        state: The state of the job in the engine's words, such as RUNNING.
        page: URL of the engine's page of it.
    """

    id: str
    name: str
    state: str
    page: str


@dataclasses.dataclass(frozen=True)
class Engine:
    """The engine of a job. What is written here holds for a cluster of whatever kind; modules of runners say what differs.

    Attributes:
        name: The name of the engine, as `--runner` says it.
        options: The options of the Beam pipeline.
        runs_tensorflow: Whether `recordmill analyze` and `recordmill transform` have been seen to run there.
        takes_jobs: Whether it is a service that takes jobs: nobody need wait for one, and `describe_job` says what to tell of it.
        start_seconds: The time that it needs before the first image is read, in seconds.
        num_processes: The number of light processes beside one of its workers; 0 where it starts workers enough.
        poll_seconds: The time between two looks at a job's state, in seconds.
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
        """How its workers are started, as `--environment_type` says."""
        return self.options.view_as(PortableOptions).environment_type

    @property
    def runs_here(self) -> bool:
        """Whether every worker is on this machine."""
        return self.environment == "LOOPBACK"

    def check(self, paths: Sequence[tuple[str, str]], *, shared_filesystem: bool, wait: bool) -> None:
        """Fails where a job could not run as it is asked for.

        Args:
            paths: The paths that its workers are to see, each with the option that names it.
            shared_filesystem: Whether workers see the local paths that are given.
            wait: Whether the command waits for the job's end.

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

    def set_defaults(self, name: str, *, output: str = "", run_id: str = "", has_tensorflow: bool = False) -> None:
        """What suits our jobs there, where the user did not choose: changes the options.

        Args:
            name: The name of the data set.
            output: The directory of the data set: an engine whose jobs outlive this process names them so that `find_jobs` finds them.
            run_id: The id of the run, in hex digits.
            has_tensorflow: Whether the job's workers import TensorFlow, which takes seconds.
        """

    def find_jobs(self, output: str) -> list[Job]:
        """Jobs of ours to an output that have not ended, whoever started them; none where they live and die with their client.

        Raises:
            RunError: The engine does not tell.
        """
        is_ours = re.compile(rf"-{output_digest(output)}(-[0-9a-f]{{{_DIGEST_LENGTH}}})?$")
        return [job for job in self._list_jobs() if is_ours.search(job.name)]

    def cancel_jobs(self, jobs: Sequence[Job]) -> None:
        """Cancels jobs and waits for their end.

        Raises:
            StillRunningError: The end of one was not seen.
        """
        ids = {job.id for job in jobs}
        try:
            self._cancel_until_none(lambda job: job.id in ids)
        except Exception as error:  # whatever: all that matters is that the end was not seen
            told = "; ".join(f"{job.name}, {job.page}" for job in jobs)
            raise StillRunningError(f"a job of an earlier run could not be cancelled ({_one_line(error)}): {told}") from error

    def _cancel_until_none(self, is_meant: Callable[[Job], bool]) -> None:
        """TimeoutError where one of them goes on."""
        deadline = time.monotonic() + _STOP_SECONDS
        while going_on := [job for job in self._list_jobs() if is_meant(job)]:
            if time.monotonic() > deadline:
                raise TimeoutError(f"it is still {going_on[0].state}")
            for job in going_on:
                if job.state != "CANCELLING":
                    self._cancel_job(job.id)
            time.sleep(self.poll_seconds)

    def _list_jobs(self) -> list[Job]:
        """All jobs of the engine that have not ended, of others too; RunError where it does not tell."""
        return []

    def _cancel_job(self, job_id: str) -> None:
        """Asks for a job's end, and does not wait for it."""
        raise NotImplementedError(self.name)

    def make_runner(self) -> PipelineRunner | None:
        """The runner; None lets Beam construct it."""
        return None

    def make_pipeline(self) -> beam.Pipeline:
        """A job without any step. The folder that Beam makes for files of steps in other languages is removed at once: it would be left
        behind by a job that is never run, or whose process is killed.

        Nor is pip asked what is installed here, half a second each time, where workers come from no image of Beam's, which logs that.
        """
        if self.environment in ("LOOPBACK", "PROCESS"):
            self.options.view_as(DebugOptions).add_experiment("disable_logging_submission_environment")
        pipeline = beam.Pipeline(runner=self.make_runner(), options=self.options)
        shutil.rmtree(pipeline.local_tempdir, ignore_errors=True)
        return pipeline

    @contextlib.contextmanager
    def closing(self, runner: PipelineRunner) -> Iterator[None]:
        """At the end, what the runner has started for a job ends, and its temporary files go."""
        try:
            yield
        finally:
            if isinstance(runner, TidyRunner):
                runner.close()

    @contextlib.contextmanager
    def watching(self, interrupt: Callable[[UserError | RunError], None]) -> Iterator[None]:
        """Around a job, of which the user is told what its client does not say.

        Args:
            interrupt: Ends the waiting for a job whose end nobody will ever tell of.
        """
        yield

    def stop(self, result: PipelineResult | None) -> None:
        """Stops a job and waits for its end; raises whatever where that was not seen.

        Args:
            result: The result of the job's submission; None where that came to no end.
        """
        if result and not self.runs_here:  # else the engine is this process's child, and has ended with Beam's waiting
            cancel(result)

    def explain(self, error: Exception) -> UserError | RunError | None:
        """What is behind an error of the engine's own; None for any other."""
        if isinstance(error, grpc.RpcError):
            told = error.details() if isinstance(error, grpc.Call) else error
            return EngineError(f"--runner={self.name}: the job service does not answer any more ({_one_line(told)})")
        if str(error).startswith("Service failed to start up"):
            return EngineError(f"--runner={self.name}: its job server ended as soon as it was started ({_one_line(error)})")
        return None


def output_digest(output: str) -> str:
    """What stands for an output in the names of its jobs: hex digits, the same wherever it is called from."""
    path = output.rstrip("/") if is_remote(output) else os.path.realpath(output)
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:_DIGEST_LENGTH]


def job_name(prefix: str, output: str, run_id: str = "") -> str:
    """The name of a job; without an output, or a run, it has no part of that."""
    return "-".join([prefix, *([output_digest(output)] if output else []), *([run_id[:_DIGEST_LENGTH]] if run_id else [])])


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


def _one_line(error: object) -> str:
    return " ".join(str(error).split())[:200]


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
        raise UserError(f"{name} could not be downloaded ({reason}); expected its path or URL: {option}{hint}") from None
