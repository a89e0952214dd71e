"""What `run.json` says of a run: when and where, with which versions and options. It alone may differ between identical runs."""

import contextlib
import importlib.metadata
import platform
import re
import sys
import time
from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions

from beam_pipelines.run_options import plain, plain_options

_SECRET = re.compile("key|secret|token|password|credential")

_PACKAGES = ("recordmill", "apache-beam", "numpy", "pillow", "simplejpeg", "google-crc32c", "tensorflow")


def make_run_info(config: Any, options: PipelineOptions) -> dict[str, Any]:
    """What may differ between two runs that give the same data set.

    Args:
        config: A dataclass: what the run is to do.
        options: How Beam is to do it.
    """
    versions = {}
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return {
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "host": platform.node(),
        "platform": platform.platform(),
        "python": sys.version.split()[0],
        "versions": versions,
        "options": plain_options(config),
        "pipeline_options": {
            name: "(hidden)" if _SECRET.search(name) else plain(value)
            for name, value in options.get_all_options(drop_default=True).items()
        },
    }
