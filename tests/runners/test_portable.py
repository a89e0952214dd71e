"""Tests that `--runner=PortableRunner` writes the same bytes as the local runner and prints short error messages."""

import contextlib
from typing import Iterator

import pytest

from engines import OPTIONS, digest, start_prepare
from forked_python import ForkedPython

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def options() -> Iterator[tuple[str, ...]]:
    from apache_beam.runners.portability.local_job_service import LocalJobServicer

    service = LocalJobServicer()
    port = service.start_grpc_server()
    yield "--runner=PortableRunner", f"--job_endpoint=localhost:{port}", "--environment_type=LOOPBACK"
    with contextlib.suppress(Exception):
        service.stop()


def wait_for_end(run: ForkedPython) -> tuple[int, str]:
    printed, _ = run.communicate(timeout=300)
    return run.returncode, printed


def test_input_error_is_reported_in_few_lines(source, options, tmp_path):
    code, printed = wait_for_end(start_prepare(source, tmp_path / "out", *options, "--max_bad_fraction=0"))
    *_, reported = printed.partition("recordmill: 2 of 342 inputs")
    assert code == 2 and "--max_bad_fraction=0" in reported
    assert "Traceback" not in printed and printed.count("\n") <= 6, printed


def test_quiet_run_prints_nothing_and_writes_the_same_bytes(source, expected, options, tmp_path):
    assert wait_for_end(start_prepare(source, tmp_path / "out", *options, *OPTIONS, "--quiet")) == (0, "")
    assert digest(tmp_path / "out") == expected
