"""Tests `TaskWindow`, and the results, the failures and the shutdown of worker processes."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from typing import Any, Callable, Iterator

import pytest

import beam_pipelines
from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.errors import RunError, UserError
from beam_pipelines.parallel import worker_process, worker_processes
from beam_pipelines.parallel.worker_processes import WorkerProcesses, TaskWindow, share, shared
from beam_pipelines.shards.measure import measure_batch
from beam_pipelines.shards.shard_writer import write_part
from beam_pipelines.shards.written_part import ShardPart
from made_images import jpeg, write_files
from made_plan import PlannedInput

pytestmark = pytest.mark.xdist_group("waiting")

TIMEOUT = 240  # seconds, for calls that take milliseconds; a test that reaches this limit hangs

# A task is any importable function. `eval` queries the state of a child process.
CHILD_MODULES = "sorted(__import__('sys').modules)"

TASKS = '''
class NotUnpicklable(Exception):
    """Can be pickled but not unpickled: its constructor needs two arguments, and passes one on."""

    def __init__(self, path, reason):
        super().__init__(f"{path}: {reason}")


class Unpicklable(Exception):
    def __init__(self):
        super().__init__("it holds a lock")
        self.lock = __import__("threading").Lock()


def raise_not_unpicklable():
    raise NotUnpicklable("cat/1.jpg", "no such luck")


def return_not_unpicklable():
    return NotUnpicklable("cat/1.jpg", "no such luck")


def raise_unpicklable():
    raise Unpicklable


def raise_package_error(name):
    from beam_pipelines import errors

    raise getattr(errors, name)(f"a {name} from a child")
'''


@pytest.fixture
def tasks(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Yields a new module with the code in `TASKS`, which this process and future child processes can import."""
    write_files(tmp_path / "modules", {"some_tasks.py": TASKS.encode()})
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(tmp_path / "modules")
    import some_tasks

    yield some_tasks
    del sys.modules["some_tasks"]


@pytest.fixture
def start() -> Iterator[Callable[[int], WorkerProcesses]]:
    """Yields a function that starts a process pool. All pools are closed after the test."""
    pools: list[WorkerProcesses] = []

    def start(num_processes: int) -> WorkerProcesses:
        pools.append(WorkerProcesses(num_processes))
        return pools[-1]

    yield start
    for pool in pools:
        pool.close()


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerProcesses]:
    """Yields a pool of two processes for tests that leave these processes running."""
    pool = WorkerProcesses(2)
    yield pool
    pool.close()


def ask(pool: WorkerProcesses, function: Callable[..., Any], *args: Any) -> Any:
    return pool.submit(function, *args).result(TIMEOUT)


def error_of(future: Future) -> BaseException | None:
    return future.exception(TIMEOUT)


# Results


def test_result_is_returned_unchanged(pool):
    cases = [("a number", 7), ("nothing", None), ("bytes", bytes(range(256))), ("text", "é\n\0"), ("3 MB", b"x" * 3_000_000)]
    for case, value in cases:
        assert ask(pool, eval, "value", {"value": value}) == value, case


def test_tasks_run_on_all_processes_and_return_their_own_result(pool, tmp_path):
    os.mkfifo(tmp_path / "pipe")  # the first two tasks wait for each other, so that they run in two processes
    meet = {0: f"open({str(tmp_path / 'pipe')!r}, 'rb').close()", 1: f"open({str(tmp_path / 'pipe')!r}, 'wb').close()"}
    task = "(index, __import__('os').getpid(), eval(meet))"
    futures = [pool.submit(eval, task, {"index": index, "meet": meet.get(index, "None")}) for index in range(200)]
    answers = [future.result(TIMEOUT) for future in futures]
    assert [index for index, *_ in answers] == list(range(200))
    process_ids = {process_id for _, process_id, _ in answers}
    assert len(process_ids) == 2
    assert os.getpid() not in process_ids


def test_output_of_tasks_is_redirected_to_stderr(start, capfd):
    pool = start(1)
    assert ask(pool, print, "a stray print") is None
    assert ask(pool, os.write, 1, b"a stray write") == 13
    assert ask(pool, os.system, "echo a stray program") == 0
    assert ask(pool, eval, "6 * 7") == 42
    assert ask(pool, eval, "__import__('sys').stdout.flush()") is None
    captured = capfd.readouterr()
    for text in ("a stray print", "a stray write", "a stray program"):
        assert text in captured.err, text
    assert captured.out == ""


def test_shared_value_is_unpickled_once():
    value = {"labels": ["cat", "dog"]}
    pickled = share(value)
    assert shared(pickled) == value
    assert shared(pickled) is shared(bytes(pickled))
    assert shared(share([1])) == [1]


