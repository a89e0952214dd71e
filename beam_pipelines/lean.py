"""Imports Beam without what a run on this machine alone does not need: clients of clouds, and pandas.

They are more than half of the time that its import takes, and of its memory.
"""

import contextlib
import sys
from typing import Iterator

# Optional parts of Beam, which it does without where they are not installed.
_OPTIONAL = ("apitools", "boto3", "botocore", "google.api_core", "google.auth", "google.cloud", "oauth2client", "pandas")


@contextlib.contextmanager
def without_optional_parts() -> Iterator[None]:
    """Within it Beam, and pyarrow, find them as if they were not installed.

    For what is imported within it that stays so: it is for a process of one run, which is a command's.
    """
    left_out = [name for name in _OPTIONAL if name not in sys.modules]
    sys.modules.update(dict.fromkeys(left_out))
    try:
        yield
        import numpy as np
        import pyarrow as pa

        pa.array(np.zeros(0))  # with the first one it looks for pandas, and not again
    finally:
        for name in left_out:
            del sys.modules[name]
