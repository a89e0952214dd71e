"""Tests runs that are interrupted, and runs whose object store stops responding. Both kinds of runs can be resumed."""

import contextlib
import json
import os
import pathlib
import re
import signal
import time
from typing import Iterator

import psutil
import pytest

from beam_pipelines.__main__ import main
from engines import digest, start_recordmill
from forked_python import ForkedPython
from paused_stages import Gate
from made_images import write_class_folders
from object_stores import StoreServer, connected_to, object_digests, store_server, unresponsive, upload_files

pytestmark = pytest.mark.xdist_group("waiting")

# Each signal is used in two of these tests. Its effect on a command is the same for all tests, see
# `test_interrupt_reports_whether_the_output_is_complete`.

SECONDS = 120
NUM_SHARDS = 3
SOURCE = ("--source=image_folder", "--name=made")
OPTIONS = (*SOURCE, f"--num_shards={NUM_SHARDS}")
TOO_LONG = 600.0  # A store timeout that would exceed the time limit of the test.
SHORT_WAITS = "from beam_pipelines.parallel import interrupts\ninterrupts._STOP_SECONDS = interrupts._POLL_SECONDS = 0.3"


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> pathlib.Path:
    return write_class_folders(tmp_path_factory.mktemp("source"), {"ant": 7, "bee": 9})


@pytest.fixture(scope="module")
def uninterrupted(source, tmp_path_factory) -> dict[str, str]:
    output = tmp_path_factory.mktemp("unbroken") / "out"
    assert main(["prepare", f"--input={source}", f"--output={output}", *OPTIONS]) == 0
    return digest(output)


@pytest.fixture(scope="module")
def server(request) -> Iterator[StoreServer]:
    """Starts an object store for this module only, because the tests stop the server."""
    with store_server(request.param) as server, connected_to(server):
        yield server


@pytest.fixture
def bucket(server, source) -> str:
    return upload_files(server, {f"in/{path.relative_to(source)}": path.read_bytes() for path in source.rglob("*.*")}, "")


def check_resumed(server: StoreServer, bucket: str, uninterrupted: dict[str, str]) -> None:
    """Checks that a resumed run writes the same bytes as an uninterrupted run, and no additional objects."""
    assert main(["prepare", *OPTIONS, f"--input={bucket}/in", f"--output={bucket}/out", *server.flags, "--resume"]) == 0
    assert object_digests(server, f"{bucket}/out") == uninterrupted and not object_digests(server, f"{bucket}/out.incomplete")


@contextlib.contextmanager
def paused_run(folder: pathlib.Path, stage: str, *options: str, before: str = "", num_shards: int = NUM_SHARDS) -> Iterator[tuple[ForkedPython, Gate]]:
    """Starts a run that pauses at `stage`. At exit, checks that no process and no temporary file of the run remains."""
    (folder / "tmp").mkdir()
    with Gate(folder / "gates", stage) as gate, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder / "tmp"))
        command = ("prepare", *SOURCE, f"--num_shards={num_shards}", *options)
        run = start_recordmill(*command, gates=folder / "gates", before=f"import tempfile\ntempfile.tempdir = None\n{before}")
        try:
            gate.wait_for_arrivals(run, SECONDS)
            started = psutil.Process(run.pid).children(recursive=True)
            yield run, gate
            _, alive = psutil.wait_procs(started, timeout=5)
            assert not alive and not os.listdir(folder / "tmp")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)


def read_message(run: ForkedPython) -> str:
    """Returns the output of a run and checks that the output is a single line."""
    printed, _ = run.communicate(timeout=SECONDS)
    assert printed.count("\n") == 1, printed
    return printed


@pytest.mark.slow(5)
@pytest.mark.parametrize("server, stage", [("s3", "listed"), ("gs", "finished")], indirect=["server"])
def test_unresponsive_store_ends_run_which_can_be_resumed(server, bucket, uninterrupted, tmp_path, stage):
    options = (f"--input={bucket}/in", f"--output={bucket}/out", *server.flags)
    with paused_run(tmp_path, stage, *options, "--store_timeout=2") as (run, gate):
        with unresponsive(server):
            gate.open()
            reported = read_message(run)
    assert run.returncode == 1
    for part in (f"{bucket}/out", server.url, "for 2 s (--store_timeout)", "--resume"):
        assert part in reported, reported
    assert "manifest.json" not in object_digests(server, f"{bucket}/out")
    check_resumed(server, bucket, uninterrupted)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_killed_store_ends_run(scheme, source, tmp_path):
    with store_server(scheme) as server, connected_to(server):
        bucket = upload_files(server, {f"in/{path.relative_to(source)}": path.read_bytes() for path in source.rglob("*.*")}, "")
        # One worker process reads at most two shards while the run is paused, so it needs the store for the other shards.
        options = (f"--input={bucket}/in", f"--output={tmp_path / 'out'}", "--splits=train=1", "--direct_num_workers=1")
        with paused_run(tmp_path, "finished", *options, *server.flags, "--store_timeout=2", num_shards=8) as (run, gate):
            os.kill(server.process_id, signal.SIGKILL)
            gate.open()
            reported = read_message(run)
    assert run.returncode == 1
    assert f"{server.url} for 2 s (--store_timeout)" in reported, reported
    num_done = len([*tmp_path.glob("out.incomplete/*/done/*.json")])
    assert 1 <= num_done < 8 and re.search(rf"\. {num_done} of 8 shards are complete\. .*--resume", reported), reported


