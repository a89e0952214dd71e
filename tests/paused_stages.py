"""Pauses a real run in one of its stages, so that a test can kill a process at a defined point.

A test creates and locks a file for one stage. A worker that has processed elements in this stage creates another file
and waits for the lock. At this point, the worker has not yet committed its results. The kernel releases the lock when
the test ends.

Workers of a cluster import this module with Beam's option `--beam_plugin=paused_stages`. Local runs are started with
`python -m paused_stages prepare`. The directory of the lock files is in the environment variable
`RECORDMILL_TEST_GATES`.
"""

import fcntl
import functools
import os
import pathlib
import subprocess
import sys
import time
from typing import Any, Callable

from beam_pipelines.parallel import worker_process, progress

GATES = "RECORDMILL_TEST_GATES"

# A run can be paused at each count, after a shard has been planned, and after a shard has been completed.
STAGES = (*progress.Counts._fields, "planned", "finished")


class Gate:
    """Context manager that pauses processes with a locked file, and unlocks the file at exit.
    Args:
        folder: Directory of the lock files, which is in the environment of the paused processes.
        stage: One of `STAGES`, at which processes are paused.
    """

    def __init__(self, folder: pathlib.Path, stage: str) -> None:
        assert stage in STAGES, stage
        folder.mkdir(exist_ok=True)
        self._path = folder / stage
        self._file = open(self._path, "xb")
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def __enter__(self) -> "Gate":
        return self

    def __exit__(self, *unused: object) -> None:
        self._path.unlink()
        for path in self._arrivals():
            path.unlink()
        self.open()

    def open(self) -> None:
        """Unlocks the file, so that all paused processes continue."""
        self._file.close()

    def wait_for_arrivals(self, run: subprocess.Popen, seconds: float = 600) -> list[int]:
        """Waits until a process is paused, and returns the IDs of all paused processes. Fails if the run ends."""
        deadline = time.monotonic() + seconds
        while not (arrivals := self._arrivals()):
            assert run.poll() is None, run.communicate()
            assert time.monotonic() < deadline, f"no process was paused at {self._path.name}"
            time.sleep(0.01)
        return [int(path.name.rpartition("-")[2]) for path in arrivals]

    def _arrivals(self) -> list[pathlib.Path]:
        return list(self._path.parent.glob(f"{self._path.name}-*"))


def _pause_after_count(count: Callable[..., None]) -> Callable[..., None]:
    def count_and_wait(directory: str, *details: Any, **counts: int) -> None:
        count(directory, *details, **counts)
        for stage, number in counts.items():
            if number:
                _wait_at(pathlib.Path(os.environ[GATES], stage))

    return count_and_wait


def _pause_after(function: Callable[..., Any], stage: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def call_and_wait(*arguments: Any) -> Any:
        result = function(*arguments)
        _wait_at(pathlib.Path(os.environ[GATES], stage))
        return result

    return call_and_wait


def _wait_at(path: pathlib.Path) -> None:
    try:
        gate = open(path, "rb")
    except FileNotFoundError:
        return
    with gate:
        path.with_name(f"{path.name}-{os.getpid()}").touch()
        fcntl.flock(gate, fcntl.LOCK_SH)


def install() -> None:
    """Enables pausing in this process if the environment variable for the lock directory is set."""
    if GATES in os.environ and progress.count.__name__ == "count":
        progress.count = _pause_after_count(progress.count)
        worker_process._PRELOADED += ("paused_stages",)  # also for worker processes that this process starts
        if "apache_beam" in sys.modules:  # worker processes neither plan nor complete shards
            from beam_pipelines.shards import shard_files
            from beam_pipelines.shuffle import global_shuffle as shuffle

            shard_files.write_done = _pause_after(shard_files.write_done, "finished")
            shuffle.write_planned_shard = _pause_after(shuffle.write_planned_shard, "planned")


if __name__ == "__main__":
    import apache_beam as beam  # noqa: F401

    from beam_pipelines.__main__ import run as run_command

    install()
    run_command()
else:  # in a worker of a cluster, in a worker process, or in a test without lock files
    install()
