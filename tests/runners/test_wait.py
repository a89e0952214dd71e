"""A job that nobody waits for any more is stopped before what it wrote is removed; where it cannot be, all of it stays."""

import os
import pathlib

import grpc
import pytest
from apache_beam.runners.runner import PipelineState

from beam_pipelines.config.prepare_config import PrepareConfig
from beam_pipelines.errors import RunError, StillRunningError
from beam_pipelines.publish.output_directory import working_directory
from beam_pipelines.runners import engine
from beam_pipelines.runners.engine import cancel
from beam_pipelines.runners.waiting import wait_for


class Job:
    """What an engine's client gives back, with a job that ends as it is told to."""

    def __init__(self, ending: object, *states: str, cancel_fails: bool = False) -> None:
        self._ending, self._states, self._cancel_fails = ending, list(states), cancel_fails
        self.is_cancelled = False

    @property
    def state(self) -> str:
        return self._states.pop(0) if len(self._states) > 1 else self._states[0]

    def wait_until_finish(self) -> str:
        if isinstance(self._ending, BaseException):
            raise self._ending
        return self._ending

    def cancel(self) -> None:
        self.is_cancelled = True
        if self._cancel_fails:
            raise ConnectionError("nobody there")


def test_a_job_that_is_done_is_done():
    wait_for(Job(PipelineState.DONE, PipelineState.DONE), cancel)


@pytest.mark.parametrize("state", [PipelineState.FAILED, PipelineState.CANCELLED])
def test_any_other_end_is_an_error(state):
    with pytest.raises(RunError, match=f"the job ended as {state}"):
        wait_for(Job(state, state), cancel)


def test_an_interrupted_job_is_cancelled_and_its_end_is_awaited(monkeypatch):
    monkeypatch.setattr(engine.time, "sleep", lambda seconds: None)
    job = Job(KeyboardInterrupt(), PipelineState.RUNNING, PipelineState.CANCELLING, PipelineState.CANCELLED)
    with pytest.raises(KeyboardInterrupt):
        wait_for(job, cancel)
    assert job.is_cancelled and job.state == PipelineState.CANCELLED


class BrokenStream(grpc.RpcError):
    def __init__(self, code: grpc.StatusCode) -> None:
        self.code = lambda: code


def test_a_stream_that_broke_on_this_side_was_interrupted(monkeypatch):
    monkeypatch.setattr(engine.time, "sleep", lambda seconds: None)
    cases = {grpc.StatusCode.CANCELLED: KeyboardInterrupt, grpc.StatusCode.UNAVAILABLE: BrokenStream}
    for code, expected in cases.items():
        job = Job(BrokenStream(code), PipelineState.RUNNING, PipelineState.CANCELLED)
        with pytest.raises(expected):
            wait_for(job, cancel)
        assert job.is_cancelled


def test_a_job_that_failed_by_itself_is_not_cancelled():
    job = Job(RuntimeError("failed"), PipelineState.FAILED)
    with pytest.raises(RuntimeError, match="failed"):
        wait_for(job, cancel)
    assert not job.is_cancelled


@pytest.mark.parametrize("cancel_fails", [True, False])
def test_a_job_that_cannot_be_stopped_is_said_to_go_on(monkeypatch, cancel_fails):
    monkeypatch.setattr(engine, "_STOP_SECONDS", -1)
    with pytest.raises(StillRunningError, match="the job could not be stopped"):
        wait_for(Job(KeyboardInterrupt(), PipelineState.RUNNING, cancel_fails=cancel_fails), cancel)


def test_what_such_a_job_has_written_stays(tmp_path: pathlib.Path):
    config = PrepareConfig("in", str(tmp_path / "out"), "made")
    for error, stays in ((StillRunningError("on it goes"), True), (RunError("over"), False)):
        with pytest.raises(type(error)), working_directory(config):
            pathlib.Path(config.working_directory, "a shard").touch()
            raise error
        assert os.path.exists(f"{config.working_directory}/a shard") == stays