# Failures


def test_exception_keeps_its_type_and_traceback(start, tasks):
    pool = start(1)
    cases = [
        ("an error of the function", (eval, "1 / 0"), ZeroDivisionError, "division by zero"),
        ("a missing file", (os.stat, "/no/such/file"), FileNotFoundError, "No such file"),
        ("a UserError", (tasks.raise_package_error, "UserError"), UserError, "a UserError from a child"),
        ("a RunError", (tasks.raise_package_error, "RunError"), RunError, "a RunError from a child"),
        ("a result that cannot be pickled", (eval, "lambda: 0"), Exception, "pickle"),
        ("an unknown name", (eval, "nothing_of_that_name"), NameError, "nothing_of_that_name"),
    ]
    for case, call, error_type, message in cases:
        error = error_of(pool.submit(*call))
        assert isinstance(error, error_type), (case, error)
        assert message in str(error), case
        if error_type is not Exception:
            assert any("Traceback" in note and error_type.__name__ in note for note in error.__notes__), case
        assert ask(pool, eval, "1 + 1") == 2, f"{case}: the process still works"


def test_unpicklable_exception_or_result_fails_the_task(start, tasks):
    pool = start(1)
    cases = [
        ("an exception that cannot be pickled", tasks.raise_unpicklable, "it holds a lock"),
        ("an exception that cannot be unpickled", tasks.raise_not_unpicklable, "NotUnpicklable"),
        ("a result that cannot be unpickled", tasks.return_not_unpicklable, "NotUnpicklable"),
    ]
    for case, function, message in cases:
        error = pool.submit(function).exception(TIMEOUT)
        assert message in "\n".join([repr(error), *getattr(error, "__notes__", [])]), case
        assert ask(pool, eval, "1 + 1") == 2, f"{case}: the process still works"


def test_killed_child_fails_its_task(start):
    cases = [
        ("killed", (signal.raise_signal, signal.SIGKILL), "killed"),
        ("crashed", (signal.raise_signal, signal.SIGSEGV), "signal 11"),
        ("ended", (os._exit, 3), "exit code 3"),
    ]
    for case, call, message in cases:
        error = error_of(start(1).submit(*call))
        assert isinstance(error, RunError), case
        for part in ("worker process", message):
            assert part in str(error), case


def test_dead_child_is_replaced_and_later_tasks_succeed(start):
    pool = start(1)
    first = ask(pool, os.getpid)
    doomed = pool.submit(os._exit, 1)
    later = [pool.submit(eval, str(index)) for index in range(20)]
    assert isinstance(error_of(doomed), RunError)
    assert [future.result(TIMEOUT) for future in later] == list(range(20))
    second = ask(pool, os.getpid)
    assert second != first
    doomed = pool.submit(signal.raise_signal, signal.SIGKILL)
    assert "killed" in str(error_of(doomed)) and ask(pool, os.getpid) not in (first, second)


def test_child_that_died_while_idle_is_replaced(start):
    pool = start(2)
    for child in pool._children:
        assert child.is_ready()
        child.kill()
    for arguments in (1, b"x" * 1_000_000):
        assert [ask(pool, eval, "value", {"value": arguments}) for _ in range(5)] == [arguments] * 5


def test_children_that_cannot_start_fail_after_three_attempts(start, monkeypatch, tmp_path):
    log = tmp_path / "starts"
    (tmp_path / "python").write_text(f"#!/bin/sh\necho >> {log}\nexit 7\n")
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setattr(worker_process.sys, "executable", str(tmp_path / "python"))
    pool = start(1)
    for _ in range(30):
        assert re.search("exit code 7.* 3 times", str(error_of(pool.submit(eval, "1"))))
    assert len(log.read_text().splitlines()) == 3


def test_closing_fails_running_and_waiting_tasks(start):
    pool = start(1)
    futures = [pool.submit(time.sleep, 3600) for _ in range(3)]
    pool.close()
    for future in futures:
        assert isinstance(error_of(future), RunError)
    assert all(child.has_ended() for child in pool._children)


def test_end_running_tasks_keeps_idle_pools(monkeypatch):
    monkeypatch.setattr(worker_processes, "_pools", {})
    idle, at_work = (worker_processes.worker_processes(number) for number in (1, 2))
    try:
        assert ask(idle, eval, "1") == 1
        deadline = time.monotonic() + TIMEOUT
        while not idle.is_idle():  # the result arrives before the pool is marked as idle
            assert time.monotonic() < deadline
        future = at_work.submit(time.sleep, 3600)
        worker_processes.end_running_tasks()
        assert isinstance(error_of(future), RunError) and ask(idle, eval, "1") == 1
        assert worker_processes.worker_processes(1) is idle and worker_processes.worker_processes(2) is not at_work
    finally:
        worker_processes.close_worker_processes()


