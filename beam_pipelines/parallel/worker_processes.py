"""A pool of lightweight worker processes that run plain Python functions on all cores.

A Beam worker process takes several seconds to start and needs 160 MB of memory. A process of this pool starts in 0.2 s
and needs 50 MB, because it imports neither Beam nor TensorFlow. Threads would need less memory, but are slower for
small images.

`concurrent.futures` is not used, because its child processes import the user's script. loky is not used, because its
child processes survive if their parent is killed. When the parent of this pool ends, the standard input of its child
processes is closed, so that they also end.
"""

import atexit
import collections
import functools
import itertools
import pickle
import queue
import threading
from concurrent.futures import Future
from typing import Any, Callable, Iterator

from beam_pipelines.errors import RunError
from beam_pipelines.parallel.worker_process import WorkerProcess
from beam_pipelines.storage.object_stores.store_options import call_with_options, current_options

# The number of attempts to start a process. The cause of a failure rarely disappears.
_MAX_STARTS = 3


class WorkerProcesses:
    """A pool with a fixed number of child processes, for module-level functions with picklable arguments.

    A process that ends is replaced. If a process ends unexpectedly, its task fails and is not retried. The usual cause
    is a lack of memory, so a retry would also fail.
    """

    def __init__(self, num_processes: int) -> None:
        self._tasks: queue.SimpleQueue[tuple[Future, bytes] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._num_unfinished = 0
        self._failure: RunError | None = None  # Set if no process can be started.
        self._children = [WorkerProcess() for _ in range(num_processes)]
        for index in range(num_processes):
            threading.Thread(target=self._serve, args=(index,), daemon=True).start()

    def submit(self, function: Callable[..., Any], *args: Any) -> Future:
        """Runs `function(*args)` in a process of the pool and returns a future with its result or exception."""
        future: Future = Future()
        request = pickle.dumps((call_with_options, (current_options(), function, *args)), protocol=5)
        with self._lock:  # No task may be queued after the end marker of `close`.
            if self._closed:
                future.set_exception(_stopped())
            else:
                self._num_unfinished += 1
                future.add_done_callback(self._note_end)
                self._tasks.put((future, request))
        return future

    def is_idle(self) -> bool:
        """Returns whether the pool has no unfinished tasks and no failure."""
        return not self._num_unfinished and self._failure is None

    def _note_end(self, unused: Future) -> None:
        with self._lock:
            self._num_unfinished -= 1

    def close(self) -> None:
        """Ends all processes. Running tasks are lost."""
        with self._lock:  # From now on, processes are not replaced.
            self._closed = True
        for child in self._children:
            child.kill()
        for _ in self._children:
            self._tasks.put(None)

    def _serve(self, index: int) -> None:
        while (task := self._tasks.get()) is not None:
            future, request = task
            try:
                answer = self._ready_child(index).ask(request)
            except RunError as error:
                future.set_exception(error)
                continue
            try:
                succeeded, value = pickle.loads(answer)
            except Exception as error:  # Unpickling an answer can raise any exception.
                succeeded, value = False, RuntimeError(f"the result of a worker process cannot be unpickled: {error!r}")
            future.set_result(value) if succeeded else future.set_exception(value)
        self._children[index].ending()  # `close` has killed the process. This thread must close its pipes.

    def _ready_child(self, index: int) -> WorkerProcess:
        """Returns the process to which the current thread sends tasks, after replacing it if it has ended.

        Raises:
            RunError: The pool is closed, or no process can be started.
        """
        for _ in range(_MAX_STARTS):
            with self._lock:
                if self._closed or self._failure:
                    raise _stopped() if self._closed else RunError(str(self._failure))
                child = self._children[index]
                if child.is_over():
                    child = self._children[index] = WorkerProcess()
            if child.is_ready():
                return child
            ending = child.ending()
        with self._lock:
            if not self._closed:
                self._failure = RunError(
                    f"a worker process ended ({ending}) at its start, {_MAX_STARTS} times in a row"
                )
            raise _stopped() if self._closed else RunError(str(self._failure))


def _stopped() -> RunError:
    return RunError("the worker processes have been stopped")


def share(value: Any) -> bytes:
    """Pickles a value that many tasks share. Each process unpickles it once, with `shared`."""
    return pickle.dumps((next(_shares), value), protocol=5)


@functools.lru_cache(maxsize=2)
def shared(pickled: bytes) -> Any:
    """Returns a value that was pickled by `share`. Each process caches the last two values."""
    _, value = pickle.loads(pickled)
    return value


_shares = itertools.count()  # One counter per process is enough, because each process has its own pool.


# Limit on the total memory of running tasks. A task that needs more memory runs alone.
MAX_TASK_BYTES = 256 << 20


class TaskWindow:
    """Limits the number and the total memory of running tasks. If there are no workers, tasks run in this process."""

    def __init__(self, num_processes: int) -> None:
        self._pool = worker_processes(num_processes) if num_processes else None
        self._limit = 2 * num_processes  # One running and one queued task for each process, so that no process is idle.
        self._in_flight: collections.deque[tuple[Future, int]] = collections.deque()
        self._reserved_bytes = 0

    def run(self, function: Callable[..., Any], *args: Any, memory_bytes: int = 0) -> Iterator[Any]:
        """Starts a task and yields the results of finished tasks. Waits if too many tasks are running.

        Args:
            function: A module-level function with picklable arguments.
            *args: The arguments of the function.
            memory_bytes: The memory that the task needs, in bytes. Small tasks can pass 0.
        """
        if self._pool is None:
            yield function(*args)
            return
        while self._in_flight and self._reserved_bytes + memory_bytes > MAX_TASK_BYTES:
            yield self._take()
        self._in_flight.append((self._pool.submit(function, *args), memory_bytes))
        self._reserved_bytes += memory_bytes
        while self._in_flight and (len(self._in_flight) > self._limit or self._in_flight[0][0].done()):
            yield self._take()

    def drain(self) -> Iterator[Any]:
        """Waits for all remaining tasks and yields their results."""
        while self._in_flight:
            yield self._take()

    def _take(self) -> Any:
        future, memory_bytes = self._in_flight.popleft()
        self._reserved_bytes -= memory_bytes
        return future.result()


_pools: dict[int, WorkerProcesses] = {}
_lock = threading.Lock()


def worker_processes(num_processes: int) -> WorkerProcesses:
    """Returns the pool with the given number of processes. All `DoFn`s in this process share the pool."""
    with _lock:
        if num_processes not in _pools:
            _pools[num_processes] = WorkerProcesses(num_processes)
        return _pools[num_processes]


def end_running_tasks() -> None:
    """Closes the busy pools of this process. Running tasks are lost. Idle pools are kept for the next job."""
    with _lock:
        for num_processes in [number for number, pool in _pools.items() if not pool.is_idle()]:
            _pools.pop(num_processes).close()


@atexit.register
def close_worker_processes() -> None:
    """Closes all pools of this process. Running tasks are lost."""
    with _lock:
        while _pools:
            _pools.popitem()[1].close()
