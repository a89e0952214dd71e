"""Parses the Dockerfiles in deploy/ and lists the files in their build contexts."""

import fnmatch
import pathlib
import re
import subprocess
from typing import NamedTuple

from packaging.requirements import Requirement

ROOT = pathlib.Path(__file__).resolve().parents[1]
DOCKERFILES = {path.parent.name: path for path in sorted((ROOT / "deploy").glob("*/Dockerfile"))}


class Instruction(NamedTuple):
    """A Dockerfile instruction with its continuation lines joined."""

    name: str
    value: str


def parse(path: pathlib.Path) -> list[Instruction]:
    """Returns the instructions of a Dockerfile in order."""
    lines = [line for line in path.read_text().splitlines() if line.strip() and not line.lstrip().startswith("#")]
    text = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [Instruction(*line.split(" ", 1)) for line in text.splitlines()]


def stages(path: pathlib.Path) -> dict[str, list[Instruction]]:
    """Returns a dictionary from the name of each build stage to its instructions. An unnamed last stage is named ""."""
    actual: dict[str, list[Instruction]] = {}
    for instruction in parse(path):
        if instruction.name == "FROM":
            actual[instruction.value.partition(" AS ")[2]] = stage = []
        if actual:
            stage.append(instruction)
    return actual


def arguments(path: pathlib.Path) -> dict[str, str]:
    """Returns the default value of each build argument by name, or an empty string if there is no default."""
    return {name: default for name, _, default in (item.value.partition("=") for item in parse(path) if item.name == "ARG")}


def sources(instructions: list[Instruction], given: dict[str, str]) -> list[str]:
    """Returns the files that a Dockerfile copies from the build context if the given build arguments are set."""
    copied = [instruction.value.split()[:-1] for instruction in instructions if instruction.name == "COPY" and not instruction.value.startswith("--from")]
    return [re.sub(r"\$\{(\w+)\}", lambda match: given[match[1]], source) for sources in copied for source in sources]


def context(path: pathlib.Path) -> set[str]:
    """Returns the files in the build context: all files that neither git nor .dockerignore ignores."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    files = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    lines = pathlib.Path(f"{path}.dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    return {file for file in files if (ROOT / file).exists() and not _is_ignored(file, rules)}


def _is_ignored(file: str, rules: list[str]) -> bool:
    """Returns whether the last rule that matches a file or one of its parent directories ignores the file."""
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
    """Returns the package versions that deploy/constraints.txt pins for a version of Python such as "3.11"."""
    lines = (ROOT / "deploy" / "constraints.txt").read_text().splitlines()
    requirements = [Requirement(line) for line in lines if not line.startswith("#")]
    fitting = [item for item in requirements if not item.marker or item.marker.evaluate({"python_version": python})]
    return {requirement.name: str(requirement.specifier).removeprefix("==") for requirement in fitting}
