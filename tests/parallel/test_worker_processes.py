"""Light processes: answers arrive whole, failures arrive as failures, nothing hangs, and nobody outlives the parent."""

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
from beam_pipelines.shards.shard_writer import ShardPart, write_part
from made_images import jpeg, write_files
from made_plan import PlannedInput

pytestmark = pytest.mark.xdist_group("waiting")

TIMEOUT = 240  # seconds, for what takes milliseconds: a test that runs into it has found something that hangs

# A task is any importable function. `eval` is one: it asks a child what it knows.
CHILD_MODULES = "sorted(__import__('sys').modules)"

TASKS = '''
class Picky(Exception):
    """Pickles, and does not unpickle: its constructor wants two arguments and hands one on."""

    def __init__(self, path, reason):
        super().__init__(f"{path}: {reason}")


class Unpicklable(Exception):
    def __init__(self):
        super().__init__("it holds a lock")
        self.lock = __import__("threading").Lock()


def raise_picky():
    raise Picky("cat/1.jpg", "no such luck")


def return_picky():
    return Picky("cat/1.jpg", "no such luck")


def raise_unpicklable():
    raise Unpicklable


def raise_ours(name):
    from beam_pipelines import errors

    raise getattr(errors, name)(f"a {name} from a child")
'''


@pytest.fixture
def tasks(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module `TASKS`, for this process and for the children that start from now on."""
    write_files(tmp_path / "modules", {"some_tasks.py": TASKS.encode()})
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(tmp_path / "modules")
    import some_tasks

    yield some_tasks
    del sys.modules["some_tasks"]


@pytest.fixture
def start() -> Iterator[Callable[[int], WorkerProcesses]]:
    """Starts pools, and closes them after the test."""
    pools: list[WorkerProcesses] = []

    def start(num_processes: int) -> WorkerProcesses:
        pools.append(WorkerProcesses(num_processes))
        return pools[-1]

    yield start
    for pool in pools:
        pool.close()


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerProcesses]:
    """Two processes that no test harms."""
    pool = WorkerProcesses(2)
    yield pool
    pool.close()


def ask(pool: WorkerProcesses, function: Callable[..., Any], *args: Any) -> Any:
    return pool.submit(function, *args).result(TIMEOUT)


def error_of(future: Future) -> BaseException | None:
    return future.exception(TIMEOUT)


# Answers


def test_results_are_those_of_the_function(pool):
    cases = [("a number", 7), ("nothing", None), ("bytes", bytes(range(256))), ("text", "é\n\0"), ("3 MB", b"x" * 3_000_000)]
    for case, value in cases:
        assert ask(pool, eval, "value", {"value": value}) == value, case


def test_many_tasks_are_each_answered_by_their_own_result_on_every_process(pool, tmp_path):
    os.mkfifo(tmp_path / "pipe")  # whoever opens one end waits for the other, so the first two tasks are on two processes
    meet = {0: f"open({str(tmp_path / 'pipe')!r}, 'rb').close()", 1: f"open({str(tmp_path / 'pipe')!r}, 'wb').close()"}
    task = "(index, __import__('os').getpid(), eval(meet))"
    futures = [pool.submit(eval, task, {"index": index, "meet": meet.get(index, "None")}) for index in range(200)]
    answers = [future.result(TIMEOUT) for future in futures]
    assert [index for index, *_ in answers] == list(range(200))
    process_ids = {process_id for _, process_id, _ in answers}
    assert len(process_ids) == 2
    assert os.getpid() not in process_ids


def test_what_a_task_prints_does_not_reach_the_answers(start, capfd):
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


def test_what_tasks_have_in_common_is_unpickled_once():
    value = {"labels": ["cat", "dog"]}
    pickled = share(value)
    assert shared(pickled) == value
    assert shared(pickled) is shared(bytes(pickled))
    assert shared(share([1])) == [1]


# Failures


def test_what_a_task_raises_arrives_with_its_type_and_its_traceback(start, tasks):
    pool = start(1)
    cases = [
        ("a bug", (eval, "1 / 0"), ZeroDivisionError, "division by zero"),
        ("a missing file", (os.stat, "/no/such/file"), FileNotFoundError, "No such file"),
        ("the user's error", (tasks.raise_ours, "UserError"), UserError, "a UserError from a child"),
        ("a run's error", (tasks.raise_ours, "RunError"), RunError, "a RunError from a child"),
        ("a result that is no message", (eval, "lambda: 0"), Exception, "pickle"),
        ("a function that the child lacks", (eval, "nothing_of_that_name"), NameError, "nothing_of_that_name"),
    ]
    for case, call, error_type, message in cases:
        error = error_of(pool.submit(*call))
        assert isinstance(error, error_type), (case, error)
        assert message in str(error), case
        if error_type is not Exception:
            assert any("Traceback" in note and error_type.__name__ in note for note in error.__notes__), case
        assert ask(pool, eval, "1 + 1") == 2, f"{case}: the process works on"


def test_what_cannot_cross_to_the_parent_fails_its_task_and_hangs_nothing(start, tasks):
    pool = start(1)
    cases = [
        ("an exception that cannot be pickled", tasks.raise_unpicklable, "it holds a lock"),
        ("an exception that cannot be unpickled", tasks.raise_picky, "Picky"),
        ("a result that cannot be unpickled", tasks.return_picky, "Picky"),
    ]
    for case, function, message in cases:
        error = pool.submit(function).exception(TIMEOUT)
        assert message in "\n".join([repr(error), *getattr(error, "__notes__", [])]), case
        assert ask(pool, eval, "1 + 1") == 2, f"{case}: the process works on"


def test_a_killed_child_fails_its_task_clearly(start):
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


def test_a_child_that_died_is_replaced_and_the_tasks_behind_it_succeed(start):
    pool = start(1)
    first = ask(pool, os.getpid)
    doomed = pool.submit(os._exit, 1)
    later = [pool.submit(eval, str(index)) for index in range(20)]
    assert isinstance(error_of(doomed), RunError)
    assert [future.result(TIMEOUT) for future in later] == list(range(20))
    second = ask(pool, os.getpid)
    assert second != first
    doomed = pool.submit(signal.raise_signal, signal.SIGKILL)
    assert "killed" in str(error_of(doomed)) and ask(pool, os.getpid) not in (first, second), "each time"


def test_children_that_died_while_they_waited_are_replaced_before_the_next_task(start):
    pool = start(2)
    for child in pool._children:
        assert child.is_ready()
        child.kill()
    for arguments in (1, b"x" * 1_000_000):
        assert [ask(pool, eval, "value", {"value": arguments}) for _ in range(5)] == [arguments] * 5


def test_children_that_cannot_start_are_one_clear_error_and_no_loop(start, monkeypatch, tmp_path):
    log = tmp_path / "starts"
    (tmp_path / "python").write_text(f"#!/bin/sh\necho >> {log}\nexit 7\n")
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setattr(worker_process.sys, "executable", str(tmp_path / "python"))
    pool = start(1)
    for _ in range(30):
        assert re.search("exit code 7.* 3 times", str(error_of(pool.submit(eval, "1"))))
    assert len(log.read_text().splitlines()) == 3


def test_closing_fails_what_is_at_work_and_what_waits(start):
    pool = start(1)
    futures = [pool.submit(time.sleep, 3600) for _ in range(3)]
    pool.close()
    for future in futures:
        assert isinstance(error_of(future), RunError)
    assert all(child.has_ended() for child in pool._children)


def test_only_pools_that_are_at_work_are_ended(monkeypatch):
    monkeypatch.setattr(worker_processes, "_pools", {})
    idle, at_work = (worker_processes.worker_processes(number) for number in (1, 2))
    try:
        assert ask(idle, eval, "1") == 1
        deadline = time.monotonic() + TIMEOUT
        while not idle.is_idle():  # the answer comes a moment before it is noted
            assert time.monotonic() < deadline
        future = at_work.submit(time.sleep, 3600)
        worker_processes.end_running_tasks()
        assert isinstance(error_of(future), RunError) and ask(idle, eval, "1") == 1
        assert worker_processes.worker_processes(1) is idle and worker_processes.worker_processes(2) is not at_work
    finally:
        worker_processes.close_worker_processes()


def test_a_closed_pool_leaves_no_file_open(start):
    pool = start(2)
    assert [ask(pool, eval, "1") for _ in range(4)] == [1] * 4
    files = [file for child in pool._children for file in (child._process.stdin, child._process.stdout)]
    pool.close()
    deadline = time.monotonic() + TIMEOUT
    while not all(file.closed for file in files):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_task_for_a_closed_pool_fails_clearly_and_does_not_hang(start):
    # As after Ctrl-C, while a thread of the runner still hands out work.
    pool = start(2)
    pool.close()
    time.sleep(0.2)  # whoever serves the tasks has seen the end
    with pytest.raises(RunError, match="worker process"):
        pool.submit(eval, "1").result(TIMEOUT)


# What a child is


def test_a_child_works_without_beam_and_tensorflow(start, tmp_path):
    run, pool = PlannedInput(tmp_path, {"cat/1.jpg": jpeg(1), "cat/bad.jpg": b"<html>"}), start(1)
    context, shard = share(run.context), run.shards[0]
    looked_at = ask(pool, measure_batch, context, (pathlib.Path(run.config.plan_directory) / str(shard.address)).read_bytes())
    assert sorted(map(type, looked_at), key=str) == [DeadLetter, int]
    part = ask(pool, write_part, context, shard, ShardPart())
    assert (len(part.index), [letter.path for letter in part.dead_letters]) == (1, ["cat/bad.jpg"])
    modules = ask(pool, eval, CHILD_MODULES)
    assert "beam_pipelines.shards.shard_writer" in modules and "beam_pipelines.shards.input_reader" in modules
    heavy = ("apache_beam", "tensorflow", "tensorflow_metadata", "grpc", "rich", "pytest")
    assert [name for name in modules if name.split(".")[0] in heavy] == []


def test_a_child_does_not_import_the_users_main_module(tmp_path):
    # As multiprocessing would: then a script without `if __name__ == "__main__"` runs once more in each child.
    script = write_files(tmp_path, {"script.py": b"import os\nprint('main')\n" + CALL_ONE}) / "script.py"
    actual = subprocess.run([sys.executable, script], env=child_env(), capture_output=True, text=True, timeout=TIMEOUT)
    assert (actual.stdout.split(), actual.stderr) == (["main", "42"], "")


def test_a_child_imports_nothing_from_the_current_folder(start, tmp_path, monkeypatch):
    # A folder with a queue.py or a struct.py of the user's own is a fine place to type `recordmill` in.
    monkeypatch.chdir(write_files(tmp_path, {"queue.py": b"1 / 0", "zstandard.py": b"1 / 0"}))
    pool = start(1)
    assert ask(pool, eval, "6 * 7") == 42
    assert ask(pool, eval, "len(__import__('zstandard').compress(b'x'))") > 0


def test_a_child_ignores_the_terminals_interrupt(start):
    pool = start(1)
    ask(pool, signal.raise_signal, signal.SIGINT)
    assert ask(pool, eval, "6 * 7") == 42


# Lifetime

DIED = "a worker process ended (exit code 3)"

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
    """For a fresh Python that finds the package as this one does."""
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
    # The children hold their parent's standard error open: it ends when the last of them has ended.
    _, errors = parent.communicate(timeout=TIMEOUT)
    assert errors == ""


@pytest.mark.slow
def test_children_end_with_a_parent_that_forgets_them_and_say_nothing():
    scripts = [
        ("idle", CALL_ONE, "42\n"),
        ("at work", CALL_ONE + b"import time; worker_processes(2).submit(time.sleep, 3600); time.sleep(0.2)", "42\n"),
        ("dead", CALL_ONE + b"import os; print(worker_processes(2).submit(os._exit, 3).exception())", f"42\n{DIED}\n"),
    ]
    for case, script, printed in scripts:
        command = [sys.executable, "-c", script.decode()]
        actual = subprocess.run(command, env=child_env(), capture_output=True, text=True, timeout=TIMEOUT)
        assert (actual.returncode, actual.stdout, actual.stderr) == (0, printed, ""), case


def test_there_is_one_pool_of_a_size_and_a_new_one_after_it_was_closed():
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
    """Tasks that are done when the test says so."""

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


def test_a_window_yields_results_in_order_as_soon_as_they_are_ready(manual_pool):
    window = TaskWindow(2)
    assert [list(window.run(str, index)) for index in range(3)] == [[], [], []]
    manual_pool.futures[1].set_result("one")
    assert list(window.run(str, 3)) == [], "the first is not done yet"
    manual_pool.futures[0].set_result("zero")
    assert list(window.run(str, 4)) == ["zero", "one"]
    for index in (4, 3, 2):
        manual_pool.futures[index].set_result(index)
    assert list(window.drain()) == [2, 3, 4]
    assert list(window.drain()) == []


def test_a_window_waits_where_too_many_tasks_are_in_flight(manual_pool):
    window = TaskWindow(2)
    yielded: list[int] = []

    def send() -> None:
        for index in range(12):
            yielded.extend(window.run(str, index))
        yielded.extend(window.drain())

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    for index in range(12):
        # For each process one at work and one ready, and one that waits to be let in.
        expected = min(5, 12 - index)
        deadline = time.monotonic() + TIMEOUT
        while manual_pool.num_in_flight() < expected and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.005)  # time enough to send too many
        assert manual_pool.num_in_flight() == expected, index
        manual_pool.futures[index].set_result(index)
    thread.join(TIMEOUT)
    assert yielded == list(range(12))


def test_tasks_that_hold_much_memory_wait_for_one_another(manual_pool):
    window, half = TaskWindow(4), worker_processes.MAX_HELD_BYTES // 2
    for index, memory_bytes in enumerate([half, half, 0]):
        assert list(window.run(str, index, memory_bytes=memory_bytes)) == []
    for large, first in enumerate(([0, 1, 2], [3]), 3):  # each is larger than all that there may be, and runs alone
        actual = window.run(str, large, memory_bytes=3 * half)
        for index in first:
            assert large not in manual_pool.futures
            manual_pool.futures[index].set_result(index)
            assert next(actual) == index
        assert list(actual) == []
    manual_pool.futures[4].set_result(4)
    assert list(window.drain()) == [4]


def test_a_window_raises_what_a_task_raised_in_its_place(manual_pool):
    window = TaskWindow(1)
    list(window.run(str, 0)), list(window.run(str, 1))
    manual_pool.futures[1].set_exception(RunError("the second"))
    manual_pool.futures[0].set_result("the first")
    results = window.drain()
    assert next(results) == "the first"
    with pytest.raises(RunError, match="the second"):
        next(results)


def test_a_window_over_real_processes_keeps_the_order():
    try:
        window = TaskWindow(2)
        results: list[tuple[int, None]] = []
        for index in range(30):
            results += window.run(eval, f"({index}, __import__('time').sleep({index % 3} / 1000))")
        results += window.drain()
    finally:
        worker_processes.close_worker_processes()
    assert [index for index, _ in results] == list(range(30))


def test_without_processes_a_task_runs_on_the_spot():
    window = TaskWindow(0)
    assert list(window.run(os.getpid)) == [os.getpid()]
    with pytest.raises(ZeroDivisionError):
        list(window.run(eval, "1 / 0"))
    assert list(window.drain()) == []
