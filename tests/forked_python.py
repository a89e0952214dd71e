"""Programs of Python that are forked off one that has imported what takes seconds, by default TensorFlow, and done nothing with it.

Each is a process of its own, as the command `python` with the same arguments makes it, and may import what tests import. Not for what
TensorFlow or Keras read from the environment as they are imported.
"""

import array
import atexit
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
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
from typing import Iterable, Iterator, Mapping, Sequence

# What many programs find imported. Those that find more are forked off a copy of what has imported this.
TENSORFLOW = ("keras", "tensorflow")
BEAM = ("beam_pipelines.launch", "pyarrow.parquet")

# The environment variable that says where all processes of the tests ask for programs. Where it is not set, each has its own to ask.
SHARED = "RECORDMILL_FORKER"

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
        asked = {"arguments": [str(argument) for argument in arguments], "env": dict(env or os.environ), "cwd": os.path.abspath(cwd), "leads": leads}
        read_in, write_in = os.pipe()
        read_out, write_out = os.pipe()
        self._stderr = tempfile.TemporaryFile("w+")
        files = [read_in, write_out, write_out if merged else self._stderr.fileno()]
        self._state = _ask(forker(*preloaded), asked, files, range(3))
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
    path.write_text(f"#!{sys.executable} -IS\n{_code_of(arguments, preloaded)}\n")
    path.chmod(0o755)
    return path


def command_line(*arguments: object, preloaded: tuple[str, ...] = TENSORFLOW) -> str:
    """Such a command for those who start programs by a command line."""
    return shlex.join([sys.executable, "-IS", "-c", _code_of(arguments, preloaded)])


def _code_of(arguments: Iterable[object], preloaded: tuple[str, ...]) -> str:
    importing = f"import sys; sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r}); import forked_python"
    return f"{importing}; forked_python.stand_for({forker(*preloaded)!r}, {[*map(str, arguments)]} + sys.argv[1:])"


def stand_for(address: bytes, arguments: list[str]) -> None:
    """Ends as the program does."""
    while arguments[0] in ("-B", "-u"):  # which `multiprocessing` passes on, and the environment says too; and execnet, which flushes
        arguments = arguments[1:]
    if arguments[0].startswith("-") and arguments[0] not in ("-c", "-m"):
        os.execv(sys.executable, [sys.executable, *arguments])
    asked = {"arguments": arguments, "env": dict(os.environ), "cwd": os.getcwd(), "leads": False}
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # until it can be passed on
    with _ask(address, asked, _open_files()) as state:
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
    with os.scandir("/proc/self/fd") as actual:
        listed = sorted(int(item.name) for item in actual)
    return [entry for entry in listed if os.path.exists(f"/proc/self/fd/{entry}")]  # without that of the list


def _ask(address: bytes, asked: dict, given: Sequence[int], numbers: Sequence[int] | None = None) -> socket.socket:
    """Asks for a program with those files, of those numbers there, or of their own; a number comes back as it starts, its process id, and one as it ends."""
    state = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    state.connect(address)
    asked = {**asked, "numbers": [*(given if numbers is None else numbers)]}
    socket.send_fds(state, [json.dumps(asked).encode()], given)
    return state


def _receive(state: socket.socket) -> int:
    (number,) = array.array("q", state.recv(8))
    return number


def start() -> tuple[bytes, subprocess.Popen]:
    """The address of what forks those that fork programs; and it itself. They all end as its stdin is closed, with this process."""
    paths = os.pathsep.join([str(pathlib.Path(__file__).parents[1]), str(pathlib.Path(__file__).parent)])
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, __file__, _ROOM * " "], env={**os.environ, "PYTHONPATH": paths}, **pipes)
    return bytes.fromhex(process.stdout.readline()), process


_own = functools.cache(start)


@functools.cache
def forker(*preloaded: str) -> bytes:
    """The address of what forks programs that find so much imported, or will in some seconds."""
    base = next((item for item in (TENSORFLOW, BEAM) if preloaded[: len(item)] == item != preloaded), None)
    shared = os.environ.get(SHARED)
    first = forker(*base) if base else bytes.fromhex(shared) if shared else _own()[0]
    with _ask(first, {"preloaded": preloaded}, []) as answer:
        return answer.recv(_MOST_BYTES)


def _listen() -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind("")  # a name that the kernel chooses
    listening.listen(_MOST_WAITING)
    return listening


def _answer(listening: socket.socket) -> None:
    """Forks, for each program that is asked for, a process that forks it, and says its id and how it ended; and for modules that programs
    are to find imported, the first time, another that does the same for those."""
    others: dict[tuple[str, ...], bytes] = {}
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those
    while sys.stdin not in select.select([listening, sys.stdin], [], [])[0]:
        asked, _ = listening.accept()
        data, given, *_ = socket.recv_fds(asked, _MOST_BYTES, _MOST_FILES)
        if given and os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listening.close()
            process_id = os.fork()
            if process_id == 0:
                asked.close()
                _become(json.loads(data), given)
                return  # and end
            for descriptor in given:
                os.close(descriptor)
            asked.send(array.array("q", [process_id]))
            ended = os.waitstatus_to_exitcode(os.waitpid(process_id, 0)[1])
            with contextlib.suppress(BrokenPipeError):
                asked.send(array.array("q", [ended]))
            os._exit(0)
        for descriptor in given:
            os.close(descriptor)
        if data and not given:
            names = tuple(json.loads(data)["preloaded"])
            if names not in others:
                other = _listen()
                others[names] = other.getsockname()
                if os.fork() == 0:
                    asked.close()
                    listening.close()
                    _preload(*names)
                    return _answer(other)
                other.close()
            asked.send(others[names])
        asked.close()


def _preload(*names: str) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _show([sys.executable, __file__, *names])
    gc.disable()  # which looks through what is imported again and again
    with _quiet():
        for name in names:
            importlib.import_module(name)
    gc.enable()
    gc.freeze()  # what a program ends with need not look through all this


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what TensorFlow says as it is imported."""
    before = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


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
    tempfile.tempdir = None
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


@contextlib.contextmanager
def _quick_end() -> Iterator[None]:
    """A program's end: threads are waited for, what is registered for then is called, and what it printed is written. Then it is over: to
    take apart all that was imported takes ten times as long as a small program. One that an error ends does that."""
    codes: list[int] = []

    def leave() -> None:
        for code in codes:
            with contextlib.suppress(OSError, ValueError):  # which the interpreter has its own way to tell of
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code & 0xFF)

    atexit.register(leave)  # before any other: it is called last
    try:
        yield
        codes.append(0)
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            codes.append(int(ended.code or 0))
        raise


if __name__ == "__main__":
    with _quick_end(), _listen() as listening:
        print(listening.getsockname().hex(), flush=True)
        _answer(listening)
