"""The command in processes that are forked off one that has imported Beam already: so a test can start, and kill, many of them in a minute."""

import importlib
import itertools
import os
import signal
import sys
from typing import Any

from forked_python import BEAM, ForkedPython


class ForkedRun(ForkedPython):
    """A run of `recordmill`, the leader of a session with its light processes in it.

    Args:
        *arguments: Of the command line.
        signalled: NUMBER:MODULE:FUNCTION:CALL: the signal that the run sends itself as it calls a function for the CALLth time; a
            SIGKILL goes to all its processes.
        num_light: Its light processes, which are forked off it.
    """

    def __init__(self, *arguments: str, signalled: str = "", num_light: int = 1) -> None:
        program = "import forked_runs; forked_runs.run_here()"
        super().__init__("-c", program, signalled, str(num_light), *arguments, leads=True, preloaded=(*BEAM, "forked_workers"))
        self._told: str | None = None

    def kill(self) -> None:
        """`kill -9`, of all its processes."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:  # it leads none yet, or is over
            super().kill()

    def reported(self) -> str:
        """What it has said on both of its outputs, once it is over."""
        if self._told is None:
            _, self._told = self.communicate()
        return self._told


def run_here() -> None:
    """What such a process does."""
    signalled, num_light, *arguments = sys.argv[1:]
    os.dup2(2, 1)  # a file: it takes whatever is said before anybody reads it
    from beam_pipelines import __main__ as command
    from beam_pipelines.runners import local

    command.num_cores = local.num_cores = lambda: int(num_light)
    if signalled:
        _signal_at(*signalled.split(":"))
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
