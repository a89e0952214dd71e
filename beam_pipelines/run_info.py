"""What `run.json` says of a run: when and where, with which versions and options. It alone may differ between identical runs. Plain."""

import contextlib
import importlib.metadata
import json
import os
import platform
import re
import sys
import time
from typing import TYPE_CHECKING, Any, Mapping, NamedTuple

from beam_pipelines import plain_json
from beam_pipelines.config import PrepareConfig, SourceConfig
from beam_pipelines.image_config import ImageConfig

if TYPE_CHECKING:
    from apache_beam.options.pipeline_options import PipelineOptions

_SECRET = re.compile("key|secret|token|password|credential")

_PACKAGES = ("recordmill", "apache-beam", "numpy", "pillow", "simplejpeg", "google-crc32c", "pyarrow", "tensorflow")
# Those of them that no byte of a data set depends on.
_WITHOUT_INFLUENCE = ("apache-beam", "google-crc32c", "tensorflow")


class RecordedRun(NamedTuple):
    """What a later run has to know of an earlier one.

    Attributes:
        config: Its options, exactly.
        versions: Of Python, and of the packages that decide about the bytes that it wrote.
    """

    config: PrepareConfig
    versions: Mapping[str, str]


def make_run_info(config: Any, options: "PipelineOptions") -> dict[str, Any]:
    """What may differ between two runs that give the same data set.

    Args:
        config: A dataclass: what the run is to do.
        options: How Beam is to do it.
    """
    return {
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "host": platform.node(),
        "platform": platform.platform(),
        "python": _python(),
        "versions": _versions(),
        "options": {name: _plain(value) for name, value in vars(config).items()},
        **({"config": plain_json.dumps(config).decode()} if isinstance(config, PrepareConfig) else {}),  # `options`, exactly
        "pipeline_options": {
            name: "(hidden)" if _SECRET.search(name) else _plain(value)
            for name, value in options.get_all_options(drop_default=True).items()
        },
    }


def read_run(data: bytes) -> RecordedRun | None:
    """What `recordmill prepare` has said of itself; None where it was another command.

    Raises:
        ValueError: It is damaged, or another version's.
    """
    fields = json.loads(data)
    try:
        if "config" not in fields:
            return None
        versions = {name: version for name, version in fields["versions"].items() if name not in _WITHOUT_INFLUENCE}
        return RecordedRun(plain_json.loads(fields["config"].encode()), {"python": fields["python"], **versions})
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"not what was written: {error!r}") from error


def installed_versions() -> dict[str, str]:
    """Of the same as `RecordedRun.versions`."""
    versions = {name: version for name, version in _versions().items() if name not in _WITHOUT_INFLUENCE}
    return {"python": _python(), **versions}


def _python() -> str:
    return sys.version.split()[0]


def _versions() -> dict[str, str]:
    versions = {}
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return versions


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, (int, float, bool, type(None))):
        return value
    if isinstance(value, (SourceConfig, ImageConfig)):
        return {name: _plain(item) for name, item in vars(value).items()}
    return os.fsencode(str(value)).decode("utf-8", "backslashreplace")  # a path may be of any bytes
