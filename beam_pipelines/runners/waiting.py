"""Waits for a job's end, and stops it where nobody waits any more."""

import contextlib
import threading
import time
from typing import Callable

import grpc
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.runner import PipelineResult, PipelineState

from beam_pipelines.errors import RunError, StillRunningError
from beam_pipelines.runners import engines, flink

_STOP_SECONDS = 300


def wait_for(result: PipelineResult, stop: Callable[[PipelineResult], None]) -> None:
    """Waits for a job's end, and stops it where nobody waits any more: it must not go on writing to what is removed.

    Raises:
        RunError: It ended as anything but done.
        StillRunningError: It could not be stopped.
    """
    threading.excepthook = _quiet_broken_streams
    try:
        state = result.wait_until_finish()
    except BaseException as error:
        _stop(result, stop)
        if isinstance(error, grpc.RpcError) and error.code() is grpc.StatusCode.CANCELLED:
            # On this side, which a Ctrl-C does that comes while gRPC waits: its own exception may get lost there.
            raise KeyboardInterrupt from None
        raise
    if state != PipelineState.DONE:
        raise RunError(f"the job ended as {state}")


def _stop(result: PipelineResult, stop: Callable[[PipelineResult], None]) -> None:
    try:
        stop(result)
    except Exception as error:  # whatever: all that matters is that its end was not seen
        raise StillRunningError(
            f"the job could not be stopped ({' '.join(str(error).split())[:200]}), and what it has written was left there"
        ) from error


def _quiet_broken_streams(arguments: threading.ExceptHookArgs) -> None:
    """Threads of Beam's still read from an engine that has been stopped."""
    if not isinstance(arguments.exc_value, grpc.RpcError):
        threading.__excepthook__(arguments)


def how_to_stop(options: PipelineOptions) -> Callable[[PipelineResult], None]:
    """To be asked before the job runs: then Beam takes the runner's name out of the options."""
    if engines.runner_name(options) == "FlinkRunner" and flink.has_master(options):
        return lambda result: _cancel_on_flink(result, options)
    if engines.runs_here(options):
        return lambda result: None  # the engine is this process's child, and has ended with Beam's waiting
    return cancel


def _cancel_on_flink(result: PipelineResult, options: PipelineOptions) -> None:
    with contextlib.suppress(Exception):  # Ctrl-C has ended the job server; without it, it must not submit from now on
        result.cancel()
    flink.cancel_job(options)


def cancel(result: PipelineResult) -> None:
    if PipelineState.is_terminal(result.state):
        return
    result.cancel()
    deadline = time.monotonic() + _STOP_SECONDS
    while not PipelineState.is_terminal(result.state):
        if time.monotonic() > deadline:
            raise TimeoutError(f"it is still {result.state}")
        time.sleep(1)
