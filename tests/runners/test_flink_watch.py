"""What is told of a job on Flink while it goes on, by what the REST interface answers."""

import re
import threading
from typing import Any

import pytest

from beam_pipelines.errors import DataError, EngineError
from beam_pipelines.parallel import progress
from beam_pipelines.runners import flink_watch
from beam_pipelines.runners.flink_watch import JobWatch

LOST = {
    "timestamp": 5,
    "exceptionName": "org.apache.flink.runtime.jobmaster.JobMasterException",
    "stacktrace": "org.apache.flink.runtime.jobmaster.JobMasterException: TaskManager with id tm-1 is no longer reachable.\n\tat …",
}
OURS = {
    "timestamp": 7,
    "exceptionName": "java.lang.RuntimeException",
    "stacktrace": "java.lang.RuntimeException: Error received from SDK harness\nTraceback (most recent call last):\n"
    "beam_pipelines.errors.RunError: shard train 1 of 7 could not be written: No space left on device",
}


DIED = {
    "timestamp": 11,
    "exceptionName": "java.lang.Exception",
    "stacktrace": "java.lang.Exception: The user defined 'open()' method caused an exception: java.lang.IllegalStateException: Process died with "
    "exit code 3\n\tat …",
}
# Of a task that waits for a worker, as Flink 1.19 gives it, without most of its frames.
TASK = "MapPartition (MapPartition at [1]ListImages/List/ParDo(_List))"
WAITS = {
    "threadName": f"{TASK} (1/2)#0",
    "stringifiedThreadInfo": f'"{TASK} (1/2)#0" Id=229 TIMED_WAITING on java.util.concurrent.CompletableFuture$Signaller@627b5d16\n'
    "\tat java.base@17.0.15/jdk.internal.misc.Unsafe.park(Native Method)\n"
    "\tat java.base@17.0.15/java.util.concurrent.CompletableFuture.get(CompletableFuture.java:2095)\n"
    "\tat app//org.apache.beam.runners.fnexecution.control.MapControlClientPool.getClient(MapControlClientPool.java:69)\n"
    "\tat app//org.apache.beam.runners.fnexecution.environment.ExternalEnvironmentFactory.createEnvironment(ExternalEnvironmentFactory.java:122)\n",
}
ANOTHERS = {**WAITS, "threadName": "Map (another job's) (1/1)#0"}
AT_WORK = {"threadName": f"{TASK} (2/2)#0", "stringifiedThreadInfo": "\tat app//org.apache.flink.runtime.operators.BatchTask.run(BatchTask.java:514)\n"}


