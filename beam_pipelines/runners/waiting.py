"""Runs a job to its end, and stops it where nobody waits any more, or where it takes too long."""

import signal
import threading
from types import FrameType
from typing import Sequence

import apache_beam as beam
import grpc
from apache_beam.runners.runner import PipelineResult, PipelineState

from beam_pipelines.errors import EngineError, RunError, StillRunningError, UserError
from beam_pipelines.log import say
from beam_pipelines.parallel import interrupts
from beam_pipelines.runners.engine import Engine, JobOptions
from beam_pipelines.storage.files import is_remote
from beam_pipelines.storage.object_stores.store_watch import watched_stores

_SECONDS_TO_HEAR = 5.0


def run_job(pipeline: beam.Pipeline, engine: Engine, paths: Sequence[str] = ()) -> None:
    """Runs a job to its end; one that nobody waits for any more is stopped: it must not go on writing to what is removed.

    Args:
        pipeline: The pipeline to run.
        engine: The engine that runs it.
        paths: The paths that its workers read and write; a store that is silent for too long ends the job.

    Raises:
        RunError: It ended as anything but done, it took longer than `--job_timeout`, or its engine is gone.
        StillRunningError: It could not be stopped.
    """
    result = None
    with _Interrupter(engine.options.view_as(JobOptions).job_timeout) as interrupter, engine.closing(pipeline.runner):
        try:
            stores = [] if engine.runs_here else [path for path in paths if is_remote(path)]
            with engine.watching(interrupter.interrupt), watched_stores(stores, interrupter.interrupt):
                result = pipeline.run()
                state = wait_for_end(result)
        except BaseException as error:
            interrupter.disarm()
            _stop(result, engine, interrupter.error or (engine.explain(error) if isinstance(error, Exception) else None))
            if interrupter.error:
                raise interrupter.error from None
            if isinstance(error, grpc.RpcError) and error.code() is grpc.StatusCode.CANCELLED:
                # On this side, which a Ctrl-C does that comes while gRPC waits: its own exception may get lost there.
                raise KeyboardInterrupt from None
            raise
    if state != PipelineState.DONE:
        raise EngineError(f"the job ended as {state}")


def wait_for_end(result: PipelineResult) -> str:
    """Waits for the end of a job, and returns its last state."""
    return result.wait_until_finish()


def _stop(result: PipelineResult | None, engine: Engine, cause: UserError | RunError | None) -> None:
    try:
        with interrupts.unhurried():
            engine.stop(result)
    except Exception as error:  # whatever: all that matters is that its end was not seen
        reason = cause or f"the job could not be stopped ({' '.join(str(error).split())[:200]})"
        raise StillRunningError(f"{reason}, and what it has written was left there") from error


class _Interrupter:
    """Lets time, or another thread, end what the main thread waits for.

    It raises there, and again until it is heard: a library may swallow an exception.

    Args:
        timeout: Seconds of the whole job; None: it may take for ever.

    Attributes:
        error: Why; None while nobody wants the end.
    """

    def __init__(self, timeout: int | None) -> None:
        self.error: UserError | RunError | None = None
        self._is_main = threading.current_thread() is threading.main_thread()
        if timeout and not self._is_main:
            raise UserError(f"--job_timeout={timeout}: expected a call from the main thread, which alone can be interrupted")
        told = f"the job was not done after --job_timeout={timeout} seconds, and was stopped"
        self._timer = threading.Timer(timeout, self.interrupt, [EngineError(told)]) if timeout else None

    def __enter__(self) -> "_Interrupter":
        if self._is_main:
            self._old_handler = signal.signal(signal.SIGALRM, self._raise)
        if self._timer:
            self._timer.daemon = True
            self._timer.start()
        return self

    def interrupt(self, error: UserError | RunError) -> None:
        """Ends what the main thread waits for, with an error; called from any thread."""
        if self._is_main:
            self.error = self.error or error
            signal.setitimer(signal.ITIMER_REAL, 1e-3, _SECONDS_TO_HEAR)
        else:
            say(str(error), "warning")

    def disarm(self) -> None:
        """From now on nothing is raised."""
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
    """Passes where an interrupt does."""
