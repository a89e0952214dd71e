"""Runs a command as a whole process and says how long it took and how much memory its process tree held at most."""

import dataclasses
import os
import pathlib
import subprocess
import threading
import time
from typing import Sequence

import psutil

ROOT = pathlib.Path(__file__).resolve().parents[2]
_SAMPLE_SECONDS = 0.02


@dataclasses.dataclass(frozen=True)
class Measured:
    """One run.

    Attributes:
        seconds: Wall time of the whole process.
        peak_bytes: Largest sum of the resident memory of the process and its children; what they share counts twice.
        output: Standard output.
    """

    seconds: float
    peak_bytes: int
    output: str


def measure(command: Sequence[str]) -> Measured:
    """Runs a command to its end.

    Raises:
        RuntimeError: It failed.
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    start = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=ROOT
    )
    peak = [0]
    sampler = threading.Thread(target=_sample, args=(process.pid, peak), daemon=True)
    sampler.start()
    output, errors = process.communicate()
    seconds = time.perf_counter() - start
    sampler.join()
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with exit code {process.returncode}:\n{errors[-2000:]}")
    return Measured(seconds, peak[0], output)


def _sample(pid: int, peak: list[int]) -> None:
    try:
        process = psutil.Process(pid)
        while process.status() != psutil.STATUS_ZOMBIE:
            peak[0] = max(peak[0], sum(_resident(one) for one in (process, *process.children(recursive=True))))
            time.sleep(_SAMPLE_SECONDS)
    except psutil.NoSuchProcess:
        return


def _resident(process: psutil.Process) -> int:
    try:
        return process.memory_info().rss
    except psutil.NoSuchProcess:
        return 0