class Cluster:
    """A cluster, as it answers at each look; an exception is raised."""

    def __init__(self) -> None:
        self.job: dict[str, Any] | None = {
            "name": "mine",
            "jid": "a1",
            "state": "RUNNING",
            "tasks": {"scheduled": 0, "total": 4},
        }
        self.slots = {"taskmanagers": 1, "slots-total": 1, "slots-available": 0}
        self.failures: list[dict[str, Any]] = []
        self.threads = {"tm-1": [AT_WORK, ANOTHERS], "tm-2": [AT_WORK]}
        self.error: Exception | None = None

    def ask(self, path: str) -> Any:
        if self.error:
            raise EngineError("no answer (Connection refused)") from self.error
        other = {"name": "other", "jid": "b2", "state": "RUNNING", "tasks": {"scheduled": 3, "total": 3}}
        return {
            "jobs/overview": {"jobs": [other, *([self.job] if self.job else [])]},
            "overview": self.slots,
            "jobs/a1/exceptions": {"exceptionHistory": {"entries": self.failures}},
            "jobs/a1": {"vertices": [{"name": "DataSource (Impulse)"}, {"name": TASK}]},
            "taskmanagers": {"taskmanagers": [{"id": name} for name in self.threads]},
            **{f"taskmanagers/{name}/thread-dump": {"threadInfos": threads} for name, threads in self.threads.items()},
        }[path]


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def watch(cluster, monkeypatch, capsys):
    """A watch whose time is the test's, as a function: seconds until the next look -> what is said at that."""
    now, interrupted = [1000.0], []
    monkeypatch.setattr(flink_watch.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(progress, "_num_restarts", 0)
    watch = JobWatch(cluster.ask, "mine", "the cluster", "the pool's log", interrupted.append)
    watch._over = looks = VisualHashes()

    def look(seconds: float = 5) -> list[str]:
        now[0] += seconds
        looks.left = 1
        watch.run()
        return [line.removeprefix("recordmill: warning: ") for line in capsys.readouterr().err.splitlines()]

    look.interrupted, look.over = interrupted, looks
    return look


class VisualHashes(threading.Event):
    """Lets the watch look as often as it may."""

    left = 0

    def wait(self, timeout: float | None = None) -> bool:
        self.left -= 1
        return self.left < 0


def matches(messages: list, pattern: str) -> bool:
    """Whether there is exactly one message, and it contains the pattern, in which parentheses are plain characters."""
    pattern = pattern.replace("(", r"\(").replace(")", r"\)")
    return len(messages) == 1 and re.search(pattern, str(messages[0])) is not None


def test_nothing_is_said_of_a_job_that_runs(watch):
    assert [watch() for _ in range(10)] == [[]] * 10


def test_who_waits_for_slots_says_so_within_half_a_minute_and_again_when_it_changes(cluster, watch):
    cluster.job["tasks"]["scheduled"] = 2
    assert [watch(), watch()] == [[], []], "a job that has just come waits for a moment"
    expected = "2 of 4 tasks .* (TaskManagers: {}, slots: {}, free slots: 0).* --parallelism"
    assert matches(watch(), expected.format(1, 1))
    assert watch() == []
    cluster.slots |= {"taskmanagers": 0, "slots-total": 0}
    assert matches(watch(), expected.format(0, 0))
    cluster.job["tasks"]["scheduled"] = 0
    assert matches(watch(), "slots")
    assert watch() == []


def test_each_restart_is_said_once_with_what_is_behind_it(cluster, watch):
    cluster.failures = [LOST]
    assert watch() == ["Flink restarted the job (1): TaskManager with id tm-1 is no longer reachable."]
    cluster.failures = [OURS, LOST]
    assert watch() == ["Flink restarted the job (2): shard train 1 of 7 could not be written: No space left on device"]
    cluster.failures.insert(0, {**OURS, "timestamp": 9})
    cluster.job["state"] = "FAILED"
    assert watch() == [], "that was no restart"


def test_who_waits_for_a_worker_says_so_within_half_a_minute_and_gives_up_after_ten(cluster, watch):
    assert [watch(10), watch(10)] == [[], []], "all are at work"
    cluster.threads["tm-2"].append(WAITS)
    cluster.job["tasks"] = {**cluster.job["tasks"], "running": 2}
    assert [watch(), watch()] == [[], []], "a worker takes a moment to start"
    expected = "{} of 4 tasks .* on {}\\. .*the pool's log"
    assert matches(watch(), expected.format(1, "tm-2"))
    cluster.threads["tm-1"].append(WAITS)
    assert matches(watch(10), expected.format(2, "tm-1, tm-2"))
    assert watch(10) == []
    cluster.threads = {"tm-1": [AT_WORK]}
    assert matches(watch(10), "started")
    cluster.threads["tm-1"].append(WAITS)
    assert matches(watch(300), expected.format(1, "tm-1"))
    assert watch(500) == watch.interrupted == []
    watch(101)
    assert matches(watch.interrupted, "the cluster: .*tm-1 for 601 seconds.* the pool's log")
    assert isinstance(watch.interrupted[0], EngineError)


def test_a_worker_that_ends_as_it_starts_again_and_again_is_not_waited_for(cluster, watch):
    reported = "The user defined 'open()' method caused an exception: java.lang.IllegalStateException: Process died with exit code 3"
    for timestamp, failure in enumerate((DIED, DIED, LOST, DIED, DIED), start=1):
        cluster.failures.insert(0, {**failure, "timestamp": timestamp})
        (line,) = watch()
        assert failure is LOST or line == f"Flink restarted the job ({timestamp}): {reported}"
    assert watch.interrupted == []
    cluster.failures.insert(0, {**DIED, "timestamp": 6})
    assert watch() == []
    (error,) = watch.interrupted
    expected = "the cluster: .*Process died with exit code 3, 3 times.* the pool's log"
    assert isinstance(error, EngineError) and matches([error], expected)


def test_a_job_whose_input_is_at_fault_is_not_tried_again(cluster, watch):
    cluster.failures = [{**OURS, "stacktrace": OURS["stacktrace"].replace("RunError: shard", "DataError: shard")}]
    assert watch() == []
    (error,) = watch.interrupted
    assert isinstance(error, DataError) and str(error).startswith("shard train 1 of 7")


def test_one_that_is_done_is_not_ended_for_what_it_recovered_from(cluster, watch):
    cluster.failures = [{**OURS, "stacktrace": OURS["stacktrace"].replace("RunError: shard", "DataError: shard")}]
    watch.over.set()
    assert watch() == ["Flink restarted the job (1): shard train 1 of 7 could not be written: No space left on device"]
    assert watch.interrupted == []


def test_a_job_manager_that_does_not_answer_is_waited_for_and_then_given_up(cluster, watch):
    assert watch() == []
    cluster.error = ConnectionRefusedError()
    assert watch() == []
    assert matches(watch(10), "Connection refused.* 120 seconds")
    cluster.error = None
    assert matches(watch(), "the cluster ")
    cluster.error = ConnectionRefusedError()
    watch(20)
    assert watch(110) == []
    assert matches(watch.interrupted, "Connection refused.* 130 seconds")


def test_one_that_is_busy_is_waited_for_for_longer(cluster, watch):
    cluster.error = TimeoutError()
    watch(130)
    assert watch.interrupted == []
    watch(500)
    assert len(watch.interrupted) == 1


def test_a_cluster_that_has_forgotten_the_job_is_given_up_at_once(cluster, watch):
    job, cluster.job = cluster.job, None
    assert watch() == [], "it has not come yet"
    cluster.job = job
    watch()
    cluster.job = None
    watch()
    (error,) = watch.interrupted
    assert "job a1" in str(error) and "JobManager" in str(error)
