"""Tests logs and machine-readable output of `--log_format`, `--error_json`, `--progress` and `recordmill status`."""

import contextlib
import dataclasses
import datetime
import json
import logging
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading

import pytest

from beam_pipelines import log
from beam_pipelines.__main__ import main
from beam_pipelines.errors import StorageError, UserError, find_user_facing
from beam_pipelines.parallel import progress
from beam_pipelines.quiet import import_quietly
from beam_pipelines.storage.lease import make_lease
from engines import finish, start_prepare
from foreign_leases import write_lease
from forked_runs import ForkedRun
from paused_stages import Gate
from made_images import write_class_folders, write_files

ROOT = pathlib.Path(__file__).parents[2]
LINE = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ) ([0-9a-f]{8}|-) (start|list|plan|write|publish|done) (.*)")


@pytest.fixture(autouse=True)
def reset_log_format():
    yield
    log.set_format(None)
    progress.set_display("auto")


@pytest.fixture
def source(tmp_path) -> pathlib.Path:
    write_class_folders(tmp_path / "in", {"ant": 30, "bee": 20})
    return tmp_path / "in"


def prepare_arguments(source: pathlib.Path, output: pathlib.Path, *options: str) -> list[str]:
    return ["prepare", "--input", str(source), "--output", str(output), "--num_shards=3", *options]


def test_log_has_first_and_last_line_with_time_run_and_stage(source, tmp_path, capsys):
    assert main(prepare_arguments(source, tmp_path / "out", "--log_format=text")) == 0
    detected, first, *_, last = capsys.readouterr().err.splitlines()
    assert "--source=image_folder" in detected
    run_id = json.loads((tmp_path / "out/run.json").read_text())["run_id"]
    assert LINE.fullmatch(first).groups()[1:3] == (run_id[:8], "list") and f"run {run_id} to {tmp_path}/out on DirectRunner" in first
    assert LINE.fullmatch(last).groups()[1:3] == (run_id[:8], "done") and re.search(r"done after \d+ s: ", last)
    datetime.datetime.fromisoformat(LINE.fullmatch(last)[1])


def test_json_log_has_one_object_per_line_with_the_options_first(source, tmp_path, capsys):
    assert main(prepare_arguments(source, tmp_path / "out", "--log_format=json", "--seed=7")) == 0
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert all({"time", "run_id", "stage", "level", "message"} <= set(line) for line in lines)
    assert "--source=image_folder" in lines[0]["message"]
    assert lines[1]["options"]["seed"] == "7" and len({line["run_id"] for line in lines[1:]}) == 1
    assert main(prepare_arguments(source, tmp_path / "out", "--log_format=json")) == 2
    error = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert (error["level"], error["kind"], error["stage"]) == ("error", "usage", "start") and "out" in error["message"]


def test_default_run_logs_only_the_detected_source(source, tmp_path, capsys):
    assert main(prepare_arguments(source, tmp_path / "out")) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("recordmill: --source=image_folder")


