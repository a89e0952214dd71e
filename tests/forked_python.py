"""Runs Python programs in forks of a server process that has already imported slow modules, by default TensorFlow.

Each program behaves as if it had been started by `python` with the same arguments. Each program can also import test
modules. Environment variables that are read during the import of TensorFlow or Keras have no effect on these programs.
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

# Modules that many programs need. Servers with additional modules are forked from a server with these modules.
TENSORFLOW = ("keras", "tensorflow")
BEAM = ("beam_pipelines.launch", "pyarrow.parquet")

# Environment variable with the address of the fork server that all test processes share.
SHARED = "RECORDMILL_FORKER"

# Length of the placeholder argument that reserves space for the command line of a program.
_COMMAND_LINE_BYTES = 1000
_MAX_MESSAGE_BYTES = 1 << 20
_MAX_WAITING = 100
_MAX_FILES = 16  # open files of a new program


class ForkedPython:
    """A running program. The class has the methods of `subprocess.Popen` that tests need. The pipes transfer text.
    Args:
        *arguments: Arguments of `python`: a script, -c and code, or -m and a module, followed by the arguments of the program.
        env: Environment of the program. The default is the environment of this process.
        cwd: Working directory. The default is the directory of this process.
        merged: Whether to redirect standard error to standard output.
        leads: Whether the program is the leader of a new session.
        preloaded: Modules that are imported before the program starts.
    Attributes:
        pid: Process ID.
        returncode: Exit code, or minus the number of the signal that ended the program. None until `poll` or `wait` detects the end.
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
        """Returns the exit code, or None if the program is still running."""
        with contextlib.suppress(TimeoutError, BlockingIOError):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Waits at most `timeout` seconds for the program to exit, and returns the exit code."""
        if self.returncode is None:
            self._state.settimeout(timeout)
            self.returncode = _receive(self._state)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Closes standard input, waits for the program to exit, and returns its standard output and standard error."""
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
        """Closes standard input and waits for the program to exit."""
        self.stdin.close()
        self.wait()
        self.stdout.close()


def run(*arguments: object, timeout: float = 240.0, **options) -> subprocess.CompletedProcess:
    """Runs a program until it exits. The options are those of `ForkedPython`."""
    with ForkedPython(*arguments, **options) as process:
        stdout, stderr = process.communicate(timeout)
    return subprocess.CompletedProcess(list(arguments), process.returncode, stdout, stderr)


def write_command(path: pathlib.Path, *arguments: object, preloaded: tuple[str, ...] = TENSORFLOW) -> pathlib.Path:
    """Writes an executable file that runs a program in a forked process. The arguments of the command follow
    `arguments`. The program inherits the open files, the working directory and the environment of the command. The
    command returns the exit code of the program. The command works while this process lives. If `python` options
    other than -c and -m are given, such as -I, the command starts a new interpreter. `multiprocessing.set_executable`
    accepts the path.
    """
    path.write_text(f"#!{sys.executable} -IS\n{_code_of(arguments, preloaded)}\n")
    path.chmod(0o755)
    return path


def command_line(*arguments: object, preloaded: tuple[str, ...] = TENSORFLOW) -> str:
    """Returns a command line that runs a program in a forked process."""
    return shlex.join([sys.executable, "-IS", "-c", _code_of(arguments, preloaded)])


def _code_of(arguments: Iterable[object], preloaded: tuple[str, ...]) -> str:
    importing = f"import sys; sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r}); import forked_python"
    return f"{importing}; forked_python.run_in_fork({forker(*preloaded)!r}, {[*map(str, arguments)]} + sys.argv[1:])"


def run_in_fork(address: bytes, arguments: list[str]) -> None:
    """Runs a program in a forked process and ends this process with the exit code or signal of the program."""
    while arguments[0] in ("-B", "-u"):  # options that `multiprocessing` and execnet pass
        arguments = arguments[1:]
    if arguments[0].startswith("-") and arguments[0] not in ("-c", "-m"):
        os.execv(sys.executable, [sys.executable, *arguments])
    asked = {"arguments": arguments, "env": dict(os.environ), "cwd": os.getcwd(), "leads": False}
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # until the signal can be forwarded
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
    """Returns the numbers of all open file descriptors in ascending order."""
    with os.scandir("/proc/self/fd") as actual:
        listed = sorted(int(item.name) for item in actual)
    return [entry for entry in listed if os.path.exists(f"/proc/self/fd/{entry}")]  # without the descriptor of the listing


