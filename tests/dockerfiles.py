"""Dockerfiles as far as ours go: what they say, and what of the checkout they are given."""

import fnmatch
import pathlib
import re
import subprocess
from typing import NamedTuple

from packaging.requirements import Requirement

ROOT = pathlib.Path(__file__).resolve().parents[1]
DOCKERFILES = {path.parent.name: path for path in sorted((ROOT / "deploy").glob("*/Dockerfile"))}


class Instruction(NamedTuple):
    """One instruction, its lines joined: `RUN`, `pip install ...`."""

    name: str
    value: str


def parse(path: pathlib.Path) -> list[Instruction]:
    """The instructions of a Dockerfile, in their order."""
    lines = [line for line in path.read_text().splitlines() if line.strip() and not line.lstrip().startswith("#")]
    text = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [Instruction(*line.split(" ", 1)) for line in text.splitlines()]


def stages(path: pathlib.Path) -> dict[str, list[Instruction]]:
    """Name of a stage (the last one without a name: "") -> its instructions, the FROM first."""
    actual: dict[str, list[Instruction]] = {}
    for instruction in parse(path):
        if instruction.name == "FROM":
            actual[instruction.value.partition(" AS ")[2]] = stage = []
        if actual:
            stage.append(instruction)
    return actual


def arguments(path: pathlib.Path) -> dict[str, str]:
    """Name -> default of each ARG; those without a default have to be given."""
    return {name: default for name, _, default in (item.value.partition("=") for item in parse(path) if item.name == "ARG")}


def sources(instructions: list[Instruction], given: dict[str, str]) -> list[str]:
    """What is copied from the checkout, with the arguments' values."""
    copied = [instruction.value.split()[:-1] for instruction in instructions if instruction.name == "COPY" and not instruction.value.startswith("--from")]
    return [re.sub(r"\$\{(\w+)\}", lambda match: given[match[1]], source) for sources in copied for source in sources]


def context(path: pathlib.Path) -> set[str]:
    """The files of the checkout that a build is given: those that git knows or would, less what the .dockerignore beside it names."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    files = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    lines = pathlib.Path(f"{path}.dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    return {file for file in files if (ROOT / file).exists() and not _is_ignored(file, rules)}


def _is_ignored(file: str, rules: list[str]) -> bool:
    """The last rule that names a file or one of its folders decides."""
    parents = [file, *map(str, pathlib.PurePosixPath(file).parents)]
    ignored = False
    for rule in rules:
        pattern = rule.removeprefix("!").strip("/")
        if any(_matches(parent, pattern) for parent in parents):
            ignored = not rule.startswith("!")
    return ignored


def _matches(path: str, pattern: str) -> bool:
    if pattern.startswith("**/"):
        return fnmatch.fnmatchcase(pathlib.PurePosixPath(path).name, pattern[3:])
    return path.count("/") == pattern.count("/") and fnmatch.fnmatchcase(path, pattern)


def pinned_versions(python: str) -> dict[str, str]:
    """Returns the versions that deploy/constraints.txt pins for a version of Python, such as "3.11", by the packages' names."""
    lines = (ROOT / "deploy" / "constraints.txt").read_text().splitlines()
    requirements = [Requirement(line) for line in lines if not line.startswith("#")]
    fitting = [item for item in requirements if not item.marker or item.marker.evaluate({"python_version": python})]
    return {requirement.name: str(requirement.specifier).removeprefix("==") for requirement in fitting}
