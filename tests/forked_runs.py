"""Runs `recordmill` in forks of a process that has imported Beam, so that tests can start many runs per minute."""

import importlib
import itertools
import os
import signal
import sys
from typing import Any

from forked_python import BEAM, ForkedPython


class ForkedRun(ForkedPython):
    """A run of `recordmill` that leads its own process session, to which its worker processes also belong.

    Args:
        *arguments: Arguments of the command line.
        signalled: NUMBER:MODULE:FUNCTION:CALL. The run sends itself the signal NUMBER in call number CALL of the function.
            SIGKILL is sent to all of its processes.
        num_workers: Number of worker processes, which are forked from the run.
    """

    def __init__(self, *arguments: str, signalled: str = "", num_workers: int = 1) -> None:
        program = "import forked_runs; forked_runs.run_here()"
        super().__init__("-c", program, signalled, str(num_workers), *arguments, leads=True, preloaded=(*BEAM, "forked_workers"))
        self._told: str | None = None

    def kill(self) -> None:
        """Kills all processes of the run with SIGKILL."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:  # the run has not created its session yet, or has ended
            super().kill()

    def reported(self) -> str:
        """Waits for the run to end and returns its standard output and standard error."""
        if self._told is None:
            _, self._told = self.communicate()
        return self._told


def run_here() -> None:
    """Runs the command in the forked process."""
    signalled, num_workers, *arguments = sys.argv[1:]
    os.dup2(2, 1)  # standard error is a file, which accepts any amount of output
    from beam_pipelines import __main__ as command
    from beam_pipelines import commands
    from beam_pipelines.parallel.worker_processes import worker_processes
    from beam_pipelines.runners import local

    commands.num_cores = local.num_cores = lambda: int(num_workers)
    if signalled:
        _signal_at(*signalled.split(":"))
    if any("://" in argument for argument in arguments):
        worker_processes(int(num_workers))  # Forked now, because a fork has no threads of an object store client.
    code = 1
    try:
        code = command.main(arguments)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _signal_at(number: str, name: str, function: str, call: str) -> None:
    module = importlib.import_module(name)
    original, calls = getattr(module, function), itertools.count(1)

    def signalled(*arguments: Any, **options: Any) -> Any:
        if next(calls) == int(call):
            send, whom = (os.killpg, 0) if int(number) == signal.SIGKILL else (os.kill, os.getpid())
            send(whom, int(number))
        return original(*arguments, **options)

    setattr(module, function, signalled)
