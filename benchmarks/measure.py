"""Runs a command and measures its wall time, its CPU time and the peak memory of its process tree."""

import dataclasses
import os
import pathlib
import resource
import subprocess
import threading
import time
from typing import Sequence

import psutil

ROOT = pathlib.Path(__file__).resolve().parents[1]
# Sampling all processes takes milliseconds of CPU time, which the measured command may need.
_SAMPLE_SECONDS = 0.1


@dataclasses.dataclass(frozen=True)
class Measured:
    """The measurements of one run.

    Attributes:
        seconds: The wall time of the whole process.
        cpu_seconds: The user and system time of the process and of all children for which it waited, on all cores.
        peak_bytes: The peak sum of the resident memory of the process tree, with shared pages counted for each process.
            0 if not requested.
        peak_shared_bytes: The same sum with shared pages counted once (PSS). 0 if not requested.
        output: The standard output.
    """

    seconds: float
    cpu_seconds: float
    peak_bytes: int
    peak_shared_bytes: int
    output: str


def rest() -> None:
    """Waits until this process is idle, so that read-ahead by one reader does not affect the next measurement."""
    while True:
        before = time.process_time()
        time.sleep(0.2)
        if time.process_time() - before < 0.02:
            return


def measure(command: Sequence[str], *, with_memory: bool = True, with_shared: bool = False) -> Measured:
    """Runs a command until it exits.

    Args:
        command: The program and its arguments.
        with_memory: Whether to measure the memory, which takes 5 % of a core.
        with_shared: Whether to measure the proportional memory too, which takes milliseconds of kernel time per sample.

    Raises:
        RuntimeError: The command failed.
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # The first run compiles the modules, as an installation does.
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=ROOT
    )
    peaks = {"rss": 0, "pss": 0}
    sampler = threading.Thread(target=_sample, args=(process.pid, peaks, with_shared), daemon=True)
    if with_memory:
        sampler.start()
    output, errors = process.communicate()
    seconds = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if with_memory:
        sampler.join()
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with exit code {process.returncode}:\n{errors[-2000:]}")
    cpu_seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Measured(seconds, cpu_seconds, peaks["rss"], peaks["pss"], output)


def _sample(pid: int, peaks: dict[str, int], with_shared: bool) -> None:
    try:
        process = psutil.Process(pid)
        while process.status() != psutil.STATUS_ZOMBIE:
            tree = (process, *process.children(recursive=True))
            peaks["rss"] = max(peaks["rss"], sum(_memory(item, "rss") for item in tree))
            if with_shared:
                peaks["pss"] = max(peaks["pss"], sum(_memory(entry, "pss") for entry in tree))
            time.sleep(_SAMPLE_SECONDS)
    except psutil.NoSuchProcess:
        return


def _memory(process: psutil.Process, kind: str) -> int:
    try:
        return getattr(process.memory_full_info() if kind == "pss" else process.memory_info(), kind)
    except (psutil.NoSuchProcess, psutil.AccessDenied, FileNotFoundError):  # The process has just ended.
        return 0
