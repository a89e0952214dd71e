"""Tests that an abandoned job is stopped before the output of the job is removed. Otherwise the output stays."""

import concurrent.futures
import os
import pathlib
import signal
import subprocess
import sys
import time
from typing import Callable

import apache_beam as beam
import grpc
import pytest
from apache_beam.runners.runner import PipelineState

from beam_pipelines.__main__ import main
from beam_pipelines.config.run_paths import RunPaths
from beam_pipelines.errors import RunError, StillRunningError, UserError
from beam_pipelines.publish.output import working_directory
from beam_pipelines.runners import engine, waiting
from beam_pipelines.runners.jobs import choose_engine, parse_pipeline_options
from beam_pipelines.runners.waiting import run_job
from made_images import write_class_folders


class Job:
    """A fake pipeline with a predefined sequence of job states, which is also the fake result of the pipeline."""

    def __init__(self, ending: object, *states: str, cancel_fails: bool = False) -> None:
        self._ending, self._states, self._cancel_fails = ending, list(states), cancel_fails
        self.is_cancelled = False

    @property
    def state(self) -> str:
        return self._states.pop(0) if len(self._states) > 1 else self._states[0]

    def run(self) -> "Job":
        """Returns this object, which also represents the result of the pipeline."""
        return self

    runner = None

    def wait_until_finish(self) -> str:
        if isinstance(self._ending, BaseException):
            raise self._ending
        return self._ending

    def cancel(self) -> None:
        self.is_cancelled = True
        if self._cancel_fails:
            raise ConnectionError("nobody there")


def wait_for(job: Job, *options: str) -> None:
    run_job(job, choose_engine(parse_pipeline_options(["--runner=PortableRunner", *options])))


def test_wait_returns_if_job_is_done():
    wait_for(Job(PipelineState.DONE, PipelineState.DONE))


@pytest.mark.parametrize("state", [PipelineState.FAILED, PipelineState.CANCELLED])
def test_failed_or_cancelled_job_raises(state):
    with pytest.raises(RunError, match=state):
        wait_for(Job(state, state))


def test_interrupt_cancels_job_and_waits_for_its_end(monkeypatch):
    monkeypatch.setattr(engine.time, "sleep", lambda seconds: None)
    job = Job(KeyboardInterrupt(), PipelineState.RUNNING, PipelineState.CANCELLING, PipelineState.CANCELLED)
    with pytest.raises(KeyboardInterrupt):
        wait_for(job)
    assert job.is_cancelled and job.state == PipelineState.CANCELLED


class BrokenStream(grpc.RpcError):
    def __init__(self, code: grpc.StatusCode) -> None:
        self.code = lambda: code


def test_stream_cancelled_by_client_counts_as_interrupt(monkeypatch):
    monkeypatch.setattr(engine.time, "sleep", lambda seconds: None)
    cases = {grpc.StatusCode.CANCELLED: KeyboardInterrupt, grpc.StatusCode.UNAVAILABLE: BrokenStream}
    for code, expected in cases.items():
        job = Job(BrokenStream(code), PipelineState.RUNNING, PipelineState.CANCELLED)
        with pytest.raises(expected):
            wait_for(job)
        assert job.is_cancelled


LOST_STREAM = """
import grpc
from apache_beam.portability.api import beam_fn_api_pb2_grpc
from apache_beam.runners.worker.data_plane import GrpcClientDataChannel
from beam_pipelines.quiet import quiet_engines

quiet_engines()
assert GrpcClientDataChannel(beam_fn_api_pb2_grpc.BeamFnDataStub(grpc.insecure_channel("localhost:9")))._reads_finished.wait(60)
"""


@pytest.mark.slow
def test_streams_of_a_stopped_engine_end_without_messages():
    run = subprocess.run([sys.executable, "-c", LOST_STREAM], capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stderr) == (0, "")


