"""Builds the container images of deploy/ reproducibly: from pinned base images, a commit and hashed packages.

    python deploy/images.py digests         # record the current digests of base_images.json; commit the result
    python deploy/images.py build flink-workers --repository REGISTRY/PROJECT --push
    python deploy/images.py requirements    # update requirements*.txt from pyproject.toml and constraints.txt

The program needs only Python and docker or buildah. `requirements` also needs uv. `build` accepts the names in `IMAGES`.
"""

import argparse
import hashlib
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tomllib
from typing import Any, NamedTuple, Sequence

DEPLOY = pathlib.Path(__file__).resolve().parent
CHECKOUT = DEPLOY.parent
BASES = DEPLOY / "base_images.json"


class Image(NamedTuple):
    """A container image.

    Attributes:
        folder: The folder of its Dockerfile in deploy/.
        target: The stage to build. Empty for the last stage of the Dockerfile.
        arguments: The build arguments, without the base images.
    """

    folder: str
    target: str = ""
    arguments: tuple[str, ...] = ()


IMAGES = {
    "dataflow": Image("dataflow"),
    "flink": Image("flink", "flink"),
    "flink-workers": Image("flink", "workers"),
    "flink-workers-transform": Image("flink", "workers", ("REQUIREMENTS=requirements_transform.txt",)),
    "serving": Image("serving"),
    "trainer": Image("trainer"),
}

# File -> (extras of pyproject.toml, other packages). Images that prepare a dataset omit TensorFlow, which
# is larger than all other packages together.
REQUIREMENTS = {
    "dataflow/requirements.txt": (("gcp",), ()),
    "flink/requirements.txt": (("gcp", "aws"), ()),
    "flink/requirements_transform.txt": (("gcp", "aws", "transform"), ()),
    "trainer/requirements.txt": ((), ("boto3", "google-crc32c", "obstore", "pillow", "simplejpeg")),
}
_INSPECT = {"docker": ("docker", "buildx", "imagetools", "inspect", "--raw"), "skopeo": ("skopeo", "inspect", "--raw")}


class ImageError(Exception):
    """An error that is shown to the user as a single line."""


def call(command: Sequence[str], **options: Any) -> bytes:
    """Runs a command at the root of the checkout, and returns its standard output.

    Raises:
        ImageError: The command was not found or failed.
    """
    try:
        return subprocess.run(command, cwd=CHECKOUT, check=True, stdout=subprocess.PIPE, **options).stdout
    except FileNotFoundError:
        raise ImageError(f"{command[0]} was not found. Install it, and add it to the PATH.") from None
    except subprocess.CalledProcessError as error:
        raise ImageError(f"`{' '.join(command)}` failed with exit code {error.returncode}") from None


def record_digests() -> None:
    """Looks up the current digest of each base image and writes it to base_images.json.

    The digest of an image is the SHA-256 of its manifest, or of its list of platform manifests.
    """
    tool = next((tool for tool in _INSPECT if shutil.which(tool)), None)
    if tool is None:
        raise ImageError(
            f"digests needs {' or '.join(_INSPECT)} to read the registries, but neither is on the PATH. Install one of "
            "them."
        )
    bases = json.loads(BASES.read_text())
    for base in bases.values():
        reference = base["image"] if tool == "docker" else f"docker://{base['image']}"
        base["digest"] = f"sha256:{hashlib.sha256(call((*_INSPECT[tool], reference))).hexdigest()}"
        print(f"{base['image']}@{base['digest']}")
    BASES.write_text("{\n" + ",\n".join(f"  {json.dumps(name)}: {json.dumps(base)}" for name, base in bases.items()) + "\n}\n")


def base_arguments(image: Image) -> list[str]:
    """Returns NAME=IMAGE@DIGEST for each base image of the Dockerfile."""
    bases, arguments = json.loads(BASES.read_text()), []
    for name in re.findall(r"^ARG (\w+_IMAGE)$", (DEPLOY / image.folder / "Dockerfile").read_text(), re.MULTILINE):
        base = bases[name]
        if not base["digest"]:
            raise ImageError(
                f"{BASES.name} has no digest of {base['image']}. Run `images.py digests`, and commit the file."
            )
        arguments.append(f"{name}={base['image']}@{base['digest']}")
    return arguments


