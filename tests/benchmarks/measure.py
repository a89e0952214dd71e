"""Runs a command as a whole process and says what it took: wall and CPU time, and the memory of its process tree at most."""

import dataclasses
import os
import pathlib
import resource
import subprocess
import threading
import time
from typing import Sequence

import psutil

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Looking at all processes takes milliseconds of a core, which what is measured needs.
_SAMPLE_SECONDS = 0.1


@dataclasses.dataclass(frozen=True)
class Measured:
    """One run.

    Attributes:
        seconds: Wall time of the whole process.
        cpu_seconds: User and system time of the process and of all its children that it has waited for, on all cores.
        peak_bytes: Largest sum of the resident memory of the process and its children; what they share counts twice. 0 where it was not
            asked for.
        peak_shared_bytes: The same with shared pages counted once (PSS); 0 where it was not asked for.
        output: Standard output.
    """

    seconds: float
    cpu_seconds: float
    peak_bytes: int
    peak_shared_bytes: int
    output: str


def rest() -> None:
    """Waits until this process is idle. What somebody still reads ahead would else be counted as the work of whose turn it is."""
    while True:
        before = time.process_time()
        time.sleep(0.2)
        if time.process_time() - before < 0.02:
            return


def measure(command: Sequence[str], *, with_memory: bool = True, with_shared: bool = False) -> Measured:
    """Runs a command to its end.

    Args:
        command: Program and arguments.
        with_memory: Measure the memory, which takes a twentieth of a core that the command may need.
        with_shared: Measure the proportional memory too, which costs the kernel milliseconds each time.

    Raises:
        RuntimeError: It failed.
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # a first run compiles our modules, as those of what is installed are
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
            peaks["rss"] = max(peaks["rss"], sum(_memory(one, "rss") for one in tree))
            if with_shared:
                peaks["pss"] = max(peaks["pss"], sum(_memory(one, "pss") for one in tree))
            time.sleep(_SAMPLE_SECONDS)
    except psutil.NoSuchProcess:
        return


def _memory(process: psutil.Process, kind: str) -> int:
    try:
        return getattr(process.memory_full_info() if kind == "pss" else process.memory_info(), kind)
    except (psutil.NoSuchProcess, psutil.AccessDenied, FileNotFoundError):  # it has just ended
        return 0
