"""Tests the files and the metadata of the wheel and the sdist, and tests which commands work with each extra."""

import email.message
import email.parser
import importlib.metadata
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
from typing import Iterable, NamedTuple

import numpy as np
import pytest
from packaging.requirements import Requirement
from PIL import Image

import forked_python
from dockerfiles import pinned_versions

pytestmark = pytest.mark.slow

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
PACKAGES = ("beam_pipelines", "tf_input")
FILES = (*"CHANGELOG.md CONTRIBUTING.md LICENSE MANIFEST.in Makefile README.md SECURITY.md mkdocs.yml pyproject.toml setup.py".split(),)
FOLDERS = ("benchmarks", "deploy", "docs", "tests")
NUM_IMAGES = 40

# `build` and `pip` work with the installed packages, so that these tests need no network.
BUILD = (sys.executable, "-m", "build", "--no-isolation")
INSTALL = ("install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--ignore-installed")


class Distributions(NamedTuple):
    sdist: pathlib.Path
    wheel: pathlib.Path


class Environment(NamedTuple):
    """A virtual environment. The method `run` runs one of its programs in a folder outside the checkout."""

    root: pathlib.Path
    folder: pathlib.Path

    def run(self, program: str, *arguments: str | os.PathLike) -> str:
        return run(self.root / "bin" / program, *arguments, folder=self.folder)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Returns a copy of the checkout for builds, because a build leaves files behind."""
    tree = tmp_path_factory.mktemp("tree")
    for name in FILES:
        shutil.copy(CHECKOUT / name, tree)
    for name in (*PACKAGES, *FOLDERS):
        shutil.copytree(CHECKOUT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__", "scratch"))
    return tree


@pytest.fixture(scope="module")
def distributions(tree: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    """Builds an sdist, builds a wheel from the sdist, and returns both."""
    folder = tmp_path_factory.mktemp("distributions")
    run(*BUILD, "--outdir", folder, tree, folder=folder)
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return Distributions(sdist, wheel)


@pytest.fixture(scope="module")
def environment(distributions: Distributions, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Returns a new virtual environment with the wheel and all packages of the current environment."""
    dependencies = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    return make_environment(distributions.wheel, tmp_path_factory, dependencies)


def make_environment(wheel: pathlib.Path, tmp_path_factory: pytest.TempPathFactory, dependencies: Iterable[str | os.PathLike]) -> Environment:
    """Installs the wheel in a new virtual environment, which finds other packages in the given folders."""
    root = tmp_path_factory.mktemp("environment")
    venv.create(root, symlinks=True)
    python = root / "bin" / "python"
    paths = sysconfig.get_paths(vars={"base": str(root), "platbase": str(root)})
    pathlib.Path(paths["purelib"], "dependencies.pth").write_text("\n".join(map(os.fspath, dependencies)) + "\n")
    run(sys.executable, "-m", "pip", "--python", python, *INSTALL, wheel, folder=root)
    return Environment(root, tmp_path_factory.mktemp("elsewhere"))


