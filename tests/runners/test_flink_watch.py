"""Tests the messages about a running Flink job with a fake of Flink's REST interface."""

import re
import threading
from typing import Any

import pytest

from beam_pipelines.errors import DataError, EngineError
from beam_pipelines.parallel import progress
from beam_pipelines.runners import flink_watch
from beam_pipelines.runners.flink_watch import JobWatch

TASK_MANAGER_LOST = {
    "timestamp": 5,
    "exceptionName": "org.apache.flink.runtime.jobmaster.JobMasterException",
    "stacktrace": "org.apache.flink.runtime.jobmaster.JobMasterException: TaskManager with id tm-1 is no longer reachable.\n\tat …",
}
RUN_ERROR = {
    "timestamp": 7,
    "exceptionName": "java.lang.RuntimeException",
    "stacktrace": "java.lang.RuntimeException: Error received from SDK harness\nTraceback (most recent call last):\n"
    "beam_pipelines.errors.RunError: shard train 1 of 7 could not be written: No space left on device",
}


WORKER_DIED = {
    "timestamp": 11,
    "exceptionName": "java.lang.Exception",
    "stacktrace": "java.lang.Exception: The user defined 'open()' method caused an exception: java.lang.IllegalStateException: Process died with "
    "exit code 3\n\tat …",
}
# A task that waits for a worker, as Flink 1.19 reports it, without most of its stack frames.
TASK = "MapPartition (MapPartition at [1]ListImages/List/ParDo(_List))"
WAITING = {
    "threadName": f"{TASK} (1/2)#0",
    "stringifiedThreadInfo": f'"{TASK} (1/2)#0" Id=229 TIMED_WAITING on java.util.concurrent.CompletableFuture$Signaller@627b5d16\n'
    "\tat java.base@17.0.15/jdk.internal.misc.Unsafe.park(Native Method)\n"
    "\tat java.base@17.0.15/java.util.concurrent.CompletableFuture.get(CompletableFuture.java:2095)\n"
    "\tat app//org.apache.beam.runners.fnexecution.control.MapControlClientPool.getClient(MapControlClientPool.java:69)\n"
    "\tat app//org.apache.beam.runners.fnexecution.environment.ExternalEnvironmentFactory.createEnvironment(ExternalEnvironmentFactory.java:122)\n",
}
OTHER_JOB = {**WAITING, "threadName": "Map (another job's) (1/1)#0"}
RUNNING = {"threadName": f"{TASK} (2/2)#0", "stringifiedThreadInfo": "\tat app//org.apache.flink.runtime.operators.BatchTask.run(BatchTask.java:514)\n"}


