"""Holds a real run within one of its stages, until a test has done to it what it wants to: no kill misses, however fast the machine.

A test locks the gate of a stage, a file. Whoever has just counted work there, hence is amid a bundle whose results nobody has seen yet,
says so by a file and waits for the lock. The kernel opens the gate of a test that dies, so nobody waits for ever.

Workers of a cluster import this module by Beam's `--beam_plugin=paused_stages`; runs on this machine start as
`python -m paused_stages prepare …`. Both look for the gates in the folder that an environment variable names.
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

# Where a run can be held: at each count; where a shard has just been planned; where one is in place, with all that belongs to it.
STAGES = (*progress.Counts._fields, "planned", "finished")


class Gate:
    """Is shut as soon as it is there; used as a context manager, it is open and gone at the end.

    Args:
        folder: Of the gates, which the environment of those who are to be held names.
        stage: What holds them: one of `STAGES`.
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
        """Lets everybody go on."""
        self._file.close()

    def wait_for_arrivals(self, run: subprocess.Popen, seconds: float = 600) -> list[int]:
        """The ids of the processes that are held, once there is one; a run that ends before that has failed."""
        deadline = time.monotonic() + seconds
        while not (arrivals := self._arrivals()):
            assert run.poll() is None, run.communicate()
            assert time.monotonic() < deadline, f"nothing was {self._path.name}"
            time.sleep(0.01)
        return [int(path.name.rpartition("-")[2]) for path in arrivals]

    def _arrivals(self) -> list[pathlib.Path]:
        return list(self._path.parent.glob(f"{self._path.name}-*"))


def _hold(count: Callable[..., None]) -> Callable[..., None]:
    def count_and_wait(directory: str, *details: Any, **counts: int) -> None:
        count(directory, *details, **counts)
        for stage, number in counts.items():
            if number:
                _wait_at(pathlib.Path(os.environ[GATES], stage))

    return count_and_wait


def _hold_after(function: Callable[..., Any], stage: str) -> Callable[..., Any]:
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
    """In this process, once; none is ever held whose environment names no gates."""
    if GATES in os.environ and progress.count.__name__ == "count":
        progress.count = _hold(progress.count)
        worker_process._PRELOADED += ("paused_stages",)  # so in each of those that this one starts
        if "apache_beam" in sys.modules:  # not in a light process, which does neither
            from beam_pipelines.shards import shard_files
            from beam_pipelines.shuffle import global_shuffle as shuffle

            shard_files.write_done = _hold_after(shard_files.write_done, "finished")
            shuffle.write_planned_shard = _hold_after(shuffle.write_planned_shard, "planned")


if __name__ == "__main__":
    import apache_beam as beam  # noqa: F401, which the command imports later

    from beam_pipelines.__main__ import run as run_command

    install()
    run_command()
else:  # of a cluster's worker, as a plugin; of a light process; in a test, where the environment names no gates
    install()
