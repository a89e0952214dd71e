"""One light process: how its parent starts and asks it, and what it does."""

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

# This very package, which need not be installed; before what is, and behind the standard library.
_CHILD = """
import sys
first_of_site = next((i for i, path in enumerate(sys.path) if path.endswith("-packages")), len(sys.path))
sys.path.insert(first_of_site, sys.argv[1])
from beam_pipelines.parallel.light_process import run_child
run_child(sys.argv[2:])
"""

_READY = b"ready"

# Of threads that read ahead each would else get a heap of its own, which never shrinks; arrays of a few hundred kilobytes would be mapped
# and unmapped for each block of images, page by page, which is a fifth of what hashing tiny ones takes; and the threads of NumPy's linear
# algebra, of which nothing is asked, spin while they start: a third of a process's start.
_ENVIRONMENT = {
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_MMAP_THRESHOLD_": str(4 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(8 << 20),
    "OPENBLAS_NUM_THREADS": "1",
}

# What a process imports when it starts, while its parent is still importing Beam.
_PRELOADED = ("beam_pipelines.sources.part_listing", "beam_pipelines.shards.shard_writer")


class LightProcess:
    """A light process, seen from its parent; one thread asks it."""

    def __init__(self) -> None:
        package_parent = str(pathlib.Path(__file__).resolve().parents[2])
        command = [sys.executable, "-P", "-c", _CHILD, package_parent, *_PRELOADED]  # -P: nothing from the user's folder
        try:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=_ENVIRONMENT | os.environ)
        except OSError as error:
            raise RunError(f"a light process could not be started: {error.strerror or error}") from error
        self._is_ready = self._is_over = False

    def is_ready(self) -> bool:
        """Waits until the process has imported what it needs; False where it ended before a task."""
        with contextlib.suppress(EOFError, OSError):
            self._is_ready = self._is_ready or _read_message(self._process.stdout) == _READY
        return self._is_ready and not self.has_ended()

    def is_over(self) -> bool:
        """Whether another process must take its place: it is known to have ended, or has while it waited."""
        if self._is_ready and not self._is_over and self.has_ended():
            self.ending()
        return self._is_over

    def ask(self, request: bytes) -> bytes:
        """Sends a task, and returns the answer.

        Args:
            request: The pickled function and its arguments.

        Returns:
            The pickled answer: (succeeded, value or exception).

        Raises:
            RunError: The process ended meanwhile.
        """
        try:
            _write_message(self._process.stdin, request)
            return _read_message(self._process.stdout)
        except (EOFError, OSError):
            raise RunError(f"a light process ended ({self.ending()}) while it was at work") from None

    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    def ending(self) -> str:
        """How the process ended, once it has; no more is to be asked of it."""
        code, self._is_over = self._process.wait(), True
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):  # what it has not taken is lost
                stream.close()
        if code == -signal.SIGKILL:
            return "killed: was there memory left?"
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def kill(self) -> None:
        """Kills the process, and waits for its end."""
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
    """Runs a light process: says that it is ready, and reads tasks from standard input until that ends.

    It answers (succeeded, value or exception) to each.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # Ctrl-C, or its end, reaches the whole terminal; the parent decides
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a stray print must not reach the answers
    for module in preloaded:
        importlib.import_module(module)
    gc.freeze()  # what was imported stays, and need not be looked through again
    _write_message(answers, _READY)
    while True:
        try:
            request = _read_message(requests)
        except EOFError:
            return
        try:
            _write_message(answers, _answer(request))
        except BrokenPipeError:  # the parent is gone
            os._exit(1)


def _answer(request: bytes) -> bytes:
    try:
        function, args = pickle.loads(request)
        return pickle.dumps((True, function(*args)), protocol=5)
    except Exception as error:  # whatever it is, it crosses to the parent, which raises it
        note = "in a light process:\n" + traceback.format_exc()
        error.add_note(note)
        try:
            return pickle.dumps((False, error), protocol=5)
        except Exception:  # not everything that can be raised can be pickled
            return pickle.dumps((False, RuntimeError(f"{error!r}\n{note}")), protocol=5)
