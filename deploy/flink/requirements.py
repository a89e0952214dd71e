"""Prints what the named extras of pyproject.toml require, and not what the package itself does.

    python deploy/flink/requirements.py beam gcp aws
"""

import sys
import tomllib


def requirements(extras: dict[str, list[str]], names: list[str]) -> list[str]:
    """An extra that names others of this package brings what these require."""
    found: list[str] = []
    for name in names:
        for requirement in extras[name]:
            if requirement.startswith("recordmill["):
                found += requirements(extras, requirement[len("recordmill[") : -1].split(","))
            else:
                found.append(requirement)
    return list(dict.fromkeys(found))


if __name__ == "__main__":
    with open("pyproject.toml", "rb") as file:
        print("\n".join(requirements(tomllib.load(file)["project"]["optional-dependencies"], sys.argv[1:])))
