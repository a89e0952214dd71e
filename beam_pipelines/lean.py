"""Imports Beam without the optional packages that a local run does not need, such as cloud clients and pandas.

These packages account for more than half of Beam's import time and memory.
"""

import contextlib
import importlib.abc
import os
import sys
from typing import Any, Iterator

# Optional packages and modules, without which Beam works.
_OPTIONAL = (
    *("apache_beam.io.gcp.bigquery", "apitools", "boto3", "botocore", "bson"),
    *("google.api_core", "google.auth", "google.cloud", "oauth2client", "pandas"),
)


class _NotInstalled(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, *unused: Any) -> None:
        if name in _OPTIONAL:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@contextlib.contextmanager
def without_optional_parts() -> Iterator[None]:
    """Context manager in which Beam and pyarrow cannot import optional packages, as if they were not installed.

    Packages that have already been imported remain available. Use this function only in the process of a single
    command, because its effect on imported modules is permanent.
    """
    finder = _NotInstalled()
    sys.meta_path.insert(0, finder)
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # The default pool keeps megabytes for each thread.
    try:
        yield
        import numpy as np
        import pyarrow as pa

        for values in (np.zeros(1), [None, "a"]):  # pyarrow looks for pandas only the first time.
            pa.array(values)
    finally:
        sys.meta_path.remove(finder)
