"""Runs `recordmill prepare` on every engine and compares the output bytes, the time and the memory.

Flink runs as a real cluster on this machine (deploy/flink). For Dataflow, the benchmark submits a job and executes the
staged graph of the job on this machine, with an emulator as the object store. Each row of the table is one run. The
output of each run is compared with the output of the first run. The table shows the peak memory of the largest Python
worker, and of the largest process that is not a Python worker.

Usage: python -m benchmarks.engines_benchmark --input PHOTOGRAPHS [--copies 16] [--prism PRISM]
"""

import argparse
import contextlib
import hashlib
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any, Callable, Iterator, NamedTuple

import psutil

from beam_pipelines.parallel.progress import read_counts
from benchmarks.measure import ROOT

sys.path.insert(0, str(ROOT / "tests"))

from dataflow_standin import dataflow_standin  # noqa: E402
from engines import flink_cluster  # noqa: E402
from object_stores import store_server  # noqa: E402

_WORKER_MARKS = ("boot.py", "sdk_worker_main", "worker_processes")


class RunResult(NamedTuple):
    """The result of one run.

    Attributes:
        seconds: The wall time of the command.
        worker_bytes: The peak resident memory of the largest Python worker.
        other_bytes: The peak resident memory of the largest other process.
        digest: A SHA-256 over the names and the SHA-256 digests of all files except run.json.
    """

    seconds: float
    worker_bytes: int
    other_bytes: int
    digest: str


