"""What Flink does with a job while its client hears nothing but RUNNING: it waits for slots, starts the job again, is gone itself.

A job that would fail again, for what its input is, is ended where Flink starts it again.
"""

import contextlib
import threading
import time
from typing import Any, Callable

from beam_pipelines.errors import EngineError, RunError, UserError, find_user_facing
from beam_pipelines.log import say
from beam_pipelines.parallel.progress import count_restart

POLL_SECONDS = 5.0
_PATIENCE = 10.0  # a job that has just come, or come back, waits for a moment
_SECONDS_TO_COME_BACK = 120  # of a JobManager that another one takes over from, or that is started again
_SECONDS_TO_ANSWER = 600  # of one that may be there, and has no time or no way
_SECONDS_TO_END = 1.0
_LOST = ("FAILING", "FAILED", "CANCELLING", "CANCELED")


class JobWatch(threading.Thread):
    """Tells of a job, as `log.say` does.

    Args:
        ask: Path -> what the cluster's REST interface answers to it; EngineError where it does not.
        name: The job's, which no other job has.
        place: Whom `ask` asks, as a message names it.
        interrupt: Ends the waiting for the job.
    """

    def __init__(self, ask: Callable[[str], Any], name: str, place: str, interrupt: Callable[[UserError | RunError], None]) -> None:
        super().__init__(daemon=True)
        self._ask, self._name, self._place, self._interrupt = ask, name, place, interrupt
        self._over = threading.Event()
        self._heard = time.monotonic()
        self._is_silent = False
        self._job_id = ""
        self._waiting_since: float | None = None
        self._told_slots: tuple[int, ...] = ()
        self._last_failure = 0

    def stop(self) -> None:
        """From now on nothing is said."""
        self._over.set()
        self.join(_SECONDS_TO_END)

    def finish(self) -> None:
        """Ends the watch once the job is done, and says what has come since the last look."""
        self.stop()
        with contextlib.suppress(EngineError):
            self._look()

    def run(self) -> None:
        while not self._over.wait(POLL_SECONDS):
            try:
                self._look()
            except EngineError as error:
                self._hear_nothing(error)
            else:
                if self._is_silent:
                    self._say(f"{self._place} answers again")
                self._heard, self._is_silent = time.monotonic(), False

    def _look(self) -> None:
        """What is new since the last time."""
        jobs = {job["name"]: job for job in self._ask("jobs/overview")["jobs"]}
        job = jobs.get(self._name)
        if job:
            self._job_id = job["jid"]
            self._look_for_slots(job)
            self._look_for_restarts(job)
        elif self._job_id:
            told = f"{self._place} does not know job {self._job_id} any more"
            self._end(EngineError(f"{told}: its JobManager has been started anew, without high availability"))

    def _look_for_slots(self, job: dict[str, Any]) -> None:
        tasks, now = job["tasks"], time.monotonic()
        if job["state"] in (*_LOST, "FINISHED") or not tasks["scheduled"]:
            if self._told_slots:
                self._say("every task has a slot now")
            self._waiting_since, self._told_slots = None, ()
            return
        self._waiting_since = self._waiting_since or now
        if now - self._waiting_since < _PATIENCE:
            return
        cluster = self._ask("overview")
        slots = cluster["taskmanagers"], cluster["slots-total"], cluster["slots-available"]
        if slots != self._told_slots:
            self._told_slots = slots
            has = "TaskManagers: {}, slots: {}, free slots: {}".format(*slots)
            told = f"{tasks['scheduled']} of {tasks['total']} tasks wait for slots of {self._place} ({has})"
            self._say(f"{told}; expected more TaskManagers, or a lower --parallelism")

    def _look_for_restarts(self, job: dict[str, Any]) -> None:
        failures = self._ask(f"jobs/{self._job_id}/exceptions")["exceptionHistory"]["entries"]
        for failure in sorted(failures, key=lambda failure: failure["timestamp"]):
            if failure["timestamp"] > self._last_failure and job["state"] not in _LOST:
                self._last_failure = failure["timestamp"]
                known = find_user_facing(RuntimeError(failure["stacktrace"]))
                if known and known.exit_code == 2 and not self._over.is_set():  # however often Flink would try again
                    return self._end(known)
                self._say(f"Flink restarted the job ({count_restart()}): {_one_line(known or _first_line(failure))}")

    def _hear_nothing(self, error: EngineError) -> None:
        seconds = time.monotonic() - self._heard
        is_refused = isinstance(getattr(error.__cause__, "reason", error.__cause__), ConnectionError)
        limit = _SECONDS_TO_COME_BACK if is_refused else _SECONDS_TO_ANSWER
        if seconds > limit:
            self._end(EngineError(f"{error} It has been so for {seconds:.0f} seconds"))
        elif seconds > _PATIENCE and not self._is_silent:
            self._is_silent = True
            self._say(f"{error} Waiting for it up to {limit} seconds")

    def _end(self, error: UserError | RunError) -> None:
        self._over.set()
        self._interrupt(error)

    def _say(self, text: str) -> None:
        say(text, "warning")


def _first_line(failure: dict[str, Any]) -> str:
    """Of what may be a traceback of Java's around one of Python's."""
    return failure["stacktrace"].partition("\n")[0].removeprefix(f"{failure['exceptionName']}: ")


def _one_line(text: object) -> str:
    return " ".join(str(text).split())[:300]
