"""The command in processes that are forked off one that has imported Beam already: so a test can start, and kill, many of them in a minute.

Each run is the leader of a process group of its own, with its light processes in it.
"""

import contextlib
import importlib
import itertools
import json
import os
import pathlib
import signal
import subprocess
import sys
from typing import Any, Iterator

ROOT = pathlib.Path(__file__).parent.parent


class ForkedRun:
    """A run of `recordmill`."""

    def __init__(self, process_id: int, told: pathlib.Path, parent: subprocess.Popen) -> None:
        self.process_id = process_id
        self._told = told
        self._parent = parent
        self._code: int | None = None

    def is_over(self) -> bool:
        """Whether it has ended: until its end is asked for, it is a zombie."""
        state = pathlib.Path(f"/proc/{self.process_id}/stat").read_text().rpartition(")")[2].split()[0]
        return state == "Z"

    def kill(self) -> None:
        """`kill -9`, of all its processes."""
        os.killpg(self.process_id, signal.SIGKILL)

    def wait(self) -> int:
        """Its exit code, or minus the signal that has ended it."""
        if self._code is None:
            self._parent.stdin.write(f"{self.process_id}\n")
            self._parent.stdin.flush()
            self._code = int(self._parent.stdout.readline())
        return self._code

    def told(self) -> str:
        """What it has said on both of its outputs."""
        return self._told.read_text()


class Forker:
    """Starts runs."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self._num_runs = 0
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}
        command = [sys.executable, "-m", "forked_runs"]
        self.parent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)

    def start(self, *arguments: str, signalled: str = "") -> ForkedRun:
        """Starts `recordmill` with some arguments.

        Args:
            *arguments: Of the command line.
            signalled: NUMBER:MODULE:FUNCTION:CALL: the signal that the run sends itself as it calls a function for the CALLth time; a
                SIGKILL goes to all its processes.
        """
        self._num_runs += 1
        told = self._folder / f"told-{self._num_runs}.txt"
        self.parent.stdin.write(json.dumps([str(told), signalled, *arguments]) + "\n")
        self.parent.stdin.flush()
        return ForkedRun(int(self.parent.stdout.readline()), told, self.parent)


@contextlib.contextmanager
def forked_runs(folder: pathlib.Path) -> Iterator[Forker]:
    """What starts runs; what they say goes into a folder."""
    forker = Forker(folder)
    with forker.parent:  # closes its input, and waits for it
        yield forker


def _signal_at(number: str, name: str, function: str, call: str) -> None:
    module = importlib.import_module(name)
    original, calls = getattr(module, function), itertools.count(1)

    def signalled(*arguments: Any, **options: Any) -> Any:
        if next(calls) == int(call):
            send, whom = (os.killpg, 0) if int(number) == signal.SIGKILL else (os.kill, os.getpid())
            send(whom, int(number))
        return original(*arguments, **options)

    setattr(module, function, signalled)


def _serve() -> None:
    """A line with arguments: forks a run, and answers its id. A line with an id: answers how that one has ended."""
    import pyarrow.parquet  # where the first catalog is written

    import beam_pipelines.launch
    import beam_pipelines.publish.summary
    import beam_pipelines.runners.jobs
    from beam_pipelines.__main__ import main

    for line in sys.stdin:
        asked = json.loads(line)
        if isinstance(asked, int):
            print(os.waitstatus_to_exitcode(os.waitpid(asked, 0)[1]), flush=True)
            continue
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)
            os.dup2(os.open(asked[0], os.O_WRONLY | os.O_CREAT), 1)
            os.dup2(1, 2)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            code = 1
            signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job's is ignored
            if asked[1]:
                _signal_at(*asked[1].split(":"))
            try:
                code = main(asked[2:])
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        os.setpgid(child, child)  # here too, so that it can be killed as soon as it is known
        print(child, flush=True)


if __name__ == "__main__":
    _serve()