def digest(files: dict[str, bytes]) -> str:
    lines = [f"{name} {hashlib.sha256(data).hexdigest()}\n" for name, data in sorted(files.items()) if name != "run.json"]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def read_folder(folder: pathlib.Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def link_copies(source: pathlib.Path, folder: pathlib.Path, copies: int) -> None:
    """Creates several hard links to each image, because hard links need no disk space."""
    for path in source.rglob("*.*"):
        for copy in range(copies):
            link = folder / path.parent.name / f"{path.stem}-{copy}{path.suffix}"
            link.parent.mkdir(parents=True, exist_ok=True)
            os.link(path.resolve(), link)


class Peaks(threading.Thread):
    """Measures the memory of the given processes and all their descendants at short intervals."""

    def __init__(self, roots: Callable[[], list[int]]) -> None:
        super().__init__(daemon=True)
        self._roots, self._stop_watching = roots, threading.Event()
        self.worker = self.other = 0

    def run(self) -> None:
        while not self._stop_watching.wait(0.1):
            for pid in self._roots():
                with contextlib.suppress(psutil.Error):
                    root = psutil.Process(pid)
                    for process in (root, *root.children(recursive=True)):
                        self._note(process)

    def _note(self, process: psutil.Process) -> None:
        with contextlib.suppress(psutil.Error):
            resident, command = process.memory_info().rss, " ".join(process.cmdline())
            if any(mark in command for mark in _WORKER_MARKS):
                self.worker = max(self.worker, resident)
            else:
                self.other = max(self.other, resident)

    def stop(self) -> None:
        self._stop_watching.set()
        self.join()


def prepare(
    source: str,
    output: str,
    options: list[str],
    *,
    environment: dict[str, str] | None = None,
    others: Callable[[], list[int]] = list,
    disturb: Callable[[subprocess.Popen], None] = lambda process: None,
) -> tuple[float, Peaks]:
    """Runs `recordmill prepare` and calls the function `disturb` during the run."""
    command = ["prepare", f"--input={source}", f"--output={output}", "--name=made", "--max_bad_fraction=0.1", *options]
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "beam_pipelines", *command],
        env={**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    peaks = Peaks(lambda: [process.pid, *others()])
    peaks.start()
    disturb(process)
    _, errors = process.communicate()
    seconds = time.perf_counter() - start
    peaks.stop()
    if process.returncode:
        raise RuntimeError(f"exit code {process.returncode}: {errors.decode()[-2000:]}")
    return seconds, peaks


def run_on_disk(source: pathlib.Path, options: list[str], **how: Callable) -> RunResult:
    with tempfile.TemporaryDirectory() as folder:
        output = pathlib.Path(folder, "out")
        if "disturb" in how:
            how["disturb"] = how["disturb"](output)
        seconds, peaks = prepare(str(source), str(output), options, **how)
        return RunResult(seconds, peaks.worker, peaks.other, digest(read_folder(output)))


def kill_task_manager(cluster: Any, output: pathlib.Path) -> Callable[[subprocess.Popen], None]:
    """Returns a function that kills a TaskManager after the first images have been written."""

    def kill(process: subprocess.Popen) -> None:
        while not any(read_counts(str(path)).written for path in output.parent.glob(f"{output.name}.incomplete/*/progress")):
            if process.poll() is not None:
                if process.returncode:
                    return  # `prepare` reports the error.
                raise RuntimeError("the run ended before a TaskManager was killed; use more images or more --copies")
            time.sleep(0.05)
        cluster.kill("task-manager-1")
        cluster.start_task_manager("task-manager-3")

    return kill


def run_on_flink(source: pathlib.Path) -> Iterator[tuple[str, RunResult]]:
    with tempfile.TemporaryDirectory(prefix="flink-") as folder:
        cluster = flink_cluster().Cluster(pathlib.Path(folder), 0)
        cluster.up()
        try:
            how = {"others": lambda: [*cluster.process_ids().values(), *cluster.worker_ids()]}
            yield "Flink, 2 TaskManagers", run_on_disk(source, cluster.options, **how)
            how["disturb"] = lambda output: kill_task_manager(cluster, output)
            yield "Flink, 2 TaskManagers, one killed", run_on_disk(source, cluster.options, **how)
        finally:
            cluster.down()


def run_staged_graph(source: pathlib.Path) -> RunResult:
    """Submits a Dataflow job and executes its staged graph. The input and the output are in an object store."""
    from apache_beam.io.filesystems import FileSystems
    from apache_beam.options.pipeline_options import PipelineOptions

    from beam_pipelines.storage.files import files_at

    with store_server("gs") as store, dataflow_standin() as dataflow:
        os.environ.update(store.environment)
        FileSystems.set_options(PipelineOptions(["--no_auth"]))
        environment = {**store.environment, **dataflow.environment}
        bucket = store.make_bucket()
        objects = files_at(bucket)
        for path in source.rglob("*.*"):
            objects.write(f"{bucket}/in/{path.relative_to(source)}", path.read_bytes())

        def execute(job: dict) -> str:
            graph = job["environment"]["sdkPipelineOptions"]["options"]["pipelineUrl"]
            program = [sys.executable, str(ROOT / "tests" / "dataflow_standin.py"), graph]
            subprocess.run(program, check=True, env={**os.environ, **environment, "PYTHONPATH": str(ROOT)}, stdout=-3)
            return "JOB_STATE_DONE"

        dataflow.work = execute
        options = [*dataflow.flags, f"--temp_location={bucket}/tmp", "--sdk_container_image=made", "--no_auth", "--wait"]
        seconds, peaks = prepare(f"{bucket}/in", f"{bucket}/out", options, environment=environment)
        actual = {name: objects.read(f"{bucket}/out/{name}") for name, _ in objects.list(f"{bucket}/out")}
        return RunResult(seconds, peaks.worker, peaks.other, digest(actual))


def run_all(source: pathlib.Path, prism: str | None) -> Iterator[tuple[str, RunResult | str]]:
    yield "DirectRunner", run_on_disk(source, [])
    two = ["--direct_running_mode=multi_processing", "--direct_num_workers=2"]
    yield "DirectRunner, 2 processes", run_on_disk(source, two)
    if prism:
        yield "Prism", run_on_disk(source, ["--runner=PrismRunner", f"--prism_location={prism}"])
    else:
        yield "Prism", "not run: no --prism"
    yield from run_on_flink(source)
    yield "Dataflow's staged graph", run_staged_graph(source)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", type=pathlib.Path, required=True, help="Folder with class folders of images.")
    parser.add_argument("--copies", type=int, default=1, help="Number of names of each image. Default: 1.")
    parser.add_argument("--prism", help="Path of the Prism binary.")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *unused: sys.exit(1))
    with tempfile.TemporaryDirectory(dir=arguments.input.resolve().parent) as folder:
        link_copies(arguments.input, pathlib.Path(folder), arguments.copies)
        print(f"{'engine':<36} {'seconds':>8} {'worker MB':>10} {'other MB':>9}  sha256 of the dataset")
        expected = ""
        for name, ran in run_all(pathlib.Path(folder), arguments.prism):
            if isinstance(ran, str):
                print(f"{name:<36} {ran}", flush=True)
                continue
            expected = expected or ran.digest
            same = "equal" if ran.digest == expected else "DIFFERENT"
            memory = f"{ran.worker_bytes / 1e6:>10,.0f} {ran.other_bytes / 1e6:>9,.0f}"
            print(f"{name:<36} {ran.seconds:>8.1f} {memory}  {ran.digest[:16]}… {same}", flush=True)


if __name__ == "__main__":
    main()
