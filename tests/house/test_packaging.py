"""The wheel and the sdist hold what they should, and run outside the checkout; setup.py serves Beam's --setup_file."""

import email.message
import email.parser
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from typing import NamedTuple

import numpy as np
import pytest
from packaging.requirements import Requirement
from PIL import Image

import forked_python

pytestmark = pytest.mark.slow

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
PACKAGES = ("beam_pipelines", "tf_input")
FILES = ("LICENSE", "README.md", "pyproject.toml", "setup.py")
NUM_IMAGES = 40

# `build` and `pip` work with what is installed: these tests need no network.
BUILD = (sys.executable, "-m", "build", "--no-isolation")
INSTALL = ("install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--ignore-installed")


class Distributions(NamedTuple):
    sdist: pathlib.Path
    wheel: pathlib.Path


class Environment(NamedTuple):
    """A virtual environment; `run` runs one of its programs, from a folder that holds nothing of ours."""

    root: pathlib.Path
    folder: pathlib.Path

    def run(self, program: str, *arguments: str | os.PathLike) -> str:
        return run(self.root / "bin" / program, *arguments, folder=self.folder)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A copy of the checkout to build in: building leaves files behind."""
    tree = tmp_path_factory.mktemp("tree")
    for name in FILES:
        shutil.copy(CHECKOUT / name, tree)
    for name in (*PACKAGES, "tests"):
        shutil.copytree(CHECKOUT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__", "testdata"))
    return tree


@pytest.fixture(scope="module")
def distributions(tree: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    """An sdist, and a wheel that was built from it."""
    folder = tmp_path_factory.mktemp("distributions")
    run(*BUILD, "--outdir", folder, tree, folder=folder)
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return Distributions(sdist, wheel)


@pytest.fixture(scope="module")
def environment(distributions: Distributions, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """A new virtual environment with the wheel in it; what it depends on is the running environment's. The tests of Dataflow install an sdist."""
    root = tmp_path_factory.mktemp("environment")
    venv.create(root, symlinks=True)
    python = root / "bin" / "python"
    paths = sysconfig.get_paths(vars={"base": str(root), "platbase": str(root)})
    dependencies = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    pathlib.Path(paths["purelib"], "dependencies.pth").write_text("\n".join(dependencies) + "\n")
    run(sys.executable, "-m", "pip", "--python", python, *INSTALL, distributions.wheel, folder=root)
    return Environment(root, tmp_path_factory.mktemp("elsewhere"))


@pytest.fixture(scope="module")
def metadata(distributions: Distributions) -> email.message.Message:
    with zipfile.ZipFile(distributions.wheel) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        return email.parser.BytesParser().parsebytes(wheel.read(name))


def test_wheel_holds_both_packages_whole_and_nothing_else(distributions: Distributions, tree: pathlib.Path) -> None:
    with zipfile.ZipFile(distributions.wheel) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert "beam_pipelines/sources/__init__.py" in names
    assert names == package_files(tree)


def test_sdist_holds_what_a_wheel_is_built_from(distributions: Distributions, tree: pathlib.Path) -> None:
    assert {*FILES, *package_files(tree)} - sdist_names(distributions.sdist) == set()


def test_a_trainer_gets_tensorflow_and_no_beam(metadata: email.message.Message) -> None:
    requirements = [Requirement(line) for line in metadata.get_all("Requires-Dist")]
    assert {requirement.name for requirement in requirements if requirement.marker is None} == {"google-crc32c", "numpy", "tensorflow"}


@pytest.mark.parametrize(
    ("extra", "package"),
    [
        ("beam", "apache-beam"),
        ("gcp", "apache-beam[gcp]"),
        ("remote", "obstore"),
        ("transform", "tensorflow-transform"),
        ("demo", "scikit-learn"),
        ("test", "pytest"),
    ],
)
def test_extra_brings_its_package(metadata: email.message.Message, extra: str, package: str) -> None:
    wanted = Requirement(package)
    assert extra in metadata.get_all("Provides-Extra")
    assert any(
        (found.name, found.extras) == (wanted.name, wanted.extras) and found.marker.evaluate({"extra": extra})
        for found in map(Requirement, metadata.get_all("Requires-Dist"))
        if found.marker
    )