def _ask(address: bytes, asked: dict, given: Sequence[int], numbers: Sequence[int] | None = None) -> socket.socket:
    """Asks a fork server to start a program. The server sends the process ID and later the exit code of the program."""
    state = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    state.connect(address)
    asked = {**asked, "numbers": [*(given if numbers is None else numbers)]}
    socket.send_fds(state, [json.dumps(asked).encode()], given)
    return state


def _receive(state: socket.socket) -> int:
    (number,) = array.array("q", state.recv(8))
    return number


def start() -> tuple[bytes, subprocess.Popen]:
    """Starts a fork server and returns its address and process. If its standard input is closed, the server ends."""
    paths = os.pathsep.join([str(pathlib.Path(__file__).parents[1]), str(pathlib.Path(__file__).parent)])
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, __file__, _COMMAND_LINE_BYTES * " "], env={**os.environ, "PYTHONPATH": paths}, **pipes)
    return bytes.fromhex(process.stdout.readline()), process


_own = functools.cache(start)


@functools.cache
def forker(*preloaded: str) -> bytes:
    """Returns the address of a fork server whose programs start with the given modules imported."""
    base = next((item for item in (TENSORFLOW, BEAM) if preloaded[: len(item)] == item != preloaded), None)
    shared = os.environ.get(SHARED)
    first = forker(*base) if base else bytes.fromhex(shared) if shared else _own()[0]
    with _ask(first, {"preloaded": preloaded}, []) as answer:
        return answer.recv(_MAX_MESSAGE_BYTES)


def _listen() -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind("")  # the kernel chooses a name
    listening.listen(_MAX_WAITING)
    return listening


def _answer(listening: socket.socket) -> None:
    """Serves requests: forks a process for each program, and a new fork server for each new set of modules."""
    others: dict[tuple[str, ...], bytes] = {}
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # child processes are not waited for
    while sys.stdin not in select.select([listening, sys.stdin], [], [])[0]:
        asked, _ = listening.accept()
        data, given, *_ = socket.recv_fds(asked, _MAX_MESSAGE_BYTES, _MAX_FILES)
        if given and os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listening.close()
            process_id = os.fork()
            if process_id == 0:
                asked.close()
                _become(json.loads(data), given)
                return  # the process ends
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
    gc.disable()  # the collector would search the imported objects again and again
    with _quiet():
        for name in names:
            importlib.import_module(name)
    gc.enable()
    gc.freeze()  # so that the end of a program does not search the imported objects


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Context manager that suppresses TensorFlow's messages while it is imported."""
    before = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


def _become(asked: dict, given: list[int]) -> None:
    """Runs a program in this process in the same way as a new Python interpreter."""
    assert len(given) == len(asked["numbers"]), f"{len(asked['numbers'])} files; expected at most {_MAX_FILES}"
    above = max([*given, *asked["numbers"]]) + 1
    kept = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, above) for descriptor in given]  # above all numbers in use
    for descriptor in given:
        os.close(descriptor)
    for descriptor, number in zip(kept, asked["numbers"]):
        os.dup2(descriptor, number)
        os.close(descriptor)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs ignore SIGINT
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
    """Replaces the command line that the system shows for this process. Long command lines are cut."""
    of_state = pathlib.Path("/proc/self/stat").read_text().rpartition(")")[2].split()  # fields from the third one on
    start, end = int(of_state[48 - 3]), int(of_state[49 - 3])
    ctypes.memmove(start, os.fsencode("\0".join(command))[: end - start - 1].ljust(end - start, b"\0"), end - start)


@contextlib.contextmanager
def _quick_end() -> Iterator[None]:
    """Context manager that ends the process after waiting for threads, running exit functions and flushing output.
    Destroying all imported objects would take ten times as long as running a small program."""
    codes: list[int] = []

    def leave() -> None:
        for code in codes:
            with contextlib.suppress(OSError, ValueError):  # the interpreter reports these errors itself
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code & 0xFF)

    atexit.register(leave)  # registered first, so that it is called last
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