@pytest.mark.slow(5)
@pytest.mark.parametrize(
    "server, stage, sent, code", [("s3", "listed", signal.SIGINT, 130), ("gs", "finished", signal.SIGTERM, 143)], indirect=["server"]
)
def test_interrupted_run_does_not_wait_for_store(server, bucket, uninterrupted, tmp_path, stage, sent, code):
    options = (f"--input={bucket}/in", f"--output={bucket}/out", *server.flags)
    with paused_run(tmp_path, stage, *options, f"--store_timeout={TOO_LONG}", before=SHORT_WAITS) as (run, gate):
        with unresponsive(server):
            gate.open()
            run.send_signal(sent)
            reported = read_message(run)
    assert (run.returncode, reported.partition(".")[0]) == (code, "recordmill: Interrupted")
    assert "is unknown" in reported and "--resume" in reported, reported
    check_resumed(server, bucket, uninterrupted)


@pytest.mark.slow
@pytest.mark.parametrize("server, sent, code", [("s3", signal.SIGTERM, 143), ("gs", signal.SIGHUP, 129)], indirect=["server"])
def test_interrupted_run_reports_finished_shards_on_disk(server, bucket, uninterrupted, tmp_path, sent, code):
    options = (f"--input={bucket}/in", f"--output={tmp_path / 'out'}", *server.flags)
    with paused_run(tmp_path, "finished", *options, "--error_json", str(tmp_path / "error.json")) as (run, gate):
        with unresponsive(server):
            gate.open()
            run.send_signal(sent)
            reported = read_message(run)
    assert run.returncode == code
    assert re.fullmatch(rf"recordmill: Interrupted\. \d+ of {NUM_SHARDS} shards are complete\. .*--resume.*\n", reported), reported
    error = json.loads((tmp_path / "error.json").read_text())
    assert (error["kind"], error["exit_code"], f"recordmill: {error['message']}\n") == ("interrupted", code, reported)
    assert main(["prepare", *OPTIONS, *options, "--resume"]) == 0
    assert digest(tmp_path / "out") == uninterrupted


@pytest.mark.slow
@pytest.mark.parametrize("sent, code", [(signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_interrupted_run_ends_its_suspended_processes(source, uninterrupted, tmp_path, sent, code):
    """The child processes are suspended, so that they behave like processes that wait for a disk."""
    options = (f"--input={source}", f"--output={tmp_path / 'out'}")
    with paused_run(tmp_path, "written", *options) as (run, _):
        children = psutil.Process(run.pid).children()
        for child in children:
            child.suspend()
        run.send_signal(sent)
        reported = read_message(run)
        assert children
    assert run.returncode == code
    assert re.fullmatch(rf"recordmill: Interrupted\. \d+ of {NUM_SHARDS} shards are complete\. .*--resume.*\n", reported), reported
    assert main(["prepare", *OPTIONS, *options, "--resume"]) == 0
    assert digest(tmp_path / "out") == uninterrupted


@pytest.mark.slow
@pytest.mark.parametrize("server", ["s3"], indirect=True)
def test_second_signal_ends_run_immediately(server, bucket, tmp_path):
    with paused_run(tmp_path, "finished", f"--input={bucket}/in", f"--output={bucket}/out", *server.flags) as (run, gate):
        with unresponsive(server):
            gate.open()
            run.send_signal(signal.SIGINT)
            time.sleep(1)  # The first signal has not ended the run.
            run.send_signal(signal.SIGINT)
            reported = read_message(run)
    assert run.returncode == 130 and reported.startswith("recordmill: Interrupted twice. ") and reported.count("\n") == 1, reported


@pytest.mark.parametrize("value", ["0", "-1", "inf", "nan", "soon"])
def test_rejects_invalid_store_timeout_before_any_work(tmp_path, capsys, value):
    for command in (["prepare", f"--input={tmp_path}", f"--output={tmp_path}/out"], ["repair", str(tmp_path)]):
        assert main([*command, f"--store_timeout={value}"]) == 2
        assert "--store_timeout" in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]
