"""Versions of what data sets are made with."""

import contextlib
import functools
import importlib.metadata
import sys
from typing import Mapping

_PACKAGES = ("recordmill", "apache-beam", "numpy", "pillow", "simplejpeg", "google-crc32c", "pyarrow", "tensorflow")

# Those of them that no byte of a data set depends on.
_WITHOUT_INFLUENCE = ("apache-beam", "google-crc32c", "tensorflow")


@functools.cache
def installed_versions() -> Mapping[str, str]:
    """Package -> its version, for those that are installed, as `run.json` has them."""
    versions = {}
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return versions


def python_version() -> str:
    """The version of this Python, such as `3.11.7`."""
    return sys.version.split()[0]


def describe_others(python: str, versions: Mapping[str, str]) -> list[str]:
    """Describes what `run.json` has in another version than is here, where the bytes of a data set may depend on it."""
    here = {"python": python_version(), **installed_versions()}
    recorded = {"python": python, **{name: version for name, version in versions.items() if name not in _WITHOUT_INFLUENCE}}
    return [f"{name} {version} (here {here.get(name, 'none')})" for name, version in recorded.items() if here.get(name) != version]
