"""Tests the Dockerfiles in deploy/ and the program `deploy/images.py`, which builds the container images."""

import hashlib
import importlib.util
import json
import pathlib
import re
import stat
import subprocess
import sys
import tomllib

import pytest
from packaging.requirements import Requirement

import dockerfiles
from dockerfiles import DOCKERFILES, ROOT

DEPLOY = ROOT / "deploy"


def load_images():
    specification = importlib.util.spec_from_file_location("deploy_images", DEPLOY / "images.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


images = load_images()
BASES = json.loads((DEPLOY / "base_images.json").read_text())
LOCKS = {DEPLOY / name for name in images.REQUIREMENTS}
for_every_image = pytest.mark.parametrize("image", DOCKERFILES)


def test_every_dockerfile_belongs_to_an_image():
    assert {image.folder for image in images.IMAGES.values()} == set(DOCKERFILES)
    for image in images.IMAGES.values():
        assert image.target in {"", *dockerfiles.stages(DOCKERFILES[image.folder])}


@for_every_image
def test_every_base_image_has_a_digest(image):
    """The base image is a build argument without a default value, so that the Dockerfile contains no mutable tag."""
    actual, asked = dockerfiles.stages(DOCKERFILES[image]), dockerfiles.arguments(DOCKERFILES[image])
    for instructions in actual.values():
        base = instructions[0].value.partition(" AS ")[0]
        name = re.fullmatch(r"\$\{(\w+_IMAGE)\}", base)
        assert name, f"FROM {base}"
        assert asked[name[1]] == "" and name[1] in BASES


def test_digest_is_valid_or_missing():
    for base in BASES.values():
        assert base["digest"] is None or re.fullmatch(r"sha256:[0-9a-f]{64}", base["digest"]), base


def test_base_images_have_the_pinned_versions():
    pins = dict(line.split("==") for line in (DEPLOY / "constraints.txt").read_text().splitlines() if not line.startswith("#"))
    tags = {name: base["image"].rpartition(":")[2] for name, base in BASES.items()}
    assert tags["BEAM_IMAGE"] == pins["apache-beam"]
    assert tags["TENSORFLOW_IMAGE"] == f"{pins['tensorflow']}-gpu"
    assert tags["SERVING_IMAGE"] == pins["tensorflow"], "an older server may lack operations of the export"
    assert {BASES["PYTHON_IMAGE"]["image"].partition("-")[0], "3.11"} == {"python:3.11", "3.11"}


def last_user(instructions) -> str:
    return [instruction.value for instruction in instructions if instruction.name == "USER"][-1]


@pytest.mark.parametrize("name", images.IMAGES)
def test_image_does_not_run_as_root(name):
    folder, target, _ = images.IMAGES[name]
    user = last_user(dockerfiles.stages(DOCKERFILES[folder])[target])
    if name == "dataflow":  # the Dockerfile explains this exception
        assert user == "0:0"
    else:
        assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user), "Kubernetes needs numbers instead of names"


@for_every_image
def test_build_context_has_exactly_the_copied_files(image):
    path = DOCKERFILES[image]
    given = dockerfiles.context(path)
    asked = {**dockerfiles.arguments(path)}
    variants = [{**asked, **dict(argument.split("=") for argument in made.arguments)} for made in images.IMAGES.values() if made.folder == image]
    wanted = set()
    for values in variants:
        for instructions in dockerfiles.stages(path).values():
            for source in dockerfiles.sources(instructions, values):
                if source == "deploy/serving/models":  # the models of the user
                    continue
                actual = {file for file in given if file == source or file.startswith(f"{source}/") or pathlib.PurePath(file).match(source)}
                assert actual, f"COPY {source}: not in the context"
                wanted |= actual
    surplus = {file for file in given - wanted if not file.startswith(f"deploy/{image}/")}
    assert not surplus
    assert not [file for file in given if file.endswith((".env", ".pem", ".key"))]


@for_every_image
def test_packages_are_installed_by_hash(image):
    """Only Recordmill, which is copied from the build context, is installed without a hash."""
    for instruction in dockerfiles.parse(DOCKERFILES[image]):
        for command in re.findall(r"pip install [^&]*", instruction.value if instruction.name == "RUN" else ""):
            is_own = re.search(r" (\.|/src)\s*$", command)
            assert "--no-deps" in command and (is_own or "--require-hashes" in command), command


