"""All tests, imported and collected: what pytest-xdist's processes are forked off imports this. PYTEST_DONT_REWRITE"""

import contextlib
import os
import pathlib
import sys

import pytest

path: list[str] = []  # `sys.path` with what tests add to it; known once they are imported
with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):  # what is wrong with them those processes say
    ended = pytest.main(["--collect-only", "-p", "no:cacheprovider"])
if ended not in (pytest.ExitCode.OK, pytest.ExitCode.INTERRUPTED):
    raise RuntimeError(f"pytest collects no tests here: {ended!r}; each process would import all of them anew")

path += sys.path
threads = {file.read_text().strip() for file in pathlib.Path("/proc/self/task").glob("*/comm")}
if any(name.startswith("tf_") for name in threads):
    raise RuntimeError("a test module makes a tensor as it is imported; TensorFlow's threads, which that starts, are in no forked process")
