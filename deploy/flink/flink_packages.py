"""Downloads Flink and Beam's Flink job server to a cache folder outside the checkout."""

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

# A hard link to `JAR`. Beam uploads the job server (157 MB) with each job, unless the path contains `gradle/wrapper`. The
# upload is not needed, because the job server is on the class path of this cluster.
STAYING_JAR = CACHE / "gradle" / "wrapper" / JAR.name

_POM = pathlib.Path(__file__).resolve().parent / "job_server" / "pom.xml"


class ClusterError(Exception):
    """An error that is shown to the user as a single line."""


def java() -> str:
    """Returns the Java command that Beam would use."""
    home = os.environ.get("JAVA_HOME")
    return f"{home}/bin/java" if home else "java"


def missing_tools() -> list[str]:
    """Returns the names of the required tools that are not installed."""
    return [tool for tool in (java(), *(() if JAR.exists() else ("mvn",))) if not shutil.which(tool)]


def fetch() -> None:
    """Downloads Flink and the job server into the cache. A failed download leaves no incomplete package in the cache.

    Raises:
        ClusterError: A tool is missing or failed.
    """
    for tool in missing_tools():
        raise ClusterError(
            f"{tool} was not found. Install Java 11 or later, and Maven (mvn), and add them to the PATH."
        )
    if not LIBRARIES.exists():
        with _building() as folder:
            print(f"Downloading Flink {FLINK} (230 MB) to {LIBRARIES}", file=sys.stderr)
            package = f"apache-flink-libraries=={FLINK}"
            call([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary=:all:", "-d", folder, package])
            (archive,) = folder.glob("*.tar.gz")
            with tarfile.open(archive) as tar:
                tar.extraction_filter = getattr(tarfile, "data_filter", None)  # Available since Python 3.11.4.
                tar.extractall(folder)
            archive.unlink()
            (unpacked,) = folder.iterdir()
            _put(unpacked / "deps", LIBRARIES)
    if not JAR.exists():
        with _building() as folder:
            print(f"Building the Flink job server of Beam {JOB_SERVER} (157 MB): {JAR}", file=sys.stderr)
            shutil.copy(_POM, folder)
            call(["mvn", "-q", "-B", "-f", folder / "pom.xml", "package"])
            _put(folder / "target" / JAR.name, JAR)
    STAYING_JAR.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.link(JAR, STAYING_JAR)


@contextlib.contextmanager
def _building() -> Iterator[pathlib.Path]:
    """Context manager for a temporary folder in the cache, whose contents can be published with a single rename."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="building-") as folder:
        yield pathlib.Path(folder)


def _put(new_path: pathlib.Path, target: pathlib.Path) -> None:
    """Renames a file or folder to its final path, unless another process has already created the final path."""
    try:
        os.rename(new_path, target)
    except OSError:
        if not target.exists():
            raise


def call(command: list[Any], **options: Any) -> str:
    """Runs a command and returns its standard output.

    Raises:
        ClusterError: The command was not found or failed.
    """
    text = " ".join(map(str, command))
    try:
        return subprocess.run(list(map(str, command)), check=True, text=True, stdout=subprocess.PIPE, **options).stdout
    except FileNotFoundError:
        raise ClusterError(f"{command[0]} was not found. Install it, and add it to the PATH.") from None
    except subprocess.CalledProcessError as error:
        raise ClusterError(f"`{text}` failed with exit code {error.returncode}") from None