def test_progress_is_logged_at_intervals_without_a_terminal(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(progress, "LOG_SECONDS", 0.05)
    directory, reported = str(tmp_path / "progress"), threading.Event()
    print_message = log.print_message
    monkeypatch.setattr(log, "print_message", lambda *args, **fields: (print_message(*args, **fields), reported.set()))
    progress.count(directory, listed=100, listing_done=1, written=40, dead_letters=2, written_bytes=5_000_000)
    with progress.ProgressDisplay(directory):
        assert reported.wait(30)
        progress.count_restart()
        reported.clear()
        # The first line may predate the restart
        assert reported.wait(30) and not reported.clear() and reported.wait(30)
    line, *_, last = capsys.readouterr().err.splitlines()
    assert last.endswith("; job restarts: 1"), last
    assert re.fullmatch(r"recordmill: 0:\d\d: listed 100 of 100 \(.*\); written 40 of 100 \([\d,]+/s, 0:\d\d left\), 2 dead letters; [\d,.]+ MB/s", line), line


def test_progress_reports_repeated_requests(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(progress, "LOG_SECONDS", 0.05)
    reported, print_message = threading.Event(), log.print_message
    monkeypatch.setattr(log, "print_message", lambda *args, **fields: (print_message(*args, **fields), reported.set()))
    # The counts of a worker that reads from an object store
    counts = progress._COUNTS.pack(*progress.Counts(listed=3, retries=1234))
    write_files(tmp_path / "progress", {"worker": counts, "starting worker": b""})
    with progress.ProgressDisplay(str(tmp_path / "progress")):
        assert reported.wait(30)
    line = capsys.readouterr().err.splitlines()[0]
    assert line.endswith("; 1,234 retried requests") and "MB/s" not in line, line


def test_progress_does_not_decrease_if_its_directory_is_removed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(progress, "JSON_SECONDS", 0.05)
    reported, print_message = threading.Event(), log.log_progress
    monkeypatch.setattr(log, "log_progress", lambda **fields: (print_message(**fields), reported.set()))
    progress.set_display("json")
    progress.count(str(tmp_path / "progress"), written=40)
    with progress.ProgressDisplay(str(tmp_path / "progress")):
        assert reported.wait(30)
        shutil.rmtree(tmp_path / "progress")
    assert {json.loads(line)["stages"][1]["done"] for line in capsys.readouterr().err.splitlines()} == {40}


def test_output_during_an_import_is_shown_only_if_the_import_fails(tmp_path, monkeypatch, capfd):
    """The test includes messages of C++ code, which writes directly to a file descriptor."""
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "")
    monkeypatch.syspath_prepend(tmp_path)
    writes_to_stderr = b"import os\nos.write(2, b'an old driver\\n')\n"
    write_files(tmp_path, {"made_talkative.py": writes_to_stderr, "made_broken.py": writes_to_stderr + b"import made_nowhere\n"})
    for name, expected in (("made_talkative", ""), ("made_broken", "an old driver\n")):
        monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL")
        with contextlib.nullcontext() if not expected else pytest.raises(ModuleNotFoundError, match="made_nowhere"):
            import_quietly(name)
        assert capfd.readouterr().err == expected, name
    with pytest.raises(UserError, match=r"made_nowhere is not installed.* pip install 'recordmill\[transform\]'"):
        import_quietly("made_broken", "made_nowhere")


def test_json_progress_is_a_line_per_second(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(progress, "JSON_SECONDS", 0.05)
    directory, reported = str(tmp_path / "progress"), threading.Event()
    print_message = log.log_progress
    monkeypatch.setattr(log, "log_progress", lambda **fields: (print_message(**fields), reported.set()))
    progress.set_display("json")
    progress.count(directory, listed=100, listing_done=1, written=40, dead_letters=2, written_bytes=5_000_000)
    with progress.ProgressDisplay(directory):
        assert reported.wait(30)
        progress.count(directory, written=60)
    first, *_, last = map(json.loads, capsys.readouterr().err.splitlines())
    assert [(stage["name"], stage["done"], stage["total"]) for stage in first["stages"]] == [("listed", 100, 100), ("written", 40, 100)]
    assert first["stages"][1]["seconds_left"] > 0 and first["bytes_per_second"] > 0
    assert (first["level"], first["dead_letters"], first["restarts"]) == ("progress", 2, 0)
    assert last["stages"][1]["done"] == 100  # progress is also logged at the end


def test_quiet_run_logs_only_errors(source, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(progress, "LOG_SECONDS", 0.01)
    write_files(tmp_path / "in", {"ant/bad.jpg": b"<html>"})
    assert main(prepare_arguments(source, tmp_path / "out", "--quiet", "--max_bad_fraction=0.1")) == 0
    assert capsys.readouterr() == ("", "")
    assert main(["verify", str(tmp_path / "out"), "--quiet"]) == 0
    assert "intact" in capsys.readouterr().out  # the result that the user asked for
    assert main(prepare_arguments(source, tmp_path / "out", "--quiet")) == 2
    assert f"--output={tmp_path}/out" in capsys.readouterr().err


@pytest.mark.slow(3)
def test_long_commands_support_json_progress_and_quiet(source, tmp_path, capfd):
    out = str(tmp_path / "out")
    assert main(prepare_arguments(source, tmp_path / "out")) == 0
    shard = next((tmp_path / "out").glob("*-train.tfrecord-*"))
    commands = {
        "verify": ([out], ["verified"]),
        "leaks": ([out], ["files", "hashed"]),
        "quality": ([f"{out}/*-train.tfrecord-*"], ["files", "records"]),
        "export": ([out, str(tmp_path / "new"), "--to=webdataset"], ["written"]),
        "repair": ([out], ["listed", "written"]),
    }
    for command, (words, stages) in commands.items():
        if command == "repair":
            shard.unlink()
        capfd.readouterr()
        assert main([command, *words, "--progress=json"]) == 0
        last = json.loads(capfd.readouterr().err.splitlines()[-1])
        assert (last["level"], [stage["name"] for stage in last["stages"]]) == ("progress", stages)
        if command != "export":  # the counts of an export are removed with its working directory
            done = [(stage["done"], stage["total"]) for stage in last["stages"]]
            assert all(number == (total or number) for number, total in done) and done[-1][0], (command, done)
    shutil.rmtree(tmp_path / "new")
    shard.unlink()
    for command, (words, _) in commands.items():
        capfd.readouterr()
        assert main([command, *words, "--quiet"]) == (1 if command == "verify" else 0), command
        printed, err = capfd.readouterr()
        assert err.startswith("recordmill: ") == (command == "verify") and bool(printed) == (command in ("verify", "leaks", "quality")), command
        if command == "verify":
            assert main(["repair", out, "--quiet", "--progress=none"]) == 0


def test_shell_completion_suggests_values(tmp_path):
    pytest.importorskip("argcomplete")
    line = "recordmill prepare --progress j"
    variables = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_STDOUT_FILENAME": str(tmp_path / "completed"), "COMP_LINE": line, "COMP_POINT": str(len(line))}
    subprocess.run([sys.executable, "-m", "beam_pipelines"], env={**os.environ, "PYTHONPATH": str(ROOT), **variables}, check=True, timeout=120)
    assert (tmp_path / "completed").read_text().strip() == "json"


# Maps each failure to the command, the kind, the stage and the exit code.
FAILURES = {
    "missing argument": (["prepare", "--input"], "usage", "start", 2),
    "invalid option": (["prepare", "--input", "in", "--output", "out", "--seed=x"], "usage", "start", 2),
    "no input": (["prepare", "--input", "nowhere", "--output", "out"], "usage", "start", 2),
    "too many dead letters": (["prepare", "--input", "in", "--output", "out", "--max_bad_fraction=0"], "data", "publish", 2),
    "status of a missing dataset": (["status", "nowhere"], "usage", "start", 2),
    "repair of a missing dataset": (["repair", "nowhere"], "usage", "start", 2),
}


@pytest.mark.parametrize("case", FAILURES)
def test_error_json_has_the_reported_failure(source, tmp_path, monkeypatch, capsys, case):
    command, kind, stage, exit_code = FAILURES[case]
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path / "in", {"ant/bad.jpg": b"<html>"})
    (tmp_path / "error.json").write_text("of an earlier command")
    assert main([*command, "--error_json", "error.json"]) == exit_code
    actual = json.loads((tmp_path / "error.json").read_text())
    assert (actual["kind"], actual["stage"], actual["exit_code"], actual["retryable"]) == (kind, stage, exit_code, False), actual
    lines = [line for line in capsys.readouterr().err.splitlines(keepends=True) if not line.startswith("recordmill: --source=")]
    assert "".join(lines) == f"recordmill: {actual['message']}\n"


def test_error_json_is_removed_after_success(source, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "error.json").write_text("of an earlier command")
    assert main(prepare_arguments(source, tmp_path / "out", "--error_json=error.json")) == 0
    assert not (tmp_path / "error.json").exists()
    assert main(["status", "out", "--error_json=nowhere/error.json"]) == 2
    assert "--error_json=nowhere/error.json" in capsys.readouterr().err


# Maps each path that cannot be written to the options and to parts of the expected lines.
UNWRITABLE = {
    "a folder": (["--error_json=there"], ["--error_json=there: Is a directory"]),
    "no value": (["--error_json"], ["--error_json:"]),
    "a folder as temporary file": (
        ["--error_json=new"],
        ["nowhere", "--error_json=new could not be written: Is a directory"],
    ),
}


@pytest.mark.parametrize("case", UNWRITABLE)
def test_unwritable_error_json_is_reported_and_keeps_the_exit_code(tmp_path, monkeypatch, capsys, case):
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path, {"there/mine": b"", "new.tmp/mine": b""})
    options, expected = UNWRITABLE[case]
    assert main(["status", "nowhere", *options]) == 2
    for line, part in zip(capsys.readouterr().err.splitlines(), expected, strict=True):
        assert line.startswith("recordmill: ") and part in line, line
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()) == ["new.tmp/mine", "there/mine"]


