"""Monitors a Flink job through the REST interface, because Beam does not report problems of a running job.

The monitor logs when the job restarts, when the cluster does not respond, and when the job waits for free slots or
workers. If invalid input causes a restart, the monitor ends the job, because the error would occur again. A job whose
Python workers cannot start waits forever. The monitor detects this problem in the thread stacks of the TaskManagers.
"""

import contextlib
import re
import threading
import time
from typing import Any, Callable

from beam_pipelines.errors import EngineError, RunError, UserError, find_user_facing
from beam_pipelines.log import print_message
from beam_pipelines.parallel.progress import count_restart

POLL_SECONDS = 5.0
_PATIENCE = 10.0  # Short waits are normal when a job starts or restarts.
_SECONDS_TO_COME_BACK = 120  # For a JobManager that is restarted or replaced by a standby.
_SECONDS_TO_ANSWER = 600  # For a JobManager that may be overloaded or unreachable.
_SECONDS_TO_START = 600  # For a worker, which may have to install packages.
_SECONDS_TO_END = 1.0
_MAX_SECONDS_BETWEEN_STACKS = 300.0  # Limited, because each thread dump stops a TaskManager for milliseconds.
_WAITS_FOR_WORKER = re.compile(r"(MapControlClientPool\.getClient|EnvironmentFactory\.createEnvironment)\(")
_DIED = re.compile(r"Process died with exit code -?\d+")  # Beam's message if a worker process ends before it connects.
_MAX_DIED = 3  # Flink's restart strategy may allow more attempts.
_MAX_NAMES = 3
_LOST = ("FAILING", "FAILED", "CANCELLING", "CANCELED")


