"""Imports Beam without what a run on this machine alone does not need: clients of clouds, BigQuery's I/O, MongoDB's client, and pandas.

They are more than half of the time that its import takes, and of its memory.
"""

import contextlib
import importlib.abc
import os
import sys
from typing import Any, Iterator

# Optional parts of Beam, which it does without where they are not installed.
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
    """Hides optional parts from Beam and pyarrow within the block, as if they were not installed, unless they are imported already.

    What is imported within it stays without them: it is for a process of one run, which is a command's.
    """
    finder = _NotInstalled()
    sys.meta_path.insert(0, finder)
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # its own keeps megabytes of each thread, which nobody else can have
    try:
        yield
        import numpy as np
        import pyarrow as pa

        for values in (np.zeros(1), [None, "a"]):  # with the first of each kind it looks for pandas, and not again
            pa.array(values)
    finally:
        sys.meta_path.remove(finder)
