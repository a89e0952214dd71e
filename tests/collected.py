"""Imports and collects all tests, so that pytest-xdist workers forked from this process need no further imports.
PYTEST_DONT_REWRITE"""

import contextlib
import os
import pathlib
import sys

import pytest

path: list[str] = []  # `sys.path`, including the directories that test modules add when they are imported
with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):  # the workers report collection errors
    ended = pytest.main(["--collect-only", "-p", "no:cacheprovider"])
if ended not in (pytest.ExitCode.OK, pytest.ExitCode.INTERRUPTED):
    raise RuntimeError(f"pytest collects no tests here ({ended!r}), so that each process would have to import all of them")

path += sys.path
threads = {file.read_text().strip() for file in pathlib.Path("/proc/self/task").glob("*/comm")}
if any(name.startswith("tf_") for name in threads):
    raise RuntimeError("a test module creates a tensor during its import, but TensorFlow's threads do not survive a fork")