class JobWatch(threading.Thread):
    """A thread that monitors a Flink job and logs its problems.

    Args:
        ask: A function that requests a path of the cluster's REST interface and returns the response. It raises
            `EngineError` if the cluster does not respond.
        name: The unique name of the job.
        cluster: The name of the cluster, for messages.
        worker_logs: Where to find the logs of Python workers that do not start, for messages.
        interrupt: A function that stops waiting for the job, and raises an error.
    """

    def __init__(
        self, ask: Callable[[str], Any], name: str, cluster: str, worker_logs: str, interrupt: Callable[[UserError | RunError], None]
    ) -> None:
        super().__init__(daemon=True)
        self._ask, self._name, self._cluster, self._worker_logs, self._interrupt = ask, name, cluster, worker_logs, interrupt
        self._over = threading.Event()
        self._heard = time.monotonic()
        self._is_silent = False
        self._job_id = ""
        self._waiting_since: float | None = None
        self._logged_slots: tuple[int, ...] = ()
        self._last_failure = self._num_died = 0
        self._tasks: dict[str, int] = {}
        self._next_stacks = self._seconds_between_stacks = 0.0
        self._starting_since: float | None = None
        self._logged_starting: list[str] = []

    def stop(self) -> None:
        """Stops monitoring and logs nothing more."""
        self._over.set()
        self.join(_SECONDS_TO_END)

    def finish(self) -> None:
        """Stops monitoring after the job has ended, and logs the changes since the last poll."""
        self.stop()
        with contextlib.suppress(EngineError):
            self._poll()

    def run(self) -> None:
        while not self._over.wait(POLL_SECONDS):
            try:
                self._poll()
            except EngineError as error:
                self._discard(error)
            else:
                if self._is_silent:
                    self._print_warning(f"{self._cluster} responds again")
                self._heard, self._is_silent = time.monotonic(), False

    def _poll(self) -> None:
        """Polls the cluster once and logs the changes since the last poll."""
        jobs = {job["name"]: job for job in self._ask("jobs/overview")["jobs"]}
        job = jobs.get(self._name)
        if job:
            self._job_id = job["jid"]
            self._check_slots(job)
            self._check_restarts(job)
            self._check_workers(job)
        elif self._job_id:
            message = f"{self._cluster} no longer has job {self._job_id}, because its JobManager was restarted"
            self._end(EngineError(f"{message}. Run the same command again, or use a cluster with high availability."))

    def _check_slots(self, job: dict[str, Any]) -> None:
        tasks, now = job["tasks"], time.monotonic()
        if job["state"] in (*_LOST, "FINISHED") or not tasks["scheduled"]:
            if self._logged_slots:
                self._print_warning("all tasks have slots now")
            self._waiting_since, self._logged_slots = None, ()
            return
        self._waiting_since = self._waiting_since or now
        if now - self._waiting_since < _PATIENCE:
            return
        cluster = self._ask("overview")
        slots = cluster["taskmanagers"], cluster["slots-total"], cluster["slots-available"]
        if slots != self._logged_slots:
            self._logged_slots = slots
            has = "TaskManagers: {}, slots: {}, free slots: {}".format(*slots)
            message = f"{tasks['scheduled']} of {tasks['total']} tasks wait for free slots on {self._cluster} ({has})"
            self._print_warning(f"{message}. Add TaskManagers, or lower --parallelism.")

    def _check_restarts(self, job: dict[str, Any]) -> None:
        failures = self._ask(f"jobs/{self._job_id}/exceptions")["exceptionHistory"]["entries"]
        for failure in sorted(failures, key=lambda failure: failure["timestamp"]):
            if failure["timestamp"] > self._last_failure and job["state"] not in _LOST:
                self._last_failure = failure["timestamp"]
                known = find_user_facing(RuntimeError(failure["stacktrace"]))
                if known and known.exit_code == 2 and not self._over.is_set():  # Retries cannot fix a user error.
                    return self._end(known)
                cause = _one_line(known or _first_line(failure))
                died = _DIED.search(cause)
                self._num_died = self._num_died + 1 if died else 0
                if self._num_died >= _MAX_DIED and not self._over.is_set():
                    why = f"{died[0]}, {self._num_died} times in a row. See {self._worker_logs}."
                    return self._end(EngineError(f"{self._cluster}: a Python worker ends at its start: {why}"))
                self._print_warning(f"Flink restarted the job ({count_restart()}): {cause}")

    def _check_workers(self, job: dict[str, Any]) -> None:
        now = time.monotonic()
        if job["tasks"] != self._tasks:  # The job makes progress.
            self._tasks, self._seconds_between_stacks = job["tasks"], _PATIENCE
            self._next_stacks, self._starting_since = now + _PATIENCE, None
        if now < self._next_stacks:
            return
        self._next_stacks = now + self._seconds_between_stacks
        try:
            num_tasks, managers = self._find_starting() if job["state"] == "RUNNING" else (0, [])
        except (UserError, EngineError):
            # A TaskManager was lost after it was listed, or hangs. `run` checks whether the JobManager responds.
            return
        self._seconds_between_stacks = _PATIENCE if managers else min(2 * self._seconds_between_stacks, _MAX_SECONDS_BETWEEN_STACKS)
        self._next_stacks = now + self._seconds_between_stacks
        if not managers:
            if self._logged_starting:
                self._print_warning("all workers have started")
            self._starting_since, self._logged_starting = None, []
            return
        self._starting_since = self._starting_since or now
        shown = ", ".join(managers[:_MAX_NAMES]) + (f" and {len(managers) - _MAX_NAMES} more" if managers[_MAX_NAMES:] else "")
        seconds = now - self._starting_since
        if seconds > _SECONDS_TO_START:
            message = f"{self._cluster}: no Python worker has started on {shown} for {seconds:.0f} seconds"
            self._end(EngineError(f"{message}. See {self._worker_logs}."))
        elif managers != self._logged_starting:
            self._logged_starting = managers
            message = f"{num_tasks} of {job['tasks']['total']} tasks wait for a Python worker to start on {shown}"
            self._print_warning(f"{message}. If it does not start, see {self._worker_logs}.")

    def _find_starting(self) -> tuple[int, list[str]]:
        """Returns the number of threads that are waiting for a worker to start, and the IDs of their TaskManagers."""
        names = tuple(vertex["name"] for vertex in self._ask(f"jobs/{self._job_id}")["vertices"])
        num_threads, managers = 0, []
        for manager in self._ask("taskmanagers")["taskmanagers"]:
            threads = self._ask(f"taskmanagers/{manager['id']}/thread-dump")["threadInfos"]
            waiting = [
                thread for thread in threads if thread["threadName"].startswith(names) and _WAITS_FOR_WORKER.search(thread["stringifiedThreadInfo"])
            ]
            num_threads += len(waiting)
            managers += [manager["id"]] if waiting else []
        return num_threads, sorted(managers)

    def _discard(self, error: EngineError) -> None:
        seconds = time.monotonic() - self._heard
        is_refused = isinstance(getattr(error.__cause__, "reason", error.__cause__), ConnectionError)
        limit = _SECONDS_TO_COME_BACK if is_refused else _SECONDS_TO_ANSWER
        if seconds > limit:
            self._end(EngineError(f"{error} There was no response for {seconds:.0f} seconds."))
        elif seconds > _PATIENCE and not self._is_silent:
            self._is_silent = True
            self._print_warning(f"{error} Waiting up to {limit} seconds for a response.")

    def _end(self, error: UserError | RunError) -> None:
        self._over.set()
        self._interrupt(error)

    def _print_warning(self, text: str) -> None:
        print_message(text, "warning")


def _first_line(failure: dict[str, Any]) -> str:
    """Returns the message in the first line of a failure's Java stack trace."""
    return failure["stacktrace"].partition("\n")[0].removeprefix(f"{failure['exceptionName']}: ")


def _one_line(text: object) -> str:
    return " ".join(str(text).split())[:300]
