"""Finds the versions of Python and of all packages that can influence the bytes of a dataset."""

import contextlib
import functools
import importlib.metadata
import sys
from typing import Mapping

_PACKAGES = ("recordmill", "apache-beam", "numpy", "pillow", "simplejpeg", "google-crc32c", "pyarrow", "tensorflow")

# Packages that do not influence the bytes of a dataset.
_WITHOUT_INFLUENCE = ("apache-beam", "google-crc32c", "tensorflow")


@functools.cache
def installed_versions() -> Mapping[str, str]:
    """Returns the version of each installed package that `run.json` records."""
    versions = {}
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return versions


def python_version() -> str:
    """Returns the version of the running Python, such as `3.11.7`."""
    return sys.version.split()[0]


def describe_others(python: str, versions: Mapping[str, str]) -> list[str]:
    """Lists packages whose installed and recorded versions differ, if they can influence the dataset's bytes."""
    here = {"python": python_version(), **installed_versions()}
    recorded = {"python": python, **{name: version for name, version in versions.items() if name not in _WITHOUT_INFLUENCE}}
    return [f"{name} {version} (here {here.get(name, 'none')})" for name, version in recorded.items() if here.get(name) != version]
