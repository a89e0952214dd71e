"""Programs of Python that are forked off one that has imported what takes seconds, by default TensorFlow, and done nothing with it.

Each is a process of its own, as the command `python` with the same arguments makes it, and may import what tests import. Not for what
TensorFlow or Keras read from the environment as they are imported.
"""

import array
import contextlib
import ctypes
import fcntl
import functools
import gc
import importlib
import json
import os
import pathlib
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
from typing import Mapping, Sequence

# What many programs find imported. Those that find more are forked off a copy of what has imported this.
TENSORFLOW = ("keras", "tensorflow")
BEAM = ("beam_pipelines.launch", "pyarrow.parquet")

# Of the command line of what forks programs: room for theirs.
_ROOM = 1000
_MOST_BYTES = 1 << 20
_MOST_WAITING = 100
_MOST_FILES = 16  # of a program, as it starts


class ForkedPython:
    """A running program, with what tests ask of `subprocess.Popen` in text mode.

    Args:
        *arguments: As `python` takes them: a script, or -c and code, or -m and a module; and the program's own.
        env: Its environment; by default this one.
        cwd: Its working directory; by default this one.
        merged: Whether its stderr goes where its stdout goes.
        leads: Whether it is the leader of a session of its own.
        preloaded: Modules that it finds imported.

    Attributes:
        pid: Its process id.
        returncode: How it has ended, once that was waited for: an exit code, or minus the signal's number; before, None.
        stdin, stdout: Pipes.
    """

    def __init__(
        self,
        *arguments: object,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] = ".",
        merged: bool = False,
        leads: bool = False,
        preloaded: tuple[str, ...] = TENSORFLOW,
    ) -> None:
        asked = {"arguments": [str(one) for one in arguments], "env": dict(env or os.environ), "cwd": os.path.abspath(cwd), "leads": leads}
        read_in, write_in = os.pipe()
        read_out, write_out = os.pipe()
        self._stderr = tempfile.TemporaryFile("w+")
        files = [read_in, write_out, write_out if merged else self._stderr.fileno()]
        self._state = _ask(_forker(*preloaded)[0], asked, files, range(3))
        for descriptor in (read_in, write_out):
            os.close(descriptor)
        self.stdin, self.stdout = os.fdopen(write_in, "w"), os.fdopen(read_out)
        self.returncode: int | None = None
        self.pid = _receive(self._state)

    def poll(self) -> int | None:
        """`returncode`, if it has ended."""
        with contextlib.suppress(TimeoutError, BlockingIOError):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Waits for its end, for so many seconds, and returns `returncode`."""
        if self.returncode is None:
            self._state.settimeout(timeout)
            self.returncode = _receive(self._state)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it says on stdout from now on, until its end, and all that it has said on stderr."""
        self.stdin.close()
        late = threading.Timer(timeout or threading.TIMEOUT_MAX, self.kill)
        late.start()
        try:
            with self.stdout:
                said = self.stdout.read()
            self.wait()
        finally:
            late.cancel()
        self._stderr.seek(0)
        return said, self._stderr.read()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> "ForkedPython":
        return self

    def __exit__(self, *unused: object) -> None:
        """Waits for its end."""
        self.stdin.close()
        self.wait()
        self.stdout.close()


def run(*arguments: object, timeout: float = 240.0, **options) -> subprocess.CompletedProcess:
    """Runs a program to its end; takes what `ForkedPython` takes."""
    with ForkedPython(*arguments, **options) as process:
        stdout, stderr = process.communicate(timeout)
    return subprocess.CompletedProcess(list(arguments), process.returncode, stdout, stderr)


def write_command(path: pathlib.Path, *arguments: object, preloaded: tuple[str, ...] = TENSORFLOW) -> pathlib.Path:
    """Makes a command that is a program with those arguments, and its own after them, in a process that is forked off.

    It is for those who start programs by a name: their files, working directory and environment are the program's, and its end is the
    command's. It works as long as this process lives. What `python` takes before a program, such as -I, the interpreter itself gets.
    `multiprocessing.set_executable` may be given it: processes that are started anew are then forked off too.
    """
    said = [*map(str, arguments)]
    code = f"import sys; sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})"
    calling = f"import forked_python; forked_python.stand_for({_forker(*preloaded)[0]!r}, {said} + sys.argv[1:])"
    path.write_text(f"#!{sys.executable} -IS\n{code}\n{calling}\n")
    path.chmod(0o755)
    return path


def stand_for(forker: bytes, arguments: list[str]) -> None:
    """Ends as the program does."""
    if arguments[0] == "-B":  # which `multiprocessing` passes on, and the environment says too
        arguments = arguments[1:]
    if arguments[0].startswith("-") and arguments[0] not in ("-c", "-m"):
        os.execv(sys.executable, [sys.executable, *arguments])
    asked = {"arguments": arguments, "env": dict(os.environ), "cwd": os.getcwd(), "leads": False}
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # until it can be passed on
    with _ask(forker, asked, _open_files()) as state:
        program = _receive(state)

        def end(number: int, unused_frame: object) -> None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(program, number)

        signal.signal(signal.SIGTERM, end)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        ended = _receive(state)
    if ended < 0:
        signal.signal(-ended, signal.SIG_DFL)
        os.kill(os.getpid(), -ended)
    sys.exit(ended)


