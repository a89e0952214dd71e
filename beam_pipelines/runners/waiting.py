"""Runs a job to its end, and stops the job after an interrupt, an error or a timeout."""

import signal
import threading
from types import FrameType
from typing import Sequence

import apache_beam as beam
import grpc
from apache_beam.runners.runner import PipelineResult, PipelineState

from beam_pipelines.errors import EngineError, RunError, StillRunningError, UserError
from beam_pipelines.log import print_message
from beam_pipelines.parallel import interrupts
from beam_pipelines.runners.engine import Engine, JobOptions
from beam_pipelines.storage.files import is_remote
from beam_pipelines.storage.object_stores.store_watch import watched_stores

_INTERRUPT_INTERVAL = 5.0


def run_job(pipeline: beam.Pipeline, engine: Engine, paths: Sequence[str] = ()) -> None:
    """Runs a job until it ends.

    If the command is interrupted, the job is stopped, because it could otherwise write to files that the command
    removes.

    Args:
        pipeline: The pipeline to run.
        engine: The engine that runs the pipeline.
        paths: The paths that workers access. If an object store does not respond for too long, the job is stopped.

    Raises:
        RunError: The job failed, took longer than `--job_timeout`, or lost its engine.
        StillRunningError: The job could not be stopped.
    """
    result = None
    with _Interrupter(engine.options.view_as(JobOptions).job_timeout) as interrupter, engine.closing(pipeline.runner):
        try:
            stores = [] if engine.is_local else [path for path in paths if is_remote(path)]
            with engine.watching(interrupter.interrupt), watched_stores(stores, interrupter.interrupt):
                result = pipeline.run()
                state = wait_for_end(result)
        except BaseException as error:
            interrupter.disarm()
            _stop(result, engine, interrupter.error or (engine.explain(error) if isinstance(error, Exception) else None))
            if interrupter.error:
                raise interrupter.error from None
            if isinstance(error, grpc.RpcError) and error.code() is grpc.StatusCode.CANCELLED:
                # If Ctrl-C is pressed during a gRPC call, the client can report CANCELLED instead of KeyboardInterrupt.
                raise KeyboardInterrupt from None
            raise
    if state != PipelineState.DONE:
        raise EngineError(f"the job ended with state {state}")


def wait_for_end(result: PipelineResult) -> str:
    """Waits until a job ends and returns its final state."""
    return result.wait_until_finish()


def _stop(result: PipelineResult | None, engine: Engine, cause: UserError | RunError | None) -> None:
    try:
        with interrupts.without_time_limit():
            engine.stop(result)
    except Exception as error:  # After any error, it is unknown whether the job has ended.
        reason = cause or f"the job could not be stopped ({' '.join(str(error).split())[:200]})"
        raise StillRunningError(f"{reason}. Its files were kept.") from error


class _Interrupter:
    """Context manager in which a timeout or another thread can interrupt the main thread.

    The exception is raised every few seconds, because a library may suppress it.

    Args:
        timeout: The maximum duration of the job in seconds. None means unlimited.

    Attributes:
        error: The reason for the interrupt. None if there was no interrupt.
    """

    def __init__(self, timeout: int | None) -> None:
        self.error: UserError | RunError | None = None
        self._is_main = threading.current_thread() is threading.main_thread()
        if timeout and not self._is_main:
            raise UserError(f"--job_timeout={timeout} works only in the main thread. Call it from there, or omit it.")
        message = f"the job did not finish within --job_timeout={timeout} seconds, and was stopped"
        self._timer = threading.Timer(timeout, self.interrupt, [EngineError(message)]) if timeout else None

    def __enter__(self) -> "_Interrupter":
        if self._is_main:
            self._old_handler = signal.signal(signal.SIGALRM, self._raise)
        if self._timer:
            self._timer.daemon = True
            self._timer.start()
        return self

    def interrupt(self, error: UserError | RunError) -> None:
        """Interrupts the main thread with an error. Any thread can call this method."""
        if self._is_main:
            self.error = self.error or error
            signal.setitimer(signal.ITIMER_REAL, 1e-3, _INTERRUPT_INTERVAL)
        else:
            print_message(str(error), "warning")

    def disarm(self) -> None:
        """Prevents further interrupts."""
        if self._timer:
            self._timer.cancel()
        if self._is_main:
            signal.signal(signal.SIGALRM, signal.SIG_IGN)
            signal.setitimer(signal.ITIMER_REAL, 0)

    def __exit__(self, *unused: object) -> None:
        self.disarm()
        if self._is_main:
            signal.signal(signal.SIGALRM, self._old_handler)

    def _raise(self, unused_number: int, unused_frame: FrameType | None) -> None:
        raise _Interrupted


class _Interrupted(KeyboardInterrupt):
    """Raised in the main thread."""