def test_setup_py_makes_this_sdist(distributions: Distributions, tree: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Where `build` is not installed, Beam's --setup_file runs `setup.py sdist`."""
    assert run(sys.executable, "setup.py", "--version", folder=tree).split() == ["0.1.0"]
    run(sys.executable, "setup.py", "--quiet", "sdist", "--dist-dir", tmp_path, folder=tree)
    (sdist,) = tmp_path.iterdir()
    assert sdist.name == distributions.sdist.name
    assert sdist_names(sdist) == sdist_names(distributions.sdist)


def test_installed_packages_are_the_ones_imported(environment: Environment) -> None:
    code = "import beam_pipelines.sources, tf_input.dataset_format as f; print(beam_pipelines.__file__, f.__file__)"
    for path in environment.run("python", "-c", code).split():
        assert pathlib.Path(path).is_relative_to(environment.root), f"{path}; expected one in {environment.root}"


@pytest.mark.parametrize("command", [("recordmill", "--help"), ("python", "-m", "beam_pipelines", "--help")])
def test_installed_command_shows_its_help(environment: Environment, command: tuple[str, ...]) -> None:
    help_text = environment.run(*command)
    assert help_text.startswith("usage: recordmill")
    assert "prepare" in help_text


def test_installed_command_prepares_a_data_set(environment: Environment) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (NUM_IMAGES, 32, 32, 3), dtype=np.uint8)
    for index, image in enumerate(pixels):
        path = environment.folder / "input" / ("cat", "dog")[index % 2] / f"{index}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    environment.run(
        "recordmill", "prepare", "--input", "input", "--output", "output", "--splits", "train=0.8,validation=0.2"
    )
    assert (environment.folder / "output" / "manifest.json").is_file()


def package_files(tree: pathlib.Path) -> set[str]:
    """Every file of both packages, relative to the tree."""
    paths = (path for package in PACKAGES for path in (tree / package).rglob("*"))
    return {str(path.relative_to(tree)) for path in paths if path.is_file()}


def sdist_names(sdist: pathlib.Path) -> set[str]:
    """The names in an sdist, without its top folder."""
    with tarfile.open(sdist) as archive:
        return {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}


def run(*command: str | os.PathLike, folder: pathlib.Path) -> str:
    """What the command prints on standard output; it must succeed."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_every_requirement_of_a_worker_a_trainer_and_the_site_is_pinned_within_its_bounds():
    lines = (CHECKOUT / "deploy" / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for text in (*project["dependencies"], *extras["beam"], *extras["export"], *extras["remote"], *extras["transform"], *extras["docs"]):
        requirement = Requirement(text)
        if requirement.name in ("setuptools", "recordmill"):  # the first is of whoever builds, not of what runs
            continue
        assert requirement.specifier.contains(pins[requirement.name.lower()]), text


@pytest.mark.parametrize("image", sorted((CHECKOUT / "deploy").rglob("Dockerfile")), ids=lambda path: path.parent.name)
def test_what_an_image_imports_when_it_is_built_is_there(image):
    for statement in re.findall(r'python -c "(import [^"]*)"', image.read_text()):
        done = forked_python.run("-c", statement, cwd=CHECKOUT, preloaded=(*forked_python.TENSORFLOW, *forked_python.BEAM))
        assert done.returncode == 0, done.stderr


def test_both_images_with_workers_try_their_imports():
    for name in ("dataflow", "flink"):
        assert 'python -c "import beam_pipelines.pipeline' in (CHECKOUT / "deploy" / name / "Dockerfile").read_text()