class Cluster:
    """A fake cluster, whose answers a test can set. If `error` is set, requests raise it."""

    def __init__(self) -> None:
        self.job: dict[str, Any] | None = {
            "name": "mine",
            "jid": "a1",
            "state": "RUNNING",
            "tasks": {"scheduled": 0, "total": 4},
        }
        self.slots = {"taskmanagers": 1, "slots-total": 1, "slots-available": 0}
        self.failures: list[dict[str, Any]] = []
        self.threads = {"tm-1": [RUNNING, OTHER_JOB], "tm-2": [RUNNING]}
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
    """Yields a function that advances a fake clock by `seconds` and returns the new messages about the job."""
    now, interrupted = [1000.0], []
    monkeypatch.setattr(flink_watch.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(progress, "_num_restarts", 0)
    watch = JobWatch(cluster.ask, "mine", "the cluster", "the pool's log", interrupted.append)
    watch._over = looks = LookCounter()

    def look(seconds: float = 5) -> list[str]:
        now[0] += seconds
        looks.left = 1
        watch.run()
        return [line.removeprefix("recordmill: warning: ") for line in capsys.readouterr().err.splitlines()]

    look.interrupted, look.over = interrupted, looks
    return look


class LookCounter(threading.Event):
    """An event that ends the polling loop after `left` iterations."""

    left = 0

    def wait(self, timeout: float | None = None) -> bool:
        self.left -= 1
        return self.left < 0


def matches(messages: list, pattern: str) -> bool:
    """Returns whether there is exactly one message and the message matches `pattern`."""
    pattern = pattern.replace("(", r"\(").replace(")", r"\)")
    return len(messages) == 1 and re.search(pattern, str(messages[0])) is not None


def test_running_job_gives_no_messages(watch):
    assert [watch() for _ in range(10)] == [[]] * 10


def test_missing_slots_are_reported_soon_and_again_if_they_change(cluster, watch):
    cluster.job["tasks"]["scheduled"] = 2
    assert [watch(), watch()] == [[], []], "a new job may wait briefly"
    expected = "2 of 4 tasks .* (TaskManagers: {}, slots: {}, free slots: 0).* --parallelism"
    assert matches(watch(), expected.format(1, 1))
    assert watch() == []
    cluster.slots |= {"taskmanagers": 0, "slots-total": 0}
    assert matches(watch(), expected.format(0, 0))
    cluster.job["tasks"]["scheduled"] = 0
    assert matches(watch(), "slots")
    assert watch() == []


def test_each_restart_is_reported_once_with_its_cause(cluster, watch):
    cluster.failures = [TASK_MANAGER_LOST]
    assert watch() == ["Flink restarted the job (1): TaskManager with id tm-1 is no longer reachable."]
    cluster.failures = [RUN_ERROR, TASK_MANAGER_LOST]
    assert watch() == ["Flink restarted the job (2): shard train 1 of 7 could not be written: No space left on device"]
    cluster.failures.insert(0, {**RUN_ERROR, "timestamp": 9})
    cluster.job["state"] = "FAILED"
    assert watch() == [], "a failed job is not a restart"


def test_missing_workers_are_reported_soon_and_fail_after_ten_minutes(cluster, watch):
    assert [watch(10), watch(10)] == [[], []], "all tasks are running"
    cluster.threads["tm-2"].append(WAITING)
    cluster.job["tasks"] = {**cluster.job["tasks"], "running": 2}
    assert [watch(), watch()] == [[], []], "starting a worker takes a moment"
    expected = "{} of 4 tasks .* on {}\\. .*the pool's log"
    assert matches(watch(), expected.format(1, "tm-2"))
    cluster.threads["tm-1"].append(WAITING)
    assert matches(watch(10), expected.format(2, "tm-1, tm-2"))
    assert watch(10) == []
    cluster.threads = {"tm-1": [RUNNING]}
    assert matches(watch(10), "started")
    cluster.threads["tm-1"].append(WAITING)
    assert matches(watch(300), expected.format(1, "tm-1"))
    assert watch(500) == watch.interrupted == []
    watch(101)
    assert matches(watch.interrupted, "the cluster: .*tm-1 for 601 seconds.* the pool's log")
    assert isinstance(watch.interrupted[0], EngineError)


def test_fails_if_worker_process_repeatedly_dies_at_start(cluster, watch):
    reported = "The user defined 'open()' method caused an exception: java.lang.IllegalStateException: Process died with exit code 3"
    for timestamp, failure in enumerate((WORKER_DIED, WORKER_DIED, TASK_MANAGER_LOST, WORKER_DIED, WORKER_DIED), start=1):
        cluster.failures.insert(0, {**failure, "timestamp": timestamp})
        (line,) = watch()
        assert failure is TASK_MANAGER_LOST or line == f"Flink restarted the job ({timestamp}): {reported}"
    assert watch.interrupted == []
    cluster.failures.insert(0, {**WORKER_DIED, "timestamp": 6})
    assert watch() == []
    (error,) = watch.interrupted
    expected = "the cluster: .*exit code 3, 3 times.* log"
    assert isinstance(error, EngineError) and matches([error], expected)


def test_data_error_interrupts_job_without_restart(cluster, watch):
    cluster.failures = [{**RUN_ERROR, "stacktrace": RUN_ERROR["stacktrace"].replace("RunError: shard", "DataError: shard")}]
    assert watch() == []
    (error,) = watch.interrupted
    assert isinstance(error, DataError) and str(error).startswith("shard train 1 of 7")


def test_finished_job_is_not_interrupted_for_recovered_errors(cluster, watch):
    cluster.failures = [{**RUN_ERROR, "stacktrace": RUN_ERROR["stacktrace"].replace("RunError: shard", "DataError: shard")}]
    watch.over.set()
    assert watch() == ["Flink restarted the job (1): shard train 1 of 7 could not be written: No space left on device"]
    assert watch.interrupted == []


def test_unreachable_job_manager_is_reported_and_later_given_up(cluster, watch):
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


def test_busy_job_manager_is_given_more_time(cluster, watch):
    cluster.error = TimeoutError()
    watch(130)
    assert watch.interrupted == []
    watch(500)
    assert len(watch.interrupted) == 1


def test_fails_immediately_if_cluster_no_longer_knows_the_job(cluster, watch):
    job, cluster.job = cluster.job, None
    assert watch() == [], "the job is not submitted yet"
    cluster.job = job
    watch()
    cluster.job = None
    watch()
    (error,) = watch.interrupted
    assert "job a1" in str(error) and "JobManager" in str(error)