def find_tag() -> str:
    """Returns the checked-out commit as a tag.

    The working tree must not have uncommitted changes, because an image tag identifies only a commit.

    Raises:
        ImageError: There is no commit, or the working tree has uncommitted changes.
    """
    tag = call(("git", "describe", "--always", "--dirty")).decode().strip()
    if tag.endswith("-dirty"):
        raise ImageError(
            f"the working tree has changes since the commit {tag.removesuffix('-dirty')}. Commit them, or pass --tag."
        )
    return tag


def build(name: str, repository: str, tag: str, tool: str, push: bool) -> str:
    """Builds an image, and pushes it if requested. Returns its name."""
    if push and tag.endswith("-dirty"):
        raise ImageError(f"--tag={tag}: an image with uncommitted changes cannot be pushed. Commit them first.")
    image = IMAGES[name]
    reference = f"{repository.rstrip('/')}/recordmill-{name}:{tag}"
    dockerfile = DEPLOY / image.folder / "Dockerfile"
    command = [tool, "build", f"--file={dockerfile}", f"--tag={reference}"]
    command += [f"--build-arg={argument}" for argument in (*base_arguments(image), *image.arguments)]
    command += [f"--target={image.target}"] if image.target else []
    # Docker finds the file automatically.
    command += [f"--ignorefile={dockerfile}.dockerignore"] if tool == "buildah" else []
    call([*command, "."])
    if push:
        call([tool, "push", reference])
    return reference


def lock(file: str, extras: Sequence[str], packages: Sequence[str]) -> None:
    """Writes a requirements file with hashes and with pinned versions that satisfy constraints.txt.

    Pinned versions in an existing file are kept if they are still valid.
    """
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    wanted = [*packages, *(requirement for extra in extras for requirement in requirements(project, extra))]
    command = "uv pip compile - --quiet --python-version=3.11 --no-header --no-annotate --generate-hashes --constraint=deploy/constraints.txt"
    call([*command.split(), f"--output-file=deploy/{file}"], input="\n".join(wanted).encode())


def requirements(project: dict[str, list[str]], extra: str) -> list[str]:
    """Returns the requirements of an extra and of the extras that it includes."""
    all_requirements: list[str] = []
    for requirement in project[extra]:
        named = re.fullmatch(r"recordmill\[(.*)\]", requirement)
        all_requirements += [item for name in named[1].split(",") for item in requirements(project, name)] if named else [requirement]
    return all_requirements


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("digests", help="Record the current digests of the tags in base_images.json.")
    commands.add_parser("requirements", help="Update the pinned package versions of the images.")
    arguments = commands.add_parser("arguments", help="Print NAME=IMAGE@DIGEST for each base image of an image, for use with another build tool.")
    arguments.add_argument("image", choices=IMAGES, help="Image whose base images are printed.")
    add = commands.add_parser("build", help="Build an image.", allow_abbrev=False).add_argument
    add("image", choices=IMAGES, help="Image to build.")
    add("--repository", required=True, metavar="REGISTRY/PATH", help="Repository of the image REGISTRY/PATH/recordmill-IMAGE:TAG.")
    add("--tag", metavar="TAG", help="Tag of the image. Default: the commit, which requires an unchanged working tree.")
    add("--tool", choices=("docker", "buildah"), default="docker", help="Program that builds the image. Default: docker.")
    add("--push", action="store_true", help="Push the image.")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Returns the exit code: 0 for success, 1 for failure."""
    arguments: Any = make_parser().parse_args(argv)
    try:
        if arguments.command == "digests":
            record_digests()
        elif arguments.command == "requirements":
            for file, (extras, packages) in REQUIREMENTS.items():
                lock(file, extras, packages)
        elif arguments.command == "arguments":
            print("\n".join(base_arguments(IMAGES[arguments.image])))
        else:
            print(build(arguments.image, arguments.repository, arguments.tag or find_tag(), arguments.tool, arguments.push))
    except ImageError as error:
        print(f"images.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