def _open_files() -> list[int]:
    """The descriptors of this process, the standard ones first: `multiprocessing` tells a process that it starts anew the numbers of others."""
    with os.scandir("/proc/self/fd") as found:
        listed = sorted(int(one.name) for one in found)
    return [one for one in listed if os.path.exists(f"/proc/self/fd/{one}")]  # without that of the list


def _ask(forker: bytes, asked: dict, given: Sequence[int], numbers: Sequence[int] | None = None) -> socket.socket:
    """Asks for a program with those files, of those numbers there, or of their own; a number comes back as it starts, its process id, and one as it ends."""
    state = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    state.connect(forker)
    asked = {**asked, "numbers": [*(given if numbers is None else numbers)]}
    socket.send_fds(state, [json.dumps(asked).encode()], given)
    return state


def _receive(state: socket.socket) -> int:
    (number,) = array.array("q", state.recv(8))
    return number


@functools.cache
def _forker(*preloaded: str) -> tuple[bytes, "subprocess.Popen | ForkedPython"]:
    """The address of what forks programs; and it itself, which ends as its stdin is closed, with this process."""
    paths = os.pathsep.join([str(pathlib.Path(__file__).parents[1]), str(pathlib.Path(__file__).parent)])
    environment = {**os.environ, "PYTHONPATH": paths}
    base = next((one for one in (TENSORFLOW, BEAM) if preloaded[: len(one)] == one != preloaded), None)
    if base:
        process = ForkedPython(__file__, *preloaded, "", env=environment, preloaded=base)
    else:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        process = subprocess.Popen([sys.executable, __file__, *preloaded, _ROOM * " "], env=environment, **pipes)
    return bytes.fromhex(process.stdout.readline()), process


def _answer(listening: socket.socket) -> None:
    """Forks, for each program that is asked for, a process that forks it, and says its id and how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those
    while sys.stdin not in select.select([listening, sys.stdin], [], [])[0]:
        asked, _ = listening.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listening.close()
            data, given, *_ = socket.recv_fds(asked, _MOST_BYTES, _MOST_FILES)
            process_id = os.fork()
            if process_id == 0:
                asked.close()
                _become(json.loads(data), given)
                return
            for descriptor in given:
                os.close(descriptor)
            asked.send(array.array("q", [process_id]))
            ended = os.waitstatus_to_exitcode(os.waitpid(process_id, 0)[1])
            with contextlib.suppress(BrokenPipeError):
                asked.send(array.array("q", [ended]))
            os._exit(0)
        asked.close()


def _become(asked: dict, given: list[int]) -> None:
    """Runs a program, as the interpreter does."""
    assert len(given) == len(asked["numbers"]), f"{len(asked['numbers'])} files; expected at most {_MOST_FILES}"
    above = max([*given, *asked["numbers"]]) + 1
    kept = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, above) for descriptor in given]  # where none is in the place of another
    for descriptor in given:
        os.close(descriptor)
    for descriptor, number in zip(kept, asked["numbers"]):
        os.dup2(descriptor, number)
        os.close(descriptor)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job's is ignored
    if asked["leads"]:
        os.setsid()
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    _show([sys.executable, *asked["arguments"]])
    del sys.modules["__main__"]
    first, *rest = asked["arguments"]
    paths = asked["env"].get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:1] = ["" if first.startswith("-") else os.path.dirname(os.path.abspath(first)), *filter(None, paths)]
    if first == "-c":
        sys.argv = ["-c", *rest[1:]]
        module = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), module.__dict__)
    elif first == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [first, *rest]
        sys.modules["__main__"] = types.ModuleType("__main__")
        runpy.run_path(first, run_name="__main__")


def _show(command: list[str]) -> None:
    """Lets this process's command line, as others see it, be that one, as far as there is room."""
    of_state = pathlib.Path("/proc/self/stat").read_text().rpartition(")")[2].split()  # from the third field on
    start, end = int(of_state[48 - 3]), int(of_state[49 - 3])
    ctypes.memmove(start, os.fsencode("\0".join(command))[: end - start - 1].ljust(end - start, b"\0"), end - start)


if __name__ == "__main__":
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as forker:
        forker.bind("")  # a name that the kernel chooses
        forker.listen(_MOST_WAITING)
        print(forker.getsockname().hex(), flush=True)
        for name in sys.argv[1:-1]:
            importlib.import_module(name)
        gc.freeze()  # what a program ends with need not look through all this
        _answer(forker)