def test_failed_job_is_not_cancelled():
    job = Job(RuntimeError("failed"), PipelineState.FAILED)
    with pytest.raises(RuntimeError, match="failed"):
        wait_for(job)
    assert not job.is_cancelled


@pytest.mark.parametrize("cancel_fails", [True, False])
def test_reports_job_that_cannot_be_stopped(monkeypatch, cancel_fails):
    monkeypatch.setattr(engine, "_STOP_SECONDS", -1)
    with pytest.raises(StillRunningError, match="job .* stopped"):
        wait_for(Job(KeyboardInterrupt(), PipelineState.RUNNING, cancel_fails=cancel_fails))


def test_output_stays_if_job_is_still_running(tmp_path: pathlib.Path):
    run = RunPaths(str(tmp_path / "out"))
    for error, stays in ((StillRunningError("still running"), True), (RunError("ended"), False)):
        with pytest.raises(type(error)), working_directory(run):
            pathlib.Path(run.working_directory, "a shard").touch()
            raise error
        assert os.path.exists(f"{run.working_directory}/a shard") == stays


@pytest.mark.slow(1.1)
@pytest.mark.parametrize("is_swallowed", [False, True])
def test_job_timeout_stops_the_job(monkeypatch, is_swallowed):
    monkeypatch.setattr(waiting, "_INTERRUPT_INTERVAL", 0.1)
    job = Job(PipelineState.DONE, PipelineState.RUNNING, PipelineState.CANCELLED)

    def wait() -> None:
        for swallowed in (is_swallowed, False):
            try:
                time.sleep(60)
            except KeyboardInterrupt:
                if not swallowed:
                    raise

    job.wait_until_finish = wait
    with pytest.raises(RunError, match="--job_timeout=1 "):
        wait_for(job, "--job_timeout=1")
    assert job.is_cancelled
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL and signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_job_that_ends_in_time_is_not_interrupted_later():
    wait_for(Job(PipelineState.DONE, PipelineState.DONE), "--job_timeout=1")
    time.sleep(1.2)


def test_job_timeout_is_rejected_outside_the_main_thread():
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        thread.submit(wait_for, Job(PipelineState.DONE, PipelineState.DONE)).result()
        with pytest.raises(UserError, match="--job_timeout=5 .*main thread"):
            thread.submit(wait_for, Job(PipelineState.DONE, PipelineState.DONE), "--job_timeout=5").result()
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL


def test_rejects_job_timeout_that_is_not_a_positive_integer():
    for text in ("0", "-1", "1.5", "an hour"):
        with pytest.raises(UserError, match=f"--job_timeout: {text}: "):
            parse_pipeline_options([f"--job_timeout={text}"])


class Timer:
    """A fake timer that fires when a test calls `Timer.fire`."""

    def __init__(self, seconds: float, function: Callable[..., None], arguments: list[object]) -> None:
        Timer.fire = lambda: function(*arguments)

    def start(self) -> None:
        """Does nothing, because the test calls `Timer.fire`."""

    cancel = start


def test_job_timeout_stops_local_runner_which_can_be_resumed(tmp_path, monkeypatch, capsys):
    """The timeout ends the run after the plan is complete, but before the shards are complete."""

    def write(*unused: object) -> None:
        Timer.fire()
        time.sleep(3)

    write_class_folders(tmp_path / "in", {"rose": 20, "tulip": 20})
    command = ["prepare", f"--input={tmp_path}/in", f"--output={tmp_path}/out", "--name=made", "--direct_running_mode=in_memory"]
    with monkeypatch.context() as reserved:
        reserved.setattr(waiting.threading, "Timer", Timer)
        reserved.setattr("beam_pipelines.pipeline.WriteShards.expand", lambda self, planned: planned | beam.Map(write))
        assert main([*command, "--job_timeout=2"]) == 1
    error = capsys.readouterr().err
    assert "--job_timeout=2 " in error and "--resume" in error, error
    assert main([*command, "--resume"]) == 0
