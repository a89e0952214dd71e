"""Tests that Prism, Beam's runner in Go, writes the same bytes as the local runner. Prism is built from source."""

import os
import pathlib
import shutil
import signal
import time

import pytest

import engines
from engines import digest, finish, prepare_here, start_prepare
from forked_python import ForkedPython
from paused_stages import Gate
from made_images import write_files
from made_sources import CASES

SECONDS = 600

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("waiting"),
    pytest.mark.skipif(not engines.has_go(), reason="Prism is built with go, which is not on the PATH"),
]


@pytest.fixture(scope="module")
def options() -> tuple[str, ...]:
    return ("--runner=PrismRunner", f"--prism_location={engines.prism()}", "--environment_type=LOOPBACK")


def prism_processes(run: ForkedPython) -> list[str]:
    """Returns the IDs of all child processes that run Prism or that wait for Prism."""
    children = " ".join(map(read, pathlib.Path(f"/proc/{run.pid}/task").glob("*/children"))).split()
    return [child for child in children if "prism" in read(pathlib.Path(f"/proc/{child}/cmdline"))]


def read(path: pathlib.Path) -> str:
    """Returns the text of a file in /proc, or an empty string if its process or thread has ended."""
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def test_prism_writes_the_same_bytes_as_local_runner(source, expected, options, tmp_path):
    assert finish(start_prepare(source, tmp_path / "out", *options, "--quiet")) == ""
    assert digest(tmp_path / "out") == expected
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("case", ["several images per example", "records of any kind"])
def test_prism_writes_the_same_bytes_of_other_sources(options, tmp_path, case):
    pairs = CASES["table csv, pairs"]
    if case == "records of any kind":
        source, own = engines.write_record_files(tmp_path / "in"), engines.RECORDS
    else:
        source, own = tmp_path / "in" / pairs.write(tmp_path / "in"), pairs.options
    prepare_here(source, tmp_path / "local", *own)
    finish(start_prepare(source, tmp_path / "out", *own, *options))
    assert digest(tmp_path / "out") == digest(tmp_path / "local")


def test_prism_resolves_the_same_splits_as_local_runner(source, options, tmp_path):
    source = write_files(shutil.copytree(source, tmp_path / "in"), {"bee/same.jpg": (source / "ant/000.jpg").read_bytes()})
    split_options = ("--stratify", "--group_pattern=^[a-z]+/[a-z]*.?.", "--splits=train=0.6,test=0.4", "--duplicates=group")
    prepare_here(source, tmp_path / "here", *split_options)
    finish(start_prepare(source, tmp_path / "there", *options, *split_options))
    assert digest(tmp_path / "there") == digest(tmp_path / "here")
    assert (tmp_path / "here" / "near_duplicates.jsonl").read_text().count("\n") == 2


def test_input_error_is_one_message_and_run_can_be_resumed(source, expected, options, tmp_path):
    run = start_prepare(source, tmp_path / "out", *options, "--max_bad_fraction=0")
    printed, _ = run.communicate(timeout=SECONDS)
    assert run.returncode == 2, printed[-3000:]
    assert "recordmill: 2 of 342 inputs" in printed and "--max_bad_fraction=0" in printed
    assert "Traceback" not in printed and printed.count("\n") <= 6, printed
    assert os.listdir(tmp_path) == ["out.incomplete"]
    finish(start_prepare(source, tmp_path / "out", *options, "--resume"))
    assert digest(tmp_path / "out") == expected
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("stage", ["listed", "planned", "written"])
def test_interrupted_run_leaves_nothing_until_plan_is_complete(source, options, tmp_path, stage):
    gates = tmp_path / "gates"
    with Gate(gates, stage) as gate:
        run = start_prepare(source, tmp_path / "out", *options, gates=gates)
        assert gate.wait_for_arrivals(run) == [run.pid]
        assert prism_processes(run)
        run.send_signal(signal.SIGTERM)
        while prism_processes(run):  # Such a small job may be done before it is stopped.
            time.sleep(0.01)
        gate.open()
        printed, _ = run.communicate(timeout=SECONDS)
    assert run.returncode == 143, printed[-3000:]
    assert sorted(os.listdir(tmp_path)) == ["gates", *(["out.incomplete"] if stage == "written" else [])]
    assert ("--resume" in printed) == (stage == "written")