def read_lock(path: pathlib.Path) -> dict[str, tuple[str, list[str]]]:
    """Returns the pinned version and the hashes of each package."""
    actual = {}
    for entry in path.read_text().replace("\\\n", " ").splitlines():
        requirement, *hashes = entry.split(" --hash=")
        name, version = requirement.split("==")
        actual[name.strip()] = version.split(";")[0].strip(), [item.strip() for item in hashes]
    return actual


@pytest.mark.parametrize("path", sorted(LOCKS), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_lock_has_hashes_and_the_pinned_versions(path):
    pins = dockerfiles.pinned_versions("3.11")
    locked = read_lock(path)
    for name, (version, hashes) in locked.items():
        assert pins.get(name, version) == version, name
        assert hashes and all(re.fullmatch(r"sha256:[0-9a-f]{64}", item) for item in hashes), name
    extras, packages = images.REQUIREMENTS[str(path.relative_to(DEPLOY))]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for text in (*packages, *(requirement for extra in extras for requirement in images.requirements(project, extra))):
        wanted = Requirement(text)
        assert wanted.specifier.contains(locked[wanted.name.lower()][0]), text
    wants_tensorflow = "transform" in extras or "tensorflow" in packages
    assert ("tensorflow" in locked) == wants_tensorflow, "TensorFlow would multiply the size of the image"


def test_every_lock_belongs_to_a_dockerfile():
    assert LOCKS == {path for path in DEPLOY.glob("*/requirements*.txt")}


@pytest.fixture
def checkout(tmp_path, monkeypatch) -> pathlib.Path:
    """Returns a Git repository in which a base image has no digest, with fakes for docker, skopeo and buildah."""
    root, tools = tmp_path / "checkout", tmp_path / "tools"
    (root / "deploy/serving").mkdir(parents=True)
    for name in ("images.py", "serving/Dockerfile"):
        (root / "deploy" / name).write_text((DEPLOY / name).read_text())
    (root / "deploy/base_images.json").write_text(json.dumps({"SERVING_IMAGE": {"image": "python:3.11", "digest": None}}))
    tools.mkdir()
    for name in ("docker", "skopeo", "buildah"):
        tool = tools / name
        tool.write_text(f'#!/bin/sh\necho "{name} $@" >> {tmp_path}/asked\nprintf manifest\n')
        tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    for name, value in {"AUTHOR": "made", "COMMITTER": "made"}.items():
        monkeypatch.setenv(f"GIT_{name}_NAME", value)
        monkeypatch.setenv(f"GIT_{name}_EMAIL", value)
    commit(root, "init", "--quiet")
    return root


def commit(root: pathlib.Path, *first: str) -> None:
    for command in ([first] if first else []) + [("add", "."), ("commit", "--quiet", "--message=made")]:
        subprocess.run(("git", *command), cwd=root, check=True)


def run(root: pathlib.Path, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, root / "deploy/images.py", *arguments], capture_output=True, text=True, timeout=60)


BUILD = ("build", "serving", "--repository=made.example/a", "--push")


def test_build_fails_without_a_digest(checkout):
    done = run(checkout, *BUILD)
    assert done.returncode == 1 and "base_images.json" in done.stderr and "python:3.11" in done.stderr
    assert not (checkout.parent / "asked").exists()


def test_digests_are_recorded_and_the_commit_is_pushed(checkout):
    digest = f"sha256:{hashlib.sha256(b'manifest').hexdigest()}"
    assert run(checkout, "digests").stdout == f"python:3.11@{digest}\n"
    assert json.loads((checkout / "deploy/base_images.json").read_text())["SERVING_IMAGE"]["digest"] == digest

    dirty = run(checkout, *BUILD)
    assert dirty.returncode == 1 and "--tag" in dirty.stderr
    named = run(checkout, *BUILD, "--tag=1-dirty")
    assert named.returncode == 1 and named.stderr.startswith("images.py: --tag=1-dirty: ")

    commit(checkout)
    built = run(checkout, *BUILD)
    assert built.returncode == 0, built.stderr
    asked = (checkout.parent / "asked").read_text().splitlines()
    inspected, build, push = asked
    assert inspected == "docker buildx imagetools inspect --raw python:3.11"
    assert f"--build-arg=SERVING_IMAGE=python:3.11@{digest}" in build.split() and "--target" not in build
    assert push == f"docker push {built.stdout.strip()}" and "dirty" not in push
