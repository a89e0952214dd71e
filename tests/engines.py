"""Provides two Beam runners for tests: a Flink cluster, started as in `deploy/flink`, and Prism, built from source.

The command `python tests/engines.py` downloads Flink and builds Prism in advance, so that tests do not have to wait.
"""

import contextlib
import gzip
import hashlib
import importlib.metadata
import importlib.util
import io
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any, Iterator

import pytest
from PIL import Image

import forked_python
from beam_pipelines.__main__ import main
from beam_pipelines.tfrecord.record_writer import RecordWriter
from forked_python import ForkedPython
from paused_stages import GATES
from made_images import encode, noise, write_class_folders, write_files
from tf_input import dataset_format

ROOT = pathlib.Path(__file__).parent.parent
FLINK = ROOT / "deploy" / "flink"

# Options that shorten the start of Java programs.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"

# Prevents Beam from running `pip freeze` for each submission, which takes half a second.
QUICK_SUBMISSION = "--experiments=disable_logging_submission_environment"

# Options of all runs that tests compare across runners.
OPTIONS = ("--name=made", "--num_shards=7", "--max_bad_fraction=0.1")


def write_source(folder: pathlib.Path, num_images: int) -> pathlib.Path:
    """Writes class folders with valid images, images that `prepare` must re-encode, and invalid images."""
    write_class_folders(folder, {label: num_images // 3 for label in ("ant", "bee", "cow")}, height=48, width=64)
    rotated = Image.Exif()
    rotated[0x0112] = 6
    spooled = {f"ant/rotated{seed}.jpg": encode(noise(seed, 60, 80), "JPEG", exif=rotated) for seed in range(20)}
    spooled |= {f"bee/flat{seed}.bmp": encode(noise(seed, 40, 40), "BMP") for seed in range(20)}
    return write_files(folder, {**spooled, "cow/cut.jpg": encode(noise(), "JPEG")[:200], "cow/page.jpg": b"<!DOCTYPE html>"})


RECORDS = ("--source=tfrecord", "--records=verbatim", "--splits=train=0.7,test=0.3")


def write_record_files(folder: pathlib.Path) -> pathlib.Path:
    """Writes a TFRecord file of 500 examples and random records, and a compressed copy. `RECORDS` lists options to prepare
    them."""
    from made_records import example  # imports TensorFlow, which most users of this module do not need

    randomness, written = random.Random(0), io.BytesIO()
    writer = RecordWriter(written)
    for number in range(500):
        is_example = number < 100 or number % 2
        writer.write(example({"id": number}) if is_example else randomness.randbytes(randomness.choice((0, 10, 500))))
    writer.flush()
    return write_files(folder, {"a.tfrecord": written.getvalue(), "b.tfrecord.gz": gzip.compress(written.getvalue())})


# Python path that includes `paused_stages`.
TEST_PATH = f"{ROOT}{os.pathsep}{ROOT / 'tests'}"


def start_prepare(source: pathlib.Path, output: pathlib.Path, *options: str, **how: Any) -> ForkedPython:
    """Starts `recordmill prepare` with `OPTIONS` unless overridden. `how` is passed to `start_recordmill`."""
    given = {option.partition("=")[0] for option in options}
    defaults = [item for item in OPTIONS if item.partition("=")[0] not in given]
    return start_recordmill("prepare", f"--input={source}", f"--output={output}", *defaults, *options, **how)


def start_recordmill(*arguments: str, gates: pathlib.Path | None = None, before: str = "") -> ForkedPython:
    """Starts `recordmill` as the leader of a new process session.

    If the directory `gates` is given, workers wait for the lock files in this directory (see `paused_stages`). The
    Python code `before` runs before the command.
    """
    program = "paused_stages" if gates else "beam_pipelines"
    return ForkedPython(
        *(("-c", f"{before}\nimport runpy\nrunpy.run_module({program!r}, run_name='__main__')") if before else ("-m", program)),
        *arguments,
        env={**os.environ, "PYTHONPATH": TEST_PATH, **({GATES: str(gates)} if gates else {})},
        merged=True,
        leads=True,
        preloaded=forked_python.BEAM,
    )


def two_workers(patch: pytest.MonkeyPatch, folder: pathlib.Path) -> list[str]:
    """Returns options for two Beam worker processes, which are forked from a process that has imported Beam."""
    python = forked_python.write_command(folder / "python", preloaded=forked_python.BEAM)
    patch.setattr(sys, "executable", str(python))
    return ["--direct_num_workers=2", "--direct_running_mode=multi_processing"]


def prepare_here(source: pathlib.Path, output: pathlib.Path, *options: str) -> None:
    """Prepares a dataset in this process with the local runner and `OPTIONS`."""
    assert main(["prepare", "--input", str(source), "--output", str(output), *OPTIONS, *options]) == 0


def finish(run: ForkedPython, seconds: float = 600) -> str:
    """Waits for a run, checks that the run succeeds, and returns its output. The run is killed after `seconds`."""
    try:
        printed, _ = run.communicate(timeout=seconds)
    finally:
        run.kill()
        run.wait()
    assert run.returncode == 0, printed[-3000:]
    return printed


def digest(directory: pathlib.Path) -> dict[str, str]:
    """Returns the SHA-256 digest of each file in a dataset, except for run.json."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != dataset_format.RUN
    }


def flink_cluster() -> ModuleType:
    """Returns the module `deploy/flink/cluster.py`."""
    return _load(FLINK / "cluster.py", "flink_cluster")


def flink_exporter() -> ModuleType:
    """Returns the module `deploy/flink/monitoring/exporter.py`."""
    return _load(FLINK / "monitoring" / "exporter.py", "flink_exporter")


def gates_of(folder: pathlib.Path) -> pathlib.Path:
    """Returns the directory with the lock files that pause workers with `--beam_plugin=paused_stages`."""
    return folder / "gates"


def cluster_command(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    """Runs `python deploy/flink/cluster.py` with arguments."""
    command = [sys.executable, str(FLINK / "cluster.py"), *arguments]
    variables = {**os.environ, "PYTHONPATH": TEST_PATH, **environment}
    return subprocess.run(command, env=variables, capture_output=True, text=True)


@contextlib.contextmanager
def running_flink(folder: pathlib.Path) -> Iterator[Any]:
    """Context manager that starts a Flink cluster on free ports, and stops the cluster at exit."""
    environment = pytest.MonkeyPatch()
    environment.setenv("PYTHONPATH", TEST_PATH)  # also for workers of TaskManagers that tests start
    environment.setenv(GATES, str(gates_of(folder)))
    environment.setenv("JAVA_TOOL_OPTIONS", QUICK_JAVA)
    try:
        up = cluster_command("up", "--folder", str(folder), "--rest_port", "0")
        assert up.returncode == 0, up.stderr
        cluster = flink_cluster().Cluster(folder)
        assert re.findall(r"'(.*)'", up.stdout) == cluster.options
        yield cluster
    finally:
        environment.undo()
        assert cluster_command("down", "--folder", str(folder)).returncode == 0
        assert processes_of(folder) == []


def processes_of(folder: pathlib.Path) -> list[str]:
    """Returns the command lines of all processes that were started by the Flink cluster in the given directory."""
    actual = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if f"{folder}/" in line or f"{folder}\0" in line:
            actual.append(line)
    return actual


def _load(path: pathlib.Path, name: str) -> ModuleType:
    """Imports a file under a unique module name, because folders in `deploy` contain modules with the same name."""
    if name not in sys.modules:
        sys.path.insert(0, str(path.parent))  # the file imports modules of its own folder
        try:
            spec = importlib.util.spec_from_file_location(name, path)
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            sys.modules[name] = module
        finally:
            sys.path.remove(str(path.parent))
    return sys.modules[name]


def prism() -> pathlib.Path:
    """Returns the path of Prism for the installed version of Beam. Builds Prism if the binary is not cached."""
    version = importlib.metadata.version("apache-beam")
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "recordmill"
    binary = cache / f"prism-{version}"
    if not binary.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix="building-") as folder:
            package = f"github.com/apache/beam/sdks/v2/go/cmd/prism@v{version}"
            subprocess.run(["go", "install", package], env={**os.environ, "GOBIN": folder}, check=True)
            os.replace(pathlib.Path(folder, "prism"), binary)
    return binary


def has_go() -> bool:
    return shutil.which("go") is not None


def fetch_all() -> None:
    """Fetches Flink and builds Prism. Errors are only printed, because the tests report the same errors later."""
    packages = _load(FLINK / "flink_packages.py", "flink_packages")
    missing = {"Flink": packages.missing_tools(), "Prism": [] if has_go() else ["go"]}
    start = time.monotonic()
    with ThreadPoolExecutor() as pool:  # downloading waits for the network while Prism is compiled
        fetches = {name: pool.submit(fetch) for name, fetch in {"Flink": packages.fetch, "Prism": prism}.items() if not missing[name]}
    for name, fetched in fetches.items():
        if isinstance(error := fetched.exception(), (packages.ClusterError, subprocess.CalledProcessError)):
            print(f"{name}: {error}")
        else:
            fetched.result()
    without = "".join(f"; no {name} without {' and '.join(tools)}" for name, tools in missing.items() if tools)
    print(f"Flink and Prism: {time.monotonic() - start:.0f} s of download and build, before the tests{without}", flush=True)


if __name__ == "__main__":
    fetch_all()
