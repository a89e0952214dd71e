"""Light processes: the plain part of the work on every core, without a second copy of Beam.

A Beam worker process costs seconds to start and 160 MB; one of these costs 0.2 s and 50 MB, because it imports neither
Beam nor TensorFlow. Threads would be lighter still, and lose on small images.

Why not `concurrent.futures` or loky: the first imports the user's `__main__` again in each child (an unguarded
script would run twice), and children of the second outlive a parent that is killed. Here a child lives exactly as long as its
standard input is open.
"""

import atexit
import collections
import functools
import importlib
import os
import pathlib
import pickle
import queue
import signal
import struct
import subprocess
import sys
import threading
import traceback
from concurrent.futures import Future
from typing import Any, BinaryIO, Callable, Iterator

from beam_pipelines.errors import RunError

_LENGTH = struct.Struct("<Q")

# This very package, which need not be installed; before what is, and behind the standard library.
_CHILD = """
import sys
first_of_site = next((i for i, path in enumerate(sys.path) if path.endswith("-packages")), len(sys.path))
sys.path.insert(first_of_site, sys.argv[1])
from beam_pipelines.light_processes import run_child
run_child(sys.argv[2:])
"""

# What a process imports when it starts, while its parent is still importing Beam.
_PRELOADED = ("beam_pipelines.read_images", "beam_pipelines.shard_writer")


class LightProcesses:
    """A fixed number of child processes that run module-level functions with picklable arguments."""

    def __init__(self, num_processes: int) -> None:
        self._tasks: queue.SimpleQueue[tuple[Future, bytes] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._children = [_start_child() for _ in range(num_processes)]
        for child in self._children:
            threading.Thread(target=self._serve, args=(child,), daemon=True).start()

    def submit(self, function: Callable[..., Any], *args: Any) -> Future:
        """Runs `function(*args)` in one of the processes. What it raises, the future raises."""
        future: Future = Future()
        request = pickle.dumps((function, args), protocol=5)
        with self._lock:  # so that no task comes after `close` has put the end into the queue
            if self._closed:
                future.set_exception(RunError("the light processes have been stopped"))
            else:
                self._tasks.put((future, request))
        return future

    def close(self) -> None:
        """Ends the processes; what is still running is lost."""
        with self._lock:
            self._closed = True
        for child in self._children:
            child.kill()
        for child in self._children:
            child.wait()
        for _ in self._children:
            self._tasks.put(None)

    def _serve(self, child: subprocess.Popen) -> None:
        while (task := self._tasks.get()) is not None:
            future, request = task
            try:
                _write_message(child.stdin, request)
                answer = _read_message(child.stdout)
            except (EOFError, OSError):
                code = child.wait()
                future.set_exception(RunError(f"a light process ended ({_ending(code)}) while it was at work"))
                continue
            try:
                succeeded, value = pickle.loads(answer)
            except Exception as error:  # of whatever class the answer is
                succeeded, value = False, RuntimeError(f"a light process's answer cannot be unpickled: {error!r}")
            future.set_result(value) if succeeded else future.set_exception(value)


def num_cores() -> int:
    """The cores that this process may use, which in a container are fewer than the machine's."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def share(value: Any) -> bytes:
    """What many tasks have in common, pickled once; `shared` gives it back, unpickled once in each process."""
    return pickle.dumps(value, protocol=5)


@functools.lru_cache(maxsize=2)
def shared(pickled: bytes) -> Any:
    return pickle.loads(pickled)


class TaskWindow:
    """Tasks in flight on the light processes, a bounded number of them; with no processes, tasks run on the spot."""

    def __init__(self, num_processes: int) -> None:
        self._pool = light_processes(num_processes) if num_processes else None
        self._limit = 2 * num_processes  # one at work and one ready, so that no process waits
        self._in_flight: collections.deque[Future] = collections.deque()

    def run(self, function: Callable[..., Any], *args: Any) -> Iterator[Any]:
        """Starts a task and yields the results of earlier ones that are ready, or must be for the window to move on."""
        if self._pool is None:
            yield function(*args)
            return
        self._in_flight.append(self._pool.submit(function, *args))
        while self._in_flight and (len(self._in_flight) > self._limit or self._in_flight[0].done()):
            yield self._in_flight.popleft().result()

    def drain(self) -> Iterator[Any]:
        """Waits for the rest."""
        while self._in_flight:
            yield self._in_flight.popleft().result()


_pools: dict[int, LightProcesses] = {}
_lock = threading.Lock()


def light_processes(num_processes: int) -> LightProcesses:
    """The pool of that size: one a process, since every DoFn instance asks for it."""
    with _lock:
        if num_processes not in _pools:
            _pools[num_processes] = LightProcesses(num_processes)
        return _pools[num_processes]


@atexit.register
def close_light_processes() -> None:
    with _lock:
        while _pools:
            _pools.popitem()[1].close()


def _start_child() -> subprocess.Popen:
    package_parent = str(pathlib.Path(__file__).resolve().parent.parent)
    return subprocess.Popen(
        [sys.executable, "-P", "-c", _CHILD, package_parent, *_PRELOADED],  # -P: nothing from the user's folder
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def _ending(code: int) -> str:
    if code == -signal.SIGKILL:
        return "killed: was there memory left?"
    return f"signal {-code}" if code < 0 else f"exit code {code}"


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
    """Reads tasks from standard input until it ends; answers (succeeded, value or exception)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the parent decides
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a stray print must not reach the answers
    for module in preloaded:
        importlib.import_module(module)
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