def test_log_lines_of_a_worker_process_name_the_run():
    code = (
        "import logging; from beam_pipelines.log import name_run_in_messages as name; logging.basicConfig(format='%(message)s')\n"
        "name('earlier run'); name('1a2b'); name(''); logging.warning('%d bundles', 3)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert run.stderr == "3 bundles (run 1a2b)\n"


def test_log_lines_of_the_command_itself_do_not_name_the_run(source, tmp_path, caplog):
    assert main(prepare_arguments(source, tmp_path / "out")) == main(["export", str(tmp_path / "out"), str(tmp_path / "tars"), "--to=webdataset"]) == 0
    logging.getLogger("tf_input.another").warning("%d words", 2)
    assert caplog.messages[-1] == "2 words"


def test_error_keeps_its_path_and_kind_through_an_engine():
    error = StorageError("/in/a.jpg could not be read: Input/output error", "/in/a.jpg")
    for wrapped in (RuntimeError(f"{error} [while running 'Write']"), RuntimeError(f"Traceback\nbeam_pipelines.errors.StorageError: {error}\n")):
        wrapped.__cause__ = error if "Traceback" not in str(wrapped) else None
        actual = find_user_facing(wrapped)
        assert (type(actual), actual.path, actual.exit_code, actual.kind) == (StorageError, "/in/a.jpg", 1, "storage")
    assert find_user_facing(UserError("x")).exit_code == 2


def status(output: pathlib.Path, capsys) -> dict:
    assert main(["status", str(output), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_status_of_a_killed_run_shows_progress_and_resume(source, tmp_path, capsys):
    output = tmp_path / "out"
    run = ForkedRun(*prepare_arguments(source, output), signalled=f"{signal.SIGKILL.value}:beam_pipelines.shards.shard_files:write_done:2")
    assert run.wait() == -signal.SIGKILL
    actual = status(output, capsys)
    assert actual["dataset"] is None
    resumable = actual["run"]
    assert (resumable["state"], resumable["stage"]) == ("ended", "write")
    assert (resumable["shards_done"], resumable["can_resume"]) == (1, True)
    assert main(["status", str(output)]) == 0
    printed = capsys.readouterr().out
    assert "dataset:  none yet" in printed and "1 of 3 shards complete" in printed and "--resume" in printed, printed
    assert main(prepare_arguments(source, output, "--resume")) == 0
    capsys.readouterr()
    actual = status(output, capsys)
    assert actual["run"] is None and sum(actual["dataset"]["examples"].values()) == 50


def test_status_suggests_resume_only_for_commands_that_support_it(tmp_path, capsys):
    write_files(tmp_path / "out.incomplete/7", {"manifest.json": b"{}", "run.json": b"{}"})
    for command, expected in (("transform", "run the same command again"), ("prepare", "--resume")):
        write_lease(f"{tmp_path}/out.incomplete", dataclasses.replace(make_lease("7", "8", command=command), renewed=0))
        actual = status(tmp_path / "out", capsys)["run"]
        assert (actual["command"], actual["state"], actual["stage"]) == (command, "ended", "publish")
        assert main(["status", str(tmp_path / "out")]) == 0
        printed = capsys.readouterr().out
        assert expected in printed.partition("next: ")[2] and "counted:" not in printed, printed


@pytest.mark.slow
def test_status_shows_an_active_run(source, tmp_path, capsys):
    with Gate(tmp_path / "gates", "written") as gate:
        run = start_prepare(source, tmp_path / "out", gates=tmp_path / "gates")
        gate.wait_for_arrivals(run)
        actual = status(tmp_path / "out", capsys)["run"]
        assert (actual["state"], actual["process"], actual["engine"]) == ("running", run.pid, "DirectRunner")
        assert main(prepare_arguments(source, tmp_path / "out", "--resume", "--error_json", str(tmp_path / "e.json"))) == 1
        error = json.loads((tmp_path / "e.json").read_text())
        assert (error["kind"], error["retryable"]) == ("busy", True)
        gate.open()
        finish(run)
