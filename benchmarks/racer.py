"""Runs one reader of a benchmark in a separate process, which is suspended while the other reader is measured.

The reader process first prints the shape of its images. For each line of its standard input, the process then measures
and prints its speed.

Usage: python -m benchmarks.racer CASE SIDE SECONDS BATCHES INPUTS
"""

import contextlib
import dataclasses
import importlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from typing import Any, Iterator

from benchmarks.measure import ROOT
from benchmarks.read_inputs import Inputs

SIDES = ("ours", "rival")
_DRAIN = 0.25  # The duration of the warm-up, as a fraction of the measured seconds.


class Racer:
    """A handle that the main process uses to start, resume and suspend a reader process.

    Args:
        case: A key of `read_benchmark.RACES`.
        side: One of `SIDES`.
        inputs: The inputs to read.
        seconds: The duration of each measurement.
        batches: The minimum number of batches in each measurement.

    Attributes:
        first_seconds: The time until the first batch.
        shape: The shape of the images in the first batch.
    """

    def __init__(self, case: str, side: str, inputs: Inputs, seconds: float, batches: int) -> None:
        given = json.dumps({**dataclasses.asdict(inputs), "scratch": str(inputs.scratch)})
        command = [sys.executable, "-m", __name__, case, side, str(seconds), str(batches), given]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process = subprocess.Popen(command, **pipes, env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=ROOT)
        self._id, self.first_seconds, *self.shape = self._answer()
        os.kill(self._id, signal.SIGSTOP)

    def rates(self) -> tuple[float, float]:
        """Measures the reader once more and returns images per second of wall time and of CPU time."""
        os.kill(self._id, signal.SIGCONT)
        print(file=self._process.stdin, flush=True)
        rates = self._answer()
        os.kill(self._id, signal.SIGSTOP)
        return tuple(rates)

    def _answer(self) -> list[Any]:
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._process.args[3:5]} has ended with exit code {self._process.wait()}")
        return json.loads(line)

    def __enter__(self) -> "Racer":
        return self

    def __exit__(self, *unused: Any) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._id, signal.SIGKILL)
        self._process.communicate()


def measure(batches: Iterator[tuple[Any, Any]], seconds: float, num_batches: int) -> tuple[float, float]:
    """Reads at least `num_batches` batches for at least `seconds`. Returns images per second of wall and CPU time."""
    num_images, wall, cpu = 0, time.perf_counter(), time.process_time()
    while num_batches > 0 or time.perf_counter() - wall < seconds:
        num_images += int(next(batches)[0].shape[0])
        num_batches -= 1
    return num_images / (time.perf_counter() - wall), num_images / (time.process_time() - cpu)


def main(case: str, side: str, seconds: str, num_batches: str, inputs: str) -> None:
    from benchmarks import read_benchmark

    race, given = read_benchmark.RACES[case], json.loads(inputs)
    start = getattr(race, side)(Inputs(**{**given, "scratch": pathlib.Path(given["scratch"])}), race.batch_size)
    importlib.import_module("tf_input.dataset")  # Excludes the import of TensorFlow from the time of the first batch.
    begin = time.perf_counter()
    batches = start()
    images, _ = next(batches)
    print(json.dumps([os.getpid(), time.perf_counter() - begin, *images.shape[1:]]), flush=True)
    for _ in sys.stdin:
        measure(batches, _DRAIN * float(seconds), 1)
        print(json.dumps(measure(batches, float(seconds), int(num_batches))), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
