"""A store that dies amid a run: it ends in one line, soon, and another goes on from what is there. And a run that is told to end."""

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
from object_stores import StoreServer, objects, put, reached, silenced, store_server

pytestmark = pytest.mark.xdist_group("waiting")

# Each signal comes in two of the tests here; what one does to a command is the same for all (see `test_interrupt_reports_whether_the_output_is_complete`).

SECONDS = 120
NUM_SHARDS = 3
OPTIONS = ("--name=made", f"--num_shards={NUM_SHARDS}")
TOO_LONG = 600.0  # for a run that waits for a store
HURRY = "from beam_pipelines.parallel import interrupts\ninterrupts._STOP_SECONDS = interrupts._LOOK_SECONDS = 0.3"


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> pathlib.Path:
    return write_class_folders(tmp_path_factory.mktemp("source"), {"ant": 7, "bee": 9})


@pytest.fixture(scope="module")
def unbroken(source, tmp_path_factory) -> dict[str, str]:
    output = tmp_path_factory.mktemp("unbroken") / "out"
    assert main(["prepare", f"--input={source}", f"--output={output}", *OPTIONS]) == 0
    return digest(output)


@pytest.fixture(scope="module")
def server(request) -> Iterator[StoreServer]:
    """One that no other test needs, and that may be stopped."""
    with store_server(request.param) as server, reached(server):
        yield server


@pytest.fixture
def bucket(server, source) -> str:
    return put(server, {f"in/{path.relative_to(source)}": path.read_bytes() for path in source.rglob("*.*")}, "")


def check_resumed(server: StoreServer, bucket: str, unbroken: dict[str, str]) -> None:
    """Another run goes on, to the same bytes, and nothing is left beside them."""
    assert main(["prepare", *OPTIONS, f"--input={bucket}/in", f"--output={bucket}/out", *server.flags, "--resume"]) == 0
    assert objects(server, f"{bucket}/out") == unbroken and not objects(server, f"{bucket}/out.incomplete")


@contextlib.contextmanager
def held_run(folder: pathlib.Path, stage: str, *options: str, before: str = "") -> Iterator[tuple[ForkedPython, Gate]]:
    """A run that is held at a stage. At the end there is none of its processes and none of its temporary files, or the test has failed."""
    (folder / "tmp").mkdir()
    with Gate(folder / "gates", stage) as gate, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder / "tmp"))
        run = start_recordmill("prepare", *OPTIONS, *options, gates=folder / "gates", before=f"import tempfile\ntempfile.tempdir = None\n{before}")
        try:
            gate.wait_for_arrivals(run, SECONDS)
            started = psutil.Process(run.pid).children(recursive=True)
            yield run, gate
            _, alive = psutil.wait_procs(started, timeout=5)
            assert not alive and not os.listdir(folder / "tmp")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)


def told_by(run: ForkedPython) -> str:
    """The one line that a run ends with, and all that it says."""
    printed, _ = run.communicate(timeout=SECONDS)
    assert printed.count("\n") == 1, printed
    return printed


@pytest.mark.slow(5)
@pytest.mark.parametrize("server, stage", [("s3", "listed"), ("gs", "finished")], indirect=["server"])
def test_a_store_that_dies_ends_the_run_in_one_line_and_another_goes_on(server, bucket, unbroken, tmp_path, stage):
    options = (f"--input={bucket}/in", f"--output={bucket}/out", *server.flags)
    with held_run(tmp_path, stage, *options, "--store_timeout=2") as (run, gate):
        with silenced(server):
            gate.open()
            reported = told_by(run)
    assert run.returncode == 1
    reason = rf"{bucket}/\S+: {re.escape(server.url)} .* for 2 s \(--store_timeout\).*"
    in_place = f"The state of {bucket}/out is unknown, because the store does not respond. Rerun with --resume to continue."
    assert re.fullmatch(rf"recordmill: (.*: )?{reason}\.? {in_place}\n", reported), reported
    assert "manifest.json" not in objects(server, f"{bucket}/out")
    check_resumed(server, bucket, unbroken)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_a_store_that_is_killed_too(scheme, source, tmp_path):
    """What was written to a disk is gone on from, with the same store in another place."""
    with store_server(scheme) as server, reached(server):
        bucket = put(server, {f"in/{path.relative_to(source)}": path.read_bytes() for path in source.rglob("*.*")}, "")
        options = (f"--input={bucket}/in", f"--output={tmp_path / 'out'}")
        with held_run(tmp_path, "finished", *options, *server.flags, "--store_timeout=2") as (run, gate):
            os.kill(server.process_id, signal.SIGKILL)
            gate.open()
            reported = told_by(run)
    assert run.returncode == 1
    assert f"{server.url} for 2 s (--store_timeout)" in reported, reported
    assert re.search(rf"\. \d+ of {NUM_SHARDS} shards are complete\. .*--resume", reported), reported


