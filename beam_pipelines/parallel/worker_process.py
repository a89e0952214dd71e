"""Implements a worker process: the class that sends tasks from the parent, and the main loop of the child."""

import contextlib
import gc
import importlib
import os
import pathlib
import pickle
import signal
import struct
import subprocess
import sys
import traceback
from typing import BinaryIO

from beam_pipelines.errors import RunError

_LENGTH = struct.Struct("<Q")

# The child must import this package, which may not be installed. In the child's path, the package's folder is after the
# standard library and before site-packages.
_CHILD = """
import sys
first_of_site = next((i for i, path in enumerate(sys.path) if path.endswith("-packages")), len(sys.path))
sys.path.insert(first_of_site, sys.argv[1])
from beam_pipelines.parallel.worker_process import run_child
run_child(sys.argv[2:])
"""

_READY = b"ready"

# Without these limits, each read-ahead thread has its own heap, which never shrinks. Arrays of a few hundred kilobytes
# are mapped and unmapped for each block of images, which takes a fifth of the time for hashing tiny images. NumPy's
# linear algebra threads are not needed, and take a third of the start time.
_ENVIRONMENT = {
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_MMAP_THRESHOLD_": str(4 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(8 << 20),
    "OPENBLAS_NUM_THREADS": "1",
}

# Modules that the child imports at its start, while the parent still imports Beam.
_PRELOADED = ("beam_pipelines.sources.listing.part_listing", "beam_pipelines.shards.shard_writer")


class WorkerProcess:
    """A worker process, as seen by its parent. Only one thread may use an instance."""

    def __init__(self) -> None:
        package_parent = str(pathlib.Path(__file__).resolve().parents[2])
        # -P prevents imports from the user's folder.
        command = [sys.executable, "-P", "-c", _CHILD, package_parent, *_PRELOADED]
        try:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=_ENVIRONMENT | os.environ)
        except OSError as error:
            raise RunError(f"a worker process could not be started: {error.strerror or error}") from error
        self._is_ready = self._is_over = False

    def is_ready(self) -> bool:
        """Waits until the process has imported its modules. Returns False if the process has ended."""
        with contextlib.suppress(EOFError, OSError):
            self._is_ready = self._is_ready or _read_message(self._process.stdout) == _READY
        return self._is_ready and not self.has_ended()

    def is_over(self) -> bool:
        """Returns whether the process has ended and must be replaced."""
        if self._is_ready and not self._is_over and self.has_ended():
            self.ending()
        return self._is_over

    def ask(self, request: bytes) -> bytes:
        """Sends a task and returns the answer.

        Args:
            request: The pickled function and its arguments.

        Returns:
            The pickled answer: (succeeded, value or exception).

        Raises:
            RunError: The process ended before it answered.
        """
        try:
            _write_message(self._process.stdin, request)
            return _read_message(self._process.stdout)
        except (EOFError, OSError):
            raise RunError(f"a worker process ended ({self.ending()}) before it completed its task") from None

    def has_ended(self) -> bool:
        """Returns whether the process has ended."""
        return self._process.poll() is not None

    def ending(self) -> str:
        """Waits until the process has ended, and describes why it ended. The process must not be used afterwards."""
        code, self._is_over = self._process.wait(), True
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):  # Data that the process did not read is lost.
                stream.close()
        if code == -signal.SIGKILL:
            return "killed, possibly because of low memory"
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def kill(self) -> None:
        """Kills the process and waits until it has ended."""
        self._process.kill()
        self._process.wait()


def _write_message(stream: BinaryIO, message: bytes) -> None:
    stream.write(_LENGTH.pack(len(message)))
    stream.write(message)
    stream.flush()


def _read_message(stream: BinaryIO) -> bytes:
    header = stream.read(_LENGTH.size)
    if len(header) < _LENGTH.size:
        raise EOFError
    (length,) = _LENGTH.unpack(header)
    message = stream.read(length)
    if len(message) < length:
        raise EOFError
    return message


def run_child(preloaded: list[str]) -> None:
    """Runs the main loop of a worker process.

    The process reports that it has started, and then reads tasks from standard input. For each task, it returns a pair:
    whether the task succeeded, and the result or the exception.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        # Ctrl-C and a hang-up reach all processes of the terminal. The parent decides what to do.
        signal.signal(number, signal.SIG_IGN)
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # Printed text must not mix with the answers.
    for module in preloaded:
        importlib.import_module(module)
    gc.freeze()  # Imported objects are permanent, so the garbage collector can skip them.
    _write_message(answers, _READY)
    while True:
        try:
            request = _read_message(requests)
        except EOFError:
            return
        try:
            _write_message(answers, _answer(request))
        except BrokenPipeError:  # The parent has ended.
            os._exit(1)


def _answer(request: bytes) -> bytes:
    try:
        function, args = pickle.loads(request)
        return pickle.dumps((True, function(*args)), protocol=5)
    except Exception as error:  # Any exception is sent to the parent, which raises it.
        note = "in a worker process:\n" + traceback.format_exc()
        error.add_note(note)
        try:
            return pickle.dumps((False, error), protocol=5)
        except Exception:  # Not all exceptions can be pickled.
            return pickle.dumps((False, RuntimeError(f"{error!r}\n{note}")), protocol=5)
