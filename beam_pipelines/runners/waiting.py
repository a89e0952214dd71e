"""Waits for a job's end, and stops it where nobody waits any more."""

from typing import Callable

import grpc
from apache_beam.runners.runner import PipelineResult, PipelineState

from beam_pipelines.errors import RunError, StillRunningError
from beam_pipelines.parallel import interrupts


def wait_for(result: PipelineResult, stop: Callable[[PipelineResult], None]) -> None:
    """Waits for a job's end, and stops it where nobody waits any more: it must not go on writing to what is removed.

    Raises:
        RunError: It ended as anything but done.
        StillRunningError: It could not be stopped.
    """
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
        with interrupts.unhurried():
            stop(result)
    except Exception as error:  # whatever: all that matters is that its end was not seen
        raise StillRunningError(
            f"the job could not be stopped ({' '.join(str(error).split())[:200]}), and what it has written was left there"
        ) from error