@pytest.mark.slow(5)
@pytest.mark.parametrize(
    "server, stage, sent, code", [("s3", "listed", signal.SIGINT, 130), ("gs", "finished", signal.SIGTERM, 143)], indirect=["server"]
)
def test_a_run_that_is_told_to_end_does_not_wait_for_a_store(server, bucket, unbroken, tmp_path, stage, sent, code):
    options = (f"--input={bucket}/in", f"--output={bucket}/out", *server.flags)
    with held_run(tmp_path, stage, *options, f"--store_timeout={TOO_LONG}", before=HURRY) as (run, gate):
        with silenced(server):
            gate.open()
            run.send_signal(sent)
            reported = told_by(run)
    assert (run.returncode, reported.partition(".")[0]) == (code, "recordmill: Interrupted")
    assert "is unknown" in reported and "--resume" in reported, reported
    check_resumed(server, bucket, unbroken)


@pytest.mark.slow
@pytest.mark.parametrize("server, sent, code", [("s3", signal.SIGTERM, 143), ("gs", signal.SIGHUP, 129)], indirect=["server"])
def test_a_run_that_is_told_to_end_says_what_is_on_the_disk(server, bucket, unbroken, tmp_path, sent, code):
    options = (f"--input={bucket}/in", f"--output={tmp_path / 'out'}", *server.flags)
    with held_run(tmp_path, "finished", *options, "--error_json", str(tmp_path / "error.json")) as (run, gate):
        with silenced(server):
            gate.open()
            run.send_signal(sent)
            reported = told_by(run)
    assert run.returncode == code
    assert re.fullmatch(rf"recordmill: Interrupted\. \d+ of {NUM_SHARDS} shards are complete\. .*--resume.*\n", reported), reported
    error = json.loads((tmp_path / "error.json").read_text())
    assert (error["kind"], error["exit_code"], f"recordmill: {error['message']}\n") == ("interrupted", code, reported)
    assert main(["prepare", *OPTIONS, *options, "--resume"]) == 0
    assert digest(tmp_path / "out") == unbroken


@pytest.mark.slow
@pytest.mark.parametrize("sent, code", [(signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_a_run_whose_processes_do_not_answer_ends_with_them(source, unbroken, tmp_path, sent, code):
    """As on a disk that hangs."""
    options = (f"--input={source}", f"--output={tmp_path / 'out'}")
    with held_run(tmp_path, "written", *options) as (run, _):
        children = psutil.Process(run.pid).children()
        for child in children:
            child.suspend()
        run.send_signal(sent)
        reported = told_by(run)
        assert children
    assert run.returncode == code
    assert re.fullmatch(rf"recordmill: Interrupted\. \d+ of {NUM_SHARDS} shards are complete\. .*--resume.*\n", reported), reported
    assert main(["prepare", *OPTIONS, *options, "--resume"]) == 0
    assert digest(tmp_path / "out") == unbroken


@pytest.mark.slow
@pytest.mark.parametrize("server", ["s3"], indirect=True)
def test_a_second_signal_ends_a_run_at_once(server, bucket, tmp_path):
    with held_run(tmp_path, "finished", f"--input={bucket}/in", f"--output={bucket}/out", *server.flags) as (run, gate):
        with silenced(server):
            gate.open()
            run.send_signal(signal.SIGINT)
            time.sleep(1)  # it has not ended
            run.send_signal(signal.SIGINT)
            reported = told_by(run)
    assert (run.returncode, reported) == (130, "recordmill: Interrupted twice. The state of the output is unknown.\n")


@pytest.mark.parametrize("value", ["0", "-1", "inf", "nan", "soon"])
def test_a_timeout_that_is_none_is_refused_before_any_work(tmp_path, capsys, value):
    for command in (["prepare", f"--input={tmp_path}", f"--output={tmp_path}/out"], ["repair", str(tmp_path)]):
        assert main([*command, f"--store_timeout={value}"]) == 2
        assert "--store_timeout" in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]
