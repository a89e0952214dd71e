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
import itertools
import pickle
import queue
import threading
from concurrent.futures import Future
from typing import Any, Callable, Iterator

from beam_pipelines.errors import RunError
from beam_pipelines.parallel.light_process import LightProcess

# Of one that ends before it is ready: what keeps it from starting is not gone by trying again and again.
_MAX_STARTS = 3


class LightProcesses:
    """A fixed number of child processes that run module-level functions with picklable arguments.

    One that ends is replaced. The task that it was at fails, and is not tried again here: what ended it, a lack of memory mostly,
    would end the next one too, and a runner that tries a bundle again does so after a while, or elsewhere.
    """

    def __init__(self, num_processes: int) -> None:
        self._tasks: queue.SimpleQueue[tuple[Future, bytes] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._num_unfinished = 0
        self._failure: RunError | None = None  # that none can be started
        self._children = [LightProcess() for _ in range(num_processes)]
        for index in range(num_processes):
            threading.Thread(target=self._serve, args=(index,), daemon=True).start()

    def submit(self, function: Callable[..., Any], *args: Any) -> Future:
        """Runs `function(*args)` in one of the processes. What it raises, the future raises."""
        future: Future = Future()
        request = pickle.dumps((function, args), protocol=5)
        with self._lock:  # so that no task comes after `close` has put the end into the queue
            if self._closed:
                future.set_exception(_stopped())
            else:
                self._num_unfinished += 1
                future.add_done_callback(self._note_end)
                self._tasks.put((future, request))
        return future

    def is_idle(self) -> bool:
        """Whether no task is running and none waits, and the next one would be taken."""
        return not self._num_unfinished and self._failure is None

    def _note_end(self, unused: Future) -> None:
        with self._lock:
            self._num_unfinished -= 1

    def close(self) -> None:
        """Ends the processes; what is still running is lost."""
        with self._lock:  # from now on none is replaced
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
            except Exception as error:  # of whatever class the answer is
                succeeded, value = False, RuntimeError(f"a light process's answer cannot be unpickled: {error!r}")
            future.set_result(value) if succeeded else future.set_exception(value)
        self._children[index].ending()  # `close` has killed it; its files are this thread's to close

    def _ready_child(self, index: int) -> LightProcess:
        """The process of a thread, or where that has ended another one.

        Raises:
            RunError: The pool is closed, or no process comes to its start.
        """
        for _ in range(_MAX_STARTS):
            with self._lock:
                if self._closed or self._failure:
                    raise _stopped() if self._closed else RunError(str(self._failure))
                child = self._children[index]
                if child.is_over():
                    child = self._children[index] = LightProcess()
            if child.is_ready():
                return child
            ending = child.ending()
        with self._lock:
            if not self._closed:
                self._failure = RunError(f"a light process ended ({ending}) as it started, {_MAX_STARTS} times in a row")
            raise _stopped() if self._closed else RunError(str(self._failure))


def _stopped() -> RunError:
    return RunError("the light processes have been stopped")


def share(value: Any) -> bytes:
    """Pickles once what many tasks have in common; `shared` gives it back, unpickled once in each process.

    What is shared twice is two values, however equal: what an instance has looked up does not hold for the next one.
    """
    return pickle.dumps((next(_shares), value), protocol=5)


@functools.lru_cache(maxsize=2)
def shared(pickled: bytes) -> Any:
    """Returns the value that `share` pickled: the same object each time, in each process for the last two."""
    _, value = pickle.loads(pickled)
    return value


_shares = itertools.count()  # of this process, whose light processes are nobody else's


# Of memory that tasks in flight say they hold, all together; a task that says more runs alone.
MAX_HELD_BYTES = 256 << 20


class TaskWindow:
    """Tasks in flight on the light processes, a bounded number of them and of their memory; with no processes, tasks run on the spot."""

    def __init__(self, num_processes: int) -> None:
        self._pool = light_processes(num_processes) if num_processes else None
        self._limit = 2 * num_processes  # one at work and one ready, so that no process waits
        self._in_flight: collections.deque[tuple[Future, int]] = collections.deque()
        self._held_bytes = 0

    def run(self, function: Callable[..., Any], *args: Any, held_bytes: int = 0) -> Iterator[Any]:
        """Starts a task and yields the results of earlier ones that are ready, or must be for the window to move on.

        Args:
            function: The function to run, of a module and with picklable arguments.
            *args: The arguments of the function.
            held_bytes: The memory in bytes that the task takes, where that is much.
        """
        if self._pool is None:
            yield function(*args)
            return
        while self._in_flight and self._held_bytes + held_bytes > MAX_HELD_BYTES:
            yield self._take()
        self._in_flight.append((self._pool.submit(function, *args), held_bytes))
        self._held_bytes += held_bytes
        while self._in_flight and (len(self._in_flight) > self._limit or self._in_flight[0][0].done()):
            yield self._take()

    def drain(self) -> Iterator[Any]:
        """Waits for the tasks that are left, and yields their results."""
        while self._in_flight:
            yield self._take()

    def _take(self) -> Any:
        future, held_bytes = self._in_flight.popleft()
        self._held_bytes -= held_bytes
        return future.result()


_pools: dict[int, LightProcesses] = {}
_lock = threading.Lock()


def light_processes(num_processes: int) -> LightProcesses:
    """Returns the pool of that size: one a process, since every DoFn instance asks for it."""
    with _lock:
        if num_processes not in _pools:
            _pools[num_processes] = LightProcesses(num_processes)
        return _pools[num_processes]


def end_running_tasks() -> None:
    """Ends the pools of this process that are at work; what is running is lost. Those that are idle stay, for the next job."""
    with _lock:
        for num_processes in [number for number, pool in _pools.items() if not pool.is_idle()]:
            _pools.pop(num_processes).close()


@atexit.register
def close_light_processes() -> None:
    """Ends all pools of this process; what is still running is lost."""
    with _lock:
        while _pools:
            _pools.popitem()[1].close()
