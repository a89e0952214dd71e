"""Builds container images from Debian packages to replace the base images in deploy/ if no image registry can be
reached.

The program buildah stores the images in the user's cache directory and needs no daemon.
"""

import contextlib
import functools
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
from typing import Iterator

import engines
from dockerfiles import ROOT

CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "recordmill"
STORE = CACHE / "images"
_TOOLS = ("buildah", "mmdebstrap", "go")
_BEAM = json.loads((ROOT / "deploy" / "base_images.json").read_text())["BEAM_IMAGE"]["image"].rpartition(":")[2]
_FLINK = engines.flink_cluster().LIBRARIES
_BUILDAH = ("buildah", f"--root={STORE / 'root'}", f"--runroot={STORE / 'run'}")
_DOCKERFILE = """\
FROM localhost/debian AS python
RUN rm -f /usr/lib/python3*/EXTERNALLY-MANAGED && ln -sf python3 /usr/bin/python
FROM python AS beam
COPY container /opt/apache/beam/boot
FROM python AS launcher
RUN mkdir -p /opt/google/dataflow && touch /opt/google/dataflow/python_template_launcher
FROM python AS maven
RUN apt-get update -qq && apt-get install -qq -y --no-install-recommends openjdk-17-jre-headless maven > /dev/null
FROM maven AS flink
RUN mkdir -p /opt/java && cp -rL /usr/lib/jvm/java-17-openjdk-* /opt/java/openjdk
COPY flink /opt/flink
FROM python AS tensorflow
RUN pip install --quiet --no-cache-dir tensorflow=={tensorflow}
"""


ENABLING_VARIABLE = "RECORDMILL_TEST_IMAGES"


def missing() -> str:
    """Returns the reason why images can't be built on this machine, or an empty string."""
    if ENABLING_VARIABLE not in os.environ:
        return "`make test-images` builds the images, which takes some minutes each the first time"
    for tool in _TOOLS:
        if not shutil.which(tool):
            return f"{tool}, which builds images without a daemon, is not installed"
    if os.geteuid():
        return "only root can build images without a daemon"
    return "" if _FLINK.exists() else "deploy/flink/cluster.py has not fetched Flink"


def buildah(*arguments: str | os.PathLike) -> str:
    """Runs buildah and returns its output. Raises RuntimeError with the last lines of the output if buildah fails."""
    command = [*_BUILDAH, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return done.stdout


def build(dockerfile: pathlib.Path, context: pathlib.Path, tag: str, *options: str) -> None:
    """Builds a container image that uses the pip configuration and the certificates of this machine."""
    config = STORE / "pip.conf"
    certificate = os.environ.get("PIP_CERT")
    config.write_text("[global]\ntimeout = 180\n" + ("cert = /etc/pip-certificates.pem\n" if certificate else ""))
    volumes = [f"--volume={config}:/etc/pip.conf:ro", *([f"--volume={certificate}:/etc/pip-certificates.pem:ro"] if certificate else [])]
    trusted = pathlib.Path("/etc/ssl/certs/java/cacerts")
    if tag.startswith("recordmill-flink") and trusted.exists():
        volumes.append(f"--volume={trusted}:{trusted}:ro")
    buildah("build", "--isolation=chroot", "--layers", "--pull=never", f"--file={dockerfile}", f"--tag=localhost/{tag}", *volumes, *options, context)


@functools.cache
def base(name: str) -> str:
    """Builds a replacement for a base image such as `PYTHON_IMAGE` and returns the name of the new image."""
    stage = name.removesuffix("_IMAGE").lower()
    STORE.mkdir(parents=True, exist_ok=True)
    if "localhost/debian" not in buildah("images", "--format={{.Name}}"):
        _import_debian()
    constraints = (ROOT / "deploy" / "constraints.txt").read_text().splitlines()
    (tensorflow,) = (line.partition("==")[2] for line in constraints if line.startswith("tensorflow=="))
    with tempfile.TemporaryDirectory(dir=STORE) as folder:
        context = pathlib.Path(folder)
        (context / "Dockerfile").write_text(_DOCKERFILE.format(tensorflow=tensorflow))
        if stage == "beam":
            package = f"github.com/apache/beam/sdks/v2/python/container@v{_BEAM}"
            subprocess.run(["go", "install", package], check=True, env={**os.environ, "GOBIN": folder})
        if stage == "flink":
            shutil.copytree(_FLINK, context / "flink")
        build(context / "Dockerfile", context, f"standin-{stage}", f"--target={stage}")
    return f"localhost/standin-{stage}"


def _import_debian() -> None:
    with tempfile.TemporaryDirectory(dir=STORE) as folder:
        archive = f"{folder}/debian.tar"
        packages = "--include=python3.11,python3-pip,ca-certificates"
        subprocess.run(["mmdebstrap", "--quiet", "--variant=minbase", packages, "bookworm", archive], check=True)
        container = buildah("from", "scratch").strip()
        buildah("add", "--quiet", container, archive, "/")
        buildah("commit", "--quiet", "--rm", container, "localhost/debian")


def run(tag: str, *command: str, data: pathlib.Path | None = None) -> str:
    """Returns the output of a command in a new container, in which the directory `data` is mounted as /data."""
    with container(tag) as name:
        return buildah(*_run(name, data), *command)


@contextlib.contextmanager
def running(tag: str, *command: str, data: pathlib.Path, log: pathlib.Path) -> Iterator[None]:
    """Context manager that runs a command in the background in a container, and kills the command at exit."""
    with container(tag) as name, open(log, "wb") as file:
        # A separate process namespace ends with its first process, including all sessions that were created in it.
        namespace = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
        process = subprocess.Popen([*namespace, *_BUILDAH, *map(str, _run(name, data)), *command], stdout=file, stderr=file)
        try:
            yield
        finally:
            process.kill()
            process.wait()


@contextlib.contextmanager
def container(tag: str) -> Iterator[str]:
    """Context manager that creates a container from an image and yields its name."""
    name = buildah("from", "--pull-never", f"localhost/{tag}").strip()
    try:
        yield name
    finally:
        buildah("rm", name)


def _run(container: str, data: pathlib.Path | None) -> list[str | os.PathLike]:
    volumes = [f"--volume={data}:/data"] if data else []
    return ["run", "--isolation=chroot", "--hostname=localhost", *volumes, container, "--"]
