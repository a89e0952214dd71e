"""Flink and Beam's Flink job server, from packages: fetched once, into a cache outside the checkout."""

import contextlib
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
from typing import Any, Iterator

FLINK = "1.19.3"
JOB_SERVER = "2.62.0"
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "recordmill"
LIBRARIES = CACHE / f"flink-{FLINK}"
JAR = CACHE / f"flink-job-server-{JOB_SERVER}.jar"

# The same file. Beam's job server sends itself along with each job, 157 MB, unless it lies in a folder of this name: for a cluster that has it.
STAYING_JAR = CACHE / "gradle" / "wrapper" / JAR.name

_POM = pathlib.Path(__file__).resolve().parent / "job_server" / "pom.xml"


class ClusterError(Exception):
    """One line for the user."""


def java() -> str:
    """As Beam looks for it."""
    home = os.environ.get("JAVA_HOME")
    return f"{home}/bin/java" if home else "java"


def missing_tools() -> list[str]:
    """What a fetch and a cluster need and this machine lacks."""
    return [tool for tool in (java(), *(() if JAR.exists() else ("mvn",))) if not shutil.which(tool)]


def fetch() -> None:
    """Brings both into the cache, each whole or not at all.

    Raises:
        ClusterError: A tool is missing or failed.
    """
    for tool in missing_tools():
        raise ClusterError(f"{tool} was not found; expected Java 11 or later, and Maven as mvn, on the PATH")
    if not LIBRARIES.exists():
        with _building() as folder:
            print(f"Fetching Flink {FLINK} (230 MB) into {LIBRARIES}", file=sys.stderr)
            package = f"apache-flink-libraries=={FLINK}"
            call([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary=:all:", "-d", folder, package])
            (archive,) = folder.glob("*.tar.gz")
            with tarfile.open(archive) as tar:
                tar.extraction_filter = getattr(tarfile, "data_filter", None)  # since Python 3.11.4
                tar.extractall(folder)
            archive.unlink()
            (unpacked,) = folder.iterdir()
            _put(unpacked / "deps", LIBRARIES)
    if not JAR.exists():
        with _building() as folder:
            print(f"Building Beam's Flink job server {JOB_SERVER} (157 MB) as {JAR}", file=sys.stderr)
            shutil.copy(_POM, folder)
            call(["mvn", "-q", "-B", "-f", folder / "pom.xml", "package"])
            _put(folder / "target" / JAR.name, JAR)
    STAYING_JAR.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.link(JAR, STAYING_JAR)


@contextlib.contextmanager
def _building() -> Iterator[pathlib.Path]:
    """Beside what it becomes, so that this takes one rename."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="building-") as folder:
        yield pathlib.Path(folder)


def _put(made: pathlib.Path, place: pathlib.Path) -> None:
    """Who made it at the same time may have been first."""
    try:
        os.rename(made, place)
    except OSError:
        if not place.exists():
            raise


def call(command: list[Any], **options: Any) -> str:
    """Runs a command and returns what it printed.

    Raises:
        ClusterError: It could not be run, or failed.
    """
    text = " ".join(map(str, command))
    try:
        return subprocess.run(list(map(str, command)), check=True, text=True, stdout=subprocess.PIPE, **options).stdout
    except FileNotFoundError:
        raise ClusterError(f"{command[0]} was not found; expected it on the PATH") from None
    except subprocess.CalledProcessError as error:
        raise ClusterError(f"`{text}` failed with exit code {error.returncode}") from None