def test_closed_pool_closes_its_files(start):
    pool = start(2)
    assert [ask(pool, eval, "1") for _ in range(4)] == [1] * 4
    files = [file for child in pool._children for file in (child._process.stdin, child._process.stdout)]
    pool.close()
    deadline = time.monotonic() + TIMEOUT
    while not all(file.closed for file in files):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_submit_to_a_closed_pool_fails(start):
    # The runner can still submit tasks after Ctrl-C.
    pool = start(2)
    pool.close()
    time.sleep(0.2)  # until the thread of the pool has ended
    with pytest.raises(RunError, match="worker process"):
        pool.submit(eval, "1").result(TIMEOUT)


# Imports and signals


def test_child_does_not_import_beam_and_tensorflow(start, tmp_path):
    run, pool = PlannedInput(tmp_path, {"cat/1.jpg": jpeg(1), "cat/bad.jpg": b"<html>"}), start(1)
    context, shard = share(run.context), run.shards[0]
    measured = ask(pool, measure_batch, context, (pathlib.Path(run.made.run.plan_directory) / str(shard.address)).read_bytes())
    assert sorted(map(type, measured), key=str) == [DeadLetter, int]
    part = ask(pool, write_part, context, shard, ShardPart())
    assert (len(part.index), [letter.path for letter in part.dead_letters]) == (1, ["cat/bad.jpg"])
    modules = ask(pool, eval, CHILD_MODULES)
    assert "beam_pipelines.shards.shard_writer" in modules and "beam_pipelines.shards.input_reader" in modules
    heavy = ("apache_beam", "tensorflow", "tensorflow_metadata", "grpc", "rich", "pytest")
    assert [name for name in modules if name.split(".")[0] in heavy] == []


def test_child_does_not_import_the_main_module(tmp_path):
    # `multiprocessing` would run a script without `if __name__ == "__main__"` again in each child.
    script = write_files(tmp_path, {"script.py": b"import os\nprint('main')\n" + CALL_ONE}) / "script.py"
    actual = subprocess.run([sys.executable, script], env=child_env(), capture_output=True, text=True, timeout=TIMEOUT)
    assert (actual.stdout.split(), actual.stderr) == (["main", "42"], "")


def test_child_does_not_import_from_the_current_directory(start, tmp_path, monkeypatch):
    # The user can run `recordmill` in a directory with a queue.py or a struct.py.
    monkeypatch.chdir(write_files(tmp_path, {"queue.py": b"1 / 0", "zstandard.py": b"1 / 0"}))
    pool = start(1)
    assert ask(pool, eval, "6 * 7") == 42
    assert ask(pool, eval, "len(__import__('zstandard').compress(b'x'))") > 0


def test_child_ignores_sigint(start):
    pool = start(1)
    ask(pool, signal.raise_signal, signal.SIGINT)
    assert ask(pool, eval, "6 * 7") == 42


# Lifetime

CALL_ONE = b"""
from beam_pipelines.parallel.worker_processes import worker_processes
print(worker_processes(2).submit(eval, "6 * 7").result())
"""

PARENT = """
import sys, time
from beam_pipelines.parallel.worker_processes import worker_processes
pool = worker_processes(2)
tasks = [pool.submit(eval, "__import__('time').sleep(0.1)") for _ in range(4)]
for task in tasks:
    task.result()
if sys.argv[1] != "idle":
    pool.submit(time.sleep, 1)
    pool.submit(time.sleep, 1)
    time.sleep(0.3)
print("ready", flush=True)
time.sleep(3600)
"""


def child_env() -> dict[str, str]:
    """Returns environment variables that let a new Python process import the package."""
    return {**os.environ, "PYTHONPATH": str(pathlib.Path(beam_pipelines.__file__).parent.parent)}


