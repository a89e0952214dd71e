"""Beam's other engines for the tests: a Flink cluster of `deploy/flink`, and Prism built from its source.

    python tests/engines.py

brings into the cache what they need and says how long that took, so that it is in no test's time.
"""

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import os
import pathlib
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
from forked_python import ForkedPython
from paused_stages import GATES
from made_images import encode, noise, write_class_folders, write_files
from tf_input import dataset_format

ROOT = pathlib.Path(__file__).parent.parent
FLINK = ROOT / "deploy" / "flink"

# A program that lives for seconds spends most of them on code that is never fast enough for Java's second compiler, and on a look through
# the classes of well-known libraries.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"

# Beam does not ask pip what is installed here, half a second each time.
QUICK_SUBMISSION = "--experiments=disable_logging_submission_environment"

# Of every run that is compared, whatever the engine.
OPTIONS = ("--name=made", "--num_shards=7", "--max_bad_fraction=0.1")


def write_source(folder: pathlib.Path, num_images: int) -> pathlib.Path:
    """Class folders with something of everything: what passes unchanged, what is spooled, and what is refused."""
    write_class_folders(folder, {label: num_images // 3 for label in ("ant", "bee", "cow")}, height=48, width=64)
    rotated = Image.Exif()
    rotated[0x0112] = 6
    spooled = {f"ant/turned{seed}.jpg": encode(noise(seed, 60, 80), "JPEG", exif=rotated) for seed in range(20)}
    spooled |= {f"bee/flat{seed}.bmp": encode(noise(seed, 40, 40), "BMP") for seed in range(20)}
    return write_files(folder, {**spooled, "cow/cut.jpg": encode(noise(), "JPEG")[:200], "cow/page.jpg": b"<!DOCTYPE html>"})


# Where `paused_stages` is found too.
TEST_PATH = f"{ROOT}{os.pathsep}{ROOT / 'tests'}"


def start_prepare(source: pathlib.Path, output: pathlib.Path, *options: str, **how: Any) -> ForkedPython:
    """`recordmill prepare` as a user starts it, with `OPTIONS` where others are not given; `how` goes to `start_recordmill`."""
    given = {option.partition("=")[0] for option in options}
    defaults = [item for item in OPTIONS if item.partition("=")[0] not in given]
    return start_recordmill("prepare", f"--input={source}", f"--output={output}", *defaults, *options, **how)


def start_recordmill(*arguments: str, gates: pathlib.Path | None = None, before: str = "") -> ForkedPython:
    """`recordmill …` as a user starts it, the leader of a session.

    With gates it can be held where its workers are in its own processes. Python code that runs before it may make its waiting shorter.
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
    """The options of a run in this process whose two worker processes are forked off one that has imported Beam: each would take seconds."""
    python = forked_python.write_command(folder / "python", preloaded=forked_python.BEAM)
    patch.setattr(sys, "executable", str(python))
    return ["--direct_num_workers=2", "--direct_running_mode=multi_processing"]


def prepare_here(source: pathlib.Path, output: pathlib.Path, *options: str) -> None:
    """The same on the local runner, in this process."""
    assert main(["prepare", "--input", str(source), "--output", str(output), *OPTIONS, *options]) == 0


def finish(run: ForkedPython, seconds: float = 600) -> str:
    """What a run printed that ended well; it ends in any case."""
    try:
        printed, _ = run.communicate(timeout=seconds)
    finally:
        run.kill()
        run.wait()
    assert run.returncode == 0, printed[-3000:]
    return printed


def digest(directory: pathlib.Path) -> dict[str, str]:
    """sha256 of every file of a dataset but run.json."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != dataset_format.RUN
    }


def flink_cluster() -> ModuleType:
    """The module `deploy/flink/cluster.py`."""
    return _load(FLINK / "cluster.py", "flink_cluster")


def flink_exporter() -> ModuleType:
    """The module `deploy/flink/monitoring/exporter.py`."""
    return _load(FLINK / "monitoring" / "exporter.py", "flink_exporter")


def gates_of(folder: pathlib.Path) -> pathlib.Path:
    """Where the workers of the cluster in a folder can be held, in runs with `--beam_plugin=paused_stages`."""
    return folder / "gates"


def cluster_command(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    """`python deploy/flink/cluster.py …` as a user types it."""
    command = [sys.executable, str(FLINK / "cluster.py"), *arguments]
    variables = {**os.environ, "PYTHONPATH": TEST_PATH, **environment}
    return subprocess.run(command, env=variables, capture_output=True, text=True)


@contextlib.contextmanager
def running_flink(folder: pathlib.Path) -> Iterator[Any]:
    """A cluster of `deploy/flink`, up on free ports; down at the end, whatever happened."""
    environment = pytest.MonkeyPatch()
    environment.setenv("PYTHONPATH", TEST_PATH)  # of the workers, those of a TaskManager that a test starts too
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
    """The command lines of whatever the cluster in a folder has started."""
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
    """By a name of its own: other folders of `deploy` have modules of the same name."""
    if name not in sys.modules:
        sys.path.insert(0, str(path.parent))  # for what it imports from its own folder
        try:
            spec = importlib.util.spec_from_file_location(name, path)
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            sys.modules[name] = module
        finally:
            sys.path.remove(str(path.parent))
    return sys.modules[name]


def prism() -> pathlib.Path:
    """The Prism of the installed Beam's version, built where the cache has none yet."""
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
    """What cannot be had is said; the tests of that engine fail, or say why they do not run."""
    packages = _load(FLINK / "flink_packages.py", "flink_packages")
    missing = {"Flink": packages.missing_tools(), "Prism": [] if has_go() else ["go"]}
    start = time.monotonic()
    with ThreadPoolExecutor() as pool:  # the one waits for the network mostly, the other for the compiler
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
