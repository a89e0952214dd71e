"""Collects information about a run for `run.json`, such as the time, the host, package versions and options.

`run.json` is the only file that may differ between identical runs.
"""

import contextlib
import functools
import importlib.metadata
import json
import os
import platform
import re
import sys
import time
from typing import Any, Mapping

from apache_beam.options.pipeline_options import PipelineOptions

from beam_pipelines.config.option import Options
from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.elements import plain_json

_PACKAGES = ("recordmill", "apache-beam", "numpy", "pillow", "simplejpeg", "google-crc32c", "pyarrow", "tensorflow")

# Packages that do not influence the bytes of a dataset.
_WITHOUT_INFLUENCE = ("apache-beam", "google-crc32c", "tensorflow")

_SECRET = re.compile("key|secret|token|password|credential")
_HIDDEN = "(hidden)"
_ASSIGNED = re.compile(r"([\w.-]+)=([^\s,;&]+)")  # Matches NAME=VALUE in experiments, headers and URL queries.
_PASSWORD = re.compile(r"(://[^/@\s:]*:)[^/@\s]+@")


def hide_secrets(name: str, value: Any) -> Any:
    """Returns a value with its secrets replaced by a placeholder, also in lists, JSON, `NAME=VALUE` pairs and URLs."""
    if _SECRET.search(name.lower()):
        return _HIDDEN
    if isinstance(value, dict):
        return {key: hide_secrets(str(key), entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [hide_secrets("", item) for item in value]
    if not isinstance(value, str):
        return value
    try:
        fields = json.loads(value)
    except (ValueError, RecursionError):
        fields = None
    if isinstance(fields, (dict, list)):
        return json.dumps(hide_secrets("", fields))
    value = _PASSWORD.sub(rf"\1{_HIDDEN}@", value)
    return _ASSIGNED.sub(lambda result: f"{result[1]}={_HIDDEN}" if _SECRET.search(result[1].lower()) else result[0], value)


def make_run_info(options: Options, pipeline_options: PipelineOptions, run_id: str) -> dict[str, Any]:
    """Collects information about a run for `run.json`.

    Args:
        options: The options of the command.
        pipeline_options: The options of the Beam pipeline.
        run_id: The ID that links the run and its dataset.
    """
    system = os.uname()  # The module `platform` would start another program.
    return {
        "run_id": run_id,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "host": platform.node(),
        "platform": "-".join((system.sysname, system.release, system.machine)),
        "python": python_version(),
        "versions": installed_versions(),
        "options": options.texts,
        # The exact options, from which a shard can be rebuilt.
        **({"config": plain_json.dumps(options).decode()} if isinstance(options, PrepareOptions) else {}),
        "pipeline_options": {
            name: hide_secrets(name, _plain(value))
            for name, value in pipeline_options.get_all_options(drop_default=True).items()
        },
    }


def _plain(value: Any) -> Any:
    """Converts a Beam option to a JSON value."""
    if isinstance(value, (int, float, bool, type(None))):
        return value
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return os.fsencode(str(value)).decode("utf-8", "backslashreplace")


@functools.cache
def installed_versions() -> Mapping[str, str]:
    """Returns the version of each installed package that `run.json` records."""
    versions = {}
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return versions


def python_version() -> str:
    """Returns the version of the Python interpreter, such as `3.11.7`."""
    return sys.version.split()[0]


def describe_others(python: str, versions: Mapping[str, str]) -> list[str]:
    """Lists the packages that can influence the dataset's bytes and whose installed and recorded versions differ."""
    here = {"python": python_version(), **installed_versions()}
    recorded = {"python": python, **{name: version for name, version in versions.items() if name not in _WITHOUT_INFLUENCE}}
    return [f"{name} {version} (here {here.get(name, 'none')})" for name, version in recorded.items() if here.get(name) != version]