@pytest.mark.slow
@pytest.mark.parametrize("state", ["idle", "at work"])
@pytest.mark.parametrize("signal_name", ["SIGKILL", "SIGTERM"])
def test_children_end_when_their_parent_is_killed(state, signal_name):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, state],
        env=child_env(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout.readline() == "ready\n"
    parent.send_signal(signal.Signals[signal_name])
    # The children inherit standard error of their parent, so that it is closed only after the last child has ended.
    _, errors = parent.communicate(timeout=TIMEOUT)
    assert errors == ""


@pytest.mark.slow
def test_children_end_quietly_with_a_parent_that_does_not_close_them():
    scripts = [
        ("idle", CALL_ONE, "42\n"),
        ("at work", CALL_ONE + b"import time; worker_processes(2).submit(time.sleep, 3600); time.sleep(0.2)", "42\n"),
        ("ended", CALL_ONE + b"import os; print('exit code 3' in str(worker_processes(2).submit(os._exit, 3).exception()))", "42\nTrue\n"),
    ]
    for case, script, printed in scripts:
        command = [sys.executable, "-c", script.decode()]
        actual = subprocess.run(command, env=child_env(), capture_output=True, text=True, timeout=TIMEOUT)
        assert (actual.returncode, actual.stdout, actual.stderr) == (0, printed, ""), case


def test_pool_is_shared_by_size_until_it_is_closed():
    try:
        first = worker_processes.worker_processes(1)
        assert worker_processes.worker_processes(1) is first
        assert ask(first, eval, "1 + 1") == 2
        worker_processes.close_worker_processes()
        assert all(child.has_ended() for child in first._children)
        again = worker_processes.worker_processes(1)
        assert again is not first
        assert ask(again, eval, "1 + 1") == 2
    finally:
        worker_processes.close_worker_processes()


# TaskWindow


class ManualPool:
    """A fake process pool that runs no code: the test sets the results of the tasks."""

    def __init__(self) -> None:
        self.futures: dict[Any, Future] = {}

    def submit(self, function: Callable[..., Any], *args: Any) -> Future:
        self.futures[args[0]] = Future()
        return self.futures[args[0]]

    def num_in_flight(self) -> int:
        return sum(not future.done() for future in list(self.futures.values()))


@pytest.fixture
def manual_pool(monkeypatch: pytest.MonkeyPatch) -> ManualPool:
    manual = ManualPool()
    monkeypatch.setattr(worker_processes, "worker_processes", lambda num_processes: manual)
    return manual


def test_window_yields_results_in_order(manual_pool):
    window = TaskWindow(2)
    assert [list(window.run(str, index)) for index in range(3)] == [[], [], []]
    manual_pool.futures[1].set_result("one")
    assert list(window.run(str, 3)) == [], "the first task is not done yet"
    manual_pool.futures[0].set_result("zero")
    assert list(window.run(str, 4)) == ["zero", "one"]
    for index in (4, 3, 2):
        manual_pool.futures[index].set_result(index)
    assert list(window.drain()) == [2, 3, 4]
    assert list(window.drain()) == []


def test_window_bounds_the_tasks_in_flight(manual_pool):
    window = TaskWindow(2)
    yielded: list[int] = []

    def send() -> None:
        for index in range(12):
            yielded.extend(window.run(str, index))
        yielded.extend(window.drain())

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    for index in range(12):
        # one running and one ready task per process, and one that waits to be submitted
        expected = min(5, 12 - index)
        deadline = time.monotonic() + TIMEOUT
        while manual_pool.num_in_flight() < expected and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.005)  # long enough to submit too many tasks
        assert manual_pool.num_in_flight() == expected, index
        manual_pool.futures[index].set_result(index)
    thread.join(TIMEOUT)
    assert yielded == list(range(12))


def test_tasks_with_large_memory_run_one_after_another(manual_pool):
    window, half = TaskWindow(4), worker_processes.MAX_TASK_BYTES // 2
    for index, memory_bytes in enumerate([half, half, 0]):
        assert list(window.run(str, index, memory_bytes=memory_bytes)) == []
    for large, first in enumerate(([0, 1, 2], [3]), 3):  # each task is larger than the limit and runs alone
        actual = window.run(str, large, memory_bytes=3 * half)
        for index in first:
            assert large not in manual_pool.futures
            manual_pool.futures[index].set_result(index)
            assert next(actual) == index
        assert list(actual) == []
    manual_pool.futures[4].set_result(4)
    assert list(window.drain()) == [4]


def test_window_raises_errors_in_order(manual_pool):
    window = TaskWindow(1)
    list(window.run(str, 0)), list(window.run(str, 1))
    manual_pool.futures[1].set_exception(RunError("the second"))
    manual_pool.futures[0].set_result("the first")
    results = window.drain()
    assert next(results) == "the first"
    with pytest.raises(RunError, match="the second"):
        next(results)


def test_window_keeps_the_order_of_real_processes():
    try:
        window = TaskWindow(2)
        results: list[tuple[int, None]] = []
        for index in range(30):
            results += window.run(eval, f"({index}, __import__('time').sleep({index % 3} / 1000))")
        results += window.drain()
    finally:
        worker_processes.close_worker_processes()
    assert [index for index, _ in results] == list(range(30))


def test_task_runs_in_process_without_worker_processes():
    window = TaskWindow(0)
    assert list(window.run(os.getpid)) == [os.getpid()]
    with pytest.raises(ZeroDivisionError):
        list(window.run(eval, "1 / 0"))
    assert list(window.drain()) == []