def link_requirements(folder: pathlib.Path, names: Iterable[str]) -> None:
    """Links installed distributions and all their requirements into a folder."""
    waiting, seen = [Requirement(name) for name in names], set()
    while waiting:
        requirement = waiting.pop()
        if (key := (requirement.name.lower(), frozenset(requirement.extras))) in seen:
            continue
        seen.add(key)
        distribution = importlib.metadata.distribution(requirement.name)
        for top in {file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")}:
            if not (folder / top).exists():
                (folder / top).symlink_to(distribution.locate_file(top))
        for text in distribution.requires or ():
            needed = Requirement(text)
            if not needed.marker or any(needed.marker.evaluate({"extra": extra}) for extra in ("", *requirement.extras)):
                waiting.append(needed)


@pytest.fixture(scope="module")
def metadata(distributions: Distributions) -> email.message.Message:
    with zipfile.ZipFile(distributions.wheel) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        return email.parser.BytesParser().parsebytes(wheel.read(name))


def test_wheel_contains_both_packages_and_nothing_else(distributions: Distributions, tree: pathlib.Path) -> None:
    with zipfile.ZipFile(distributions.wheel) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert "beam_pipelines/sources/__init__.py" in names
    assert names == files_below(tree, *PACKAGES)


def test_sdist_contains_packages_docs_tests_and_pinned_versions(distributions: Distributions, tree: pathlib.Path) -> None:
    expected = {*FILES, *files_below(tree, *PACKAGES, *FOLDERS)}
    assert {"deploy/constraints.txt", "docs/background/design.md", "tests/conftest.py"} <= expected
    assert expected - sdist_names(distributions.sdist) == set()


def test_twine_accepts_both_and_readme_links_are_absolute(distributions: Distributions, metadata: email.message.Message) -> None:
    run(sys.executable, "-m", "twine", "check", "--strict", *distributions, folder=distributions.sdist.parent)
    links = re.findall(r"\]\(([^)]+)\)", metadata.get_payload())
    assert len(links) > 10
    assert [link for link in links if not link.startswith("https://")] == []
    assert {"Homepage", "Changelog"} <= {line.partition(",")[0] for line in metadata.get_all("Project-URL")}
    assert {f"Programming Language :: Python :: {version}" for version in ("3.11", "3.12", "3.13")} <= set(metadata.get_all("Classifier"))


def test_default_installation_requires_neither_tensorflow_nor_beam(metadata: email.message.Message) -> None:
    requirements = [Requirement(line) for line in metadata.get_all("Requires-Dist")]
    assert {requirement.name for requirement in requirements if requirement.marker is None} == {"Pillow", "google-crc32c", "numpy", "simplejpeg"}


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
def test_extra_requires_its_package(metadata: email.message.Message, extra: str, package: str) -> None:
    wanted = Requirement(package)
    assert extra in metadata.get_all("Provides-Extra")
    assert any(
        (requirement.name, requirement.extras) == (wanted.name, wanted.extras)
        and requirement.marker.evaluate({"extra": extra})
        for requirement in map(Requirement, metadata.get_all("Requires-Dist"))
        if requirement.marker
    )


def test_setup_py_builds_the_same_sdist(distributions: Distributions, tree: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Beam's --setup_file runs `setup.py sdist` if `build` is not installed."""
    (tree / "README.md").touch()
    (tree / "docs" / "background" / "design.md").chmod(0o600)
    assert run(sys.executable, "setup.py", "--version", folder=tree).split() == ["0.1.0"]
    run(sys.executable, "setup.py", "--quiet", "sdist", "--dist-dir", tmp_path, folder=tree)
    (sdist,) = tmp_path.iterdir()
    assert sdist.name == distributions.sdist.name
    assert sdist.read_bytes() == distributions.sdist.read_bytes()


def test_installed_packages_are_imported(environment: Environment) -> None:
    code = "import beam_pipelines.sources, tf_input.dataset_format as f; print(beam_pipelines.__file__, f.__file__)"
    for path in environment.run("python", "-c", code).split():
        assert pathlib.Path(path).is_relative_to(environment.root), path


@pytest.mark.parametrize("command", [("recordmill", "--help"), ("python", "-m", "beam_pipelines", "--help")])
def test_installed_command_prints_its_help(environment: Environment, command: tuple[str, ...]) -> None:
    help_text = environment.run(*command)
    assert help_text.startswith("usage: recordmill")
    assert "prepare" in help_text


@pytest.fixture(scope="module")
def prepared(environment: Environment) -> pathlib.Path:
    """Returns a dataset that the installed command prepared."""
    pixels = np.random.default_rng(0).integers(0, 256, (NUM_IMAGES, 32, 32, 3), dtype=np.uint8)
    for index, image in enumerate(pixels):
        path = environment.folder / "input" / ("cat", "dog")[index % 2] / f"{index}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    environment.run(
        "recordmill", "prepare", "--input", "input", "--output", "output", "--splits", "train=0.8,validation=0.2"
    )
    assert (environment.folder / "output" / "manifest.json").is_file()
    return environment.folder / "output"


@pytest.fixture(scope="module")
def bare_environment(distributions: Distributions, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Returns an environment with the same packages as after `pip install recordmill` without extras."""
    packages = tmp_path_factory.mktemp("requirements")
    link_requirements(packages, tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["dependencies"])
    return make_environment(distributions.wheel, tmp_path_factory, [packages])


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (("prepare", "--input", "images", "--output", "out"), "beam"),
        (("analyze", "data", "--preprocessing", "preprocessing.py"), "beam"),
        (("verify", "data"), "beam"),
        (("report", "data"), "beam"),
        (("leaks", "data"), "beam"),
        (("quality", "data"), "beam"),
        (("repair", "data"), "beam"),
        (("export", "data", "--to", "parquet", "--out", "parquet"), "beam"),
        (("inspect", "data"), None),
        (("status", "data"), None),
        (("which", "data", "--epoch", "0", "--step", "0", "--batch_size", "2", "--seed", "0"), None),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else value,
)
def test_command_without_its_extra_names_the_extra(bare_environment: Environment, prepared: pathlib.Path, arguments: tuple[str, ...], extra: str | None) -> None:
    data = bare_environment.folder / "data"
    if not data.exists():
        data.symlink_to(prepared)
        (bare_environment.folder / "preprocessing.py").write_text("def preprocessing_fn(inputs):\n    return inputs\n")
        (bare_environment.folder / "images" / "cat").mkdir(parents=True)
    done = subprocess.run([bare_environment.root / "bin" / "recordmill", *arguments], cwd=bare_environment.folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == (2 if extra else 0), done.stderr
    assert "Traceback" not in done.stderr
    if extra:
        assert f"pip install 'recordmill[{extra}]'" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("extra", "modules"),
    [
        ("beam", "beam_pipelines.launch beam_pipelines.verify.verify beam_pipelines.report.write_report"),
        ("gcp", "apache_beam.io.gcp.gcsio google.auth"),
        ("aws", "boto3"),
        ("remote", "obstore fsspec boto3"),
        ("export", "array_record beam_pipelines.export.export"),
        ("transform", "tensorflow_transform beam_pipelines.transform.analyze"),
        ("heif", "pillow_heif PIL.AvifImagePlugin"),
        ("completion", "argcomplete"),
        ("demo", "matplotlib sklearn"),
    ],
)
def test_extra_provides_its_modules(
    distributions: Distributions, tmp_path_factory: pytest.TempPathFactory, extra: str, modules: str
) -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    packages = tmp_path_factory.mktemp("requirements")
    wanted, extras = [], [extra]
    for name in extras:  # an extra can name other extras of recordmill
        for requirement in map(Requirement, project["optional-dependencies"][name]):
            extras.extend(requirement.extras if requirement.name == "recordmill" else ())
            wanted.extend([] if requirement.name == "recordmill" else [str(requirement)])
    link_requirements(packages, [*project["dependencies"], *wanted])
    environment = make_environment(distributions.wheel, tmp_path_factory, [packages])
    environment.run("python", "-c", f"import {', '.join(modules.split())}")


def files_below(tree: pathlib.Path, *folders: str) -> set[str]:
    """Returns the relative paths of all files below the given folders of a directory tree."""
    paths = (path for folder in folders for path in (tree / folder).rglob("*"))
    return {str(path.relative_to(tree)) for path in paths if path.is_file()}


def sdist_names(sdist: pathlib.Path) -> set[str]:
    """Returns the file names in an sdist without the name of the top folder."""
    with tarfile.open(sdist) as archive:
        return {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}


def run(*command: str | os.PathLike, folder: pathlib.Path) -> str:
    """Runs a command, asserts that it succeeds, and returns its standard output."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_requirements_are_pinned_within_their_bounds():
    pins = pinned_versions("3.11")
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for text in (*project["dependencies"], *extras["beam"], *extras["export"], *extras["remote"], *extras["transform"], *extras["docs"]):
        requirement = Requirement(text)
        if requirement.name in ("setuptools", "recordmill"):  # setuptools is needed for builds only
            continue
        assert requirement.specifier.contains(pins[requirement.name.lower()]), text


@pytest.mark.parametrize("image", sorted((CHECKOUT / "deploy").rglob("Dockerfile")), ids=lambda path: path.parent.name)
def test_imports_in_dockerfiles_succeed(image):
    for statement in re.findall(r'python -c "(import [^"]*)"', image.read_text()):
        done = forked_python.run("-c", statement, cwd=CHECKOUT, preloaded=(*forked_python.TENSORFLOW, *forked_python.BEAM))
        assert done.returncode == 0, done.stderr


def test_worker_images_import_the_pipeline():
    for name in ("dataflow", "flink"):
        assert 'python -c "import beam_pipelines.pipeline' in (CHECKOUT / "deploy" / name / "Dockerfile").read_text()
