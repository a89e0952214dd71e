"""What a scheduler goes by, of every command: its exit code, and what `--error_json` says of a failure."""

import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
from typing import Any, Callable

import pytest

import beam_pipelines.__main__ as command_line
import forked_python
from beam_pipelines.__main__ import main
from forked_python import BEAM, TENSORFLOW
from prepared import mixed_images
from tf_input.storage import object_stores as read_stores

# Command -> what it is given, for a dataset `{}`.
GIVEN = {
    "prepare": ("--input={}", "--output={}-again"),
    "analyze": ("{}",),
    "transform": ("{}", "{}-transformed", "--name=made"),
    "verify": ("{}", "--quick"),
    "report": ("{}",),
    "leaks": ("{}", "--duplicate_distance=0"),
    "export": ("{}", "{}-export", "--to=tfrecord"),
    "quality": ("{}",),
    "inspect": ("{}",),
    "repair": ("{}",),
    "status": ("{}",),
    "benchmark": ("{}",),
    "which": ("{}", "--epoch=0", "--step=0", "--batch_size=4", "--seed=0"),
}

# Command -> the same of a store where nobody listens. Others read what is mounted alone, or are a trainer's.
AWAY = {
    "prepare": ("--input=s3://made/in", "--output=s3://made/out"),
    "export": ("s3://made/out", "s3://made/export", "--to=tfrecord"),
    **{command: ("s3://made/out",) for command in ("verify", "report", "leaks", "quality", "status")},
}
NOBODY = ("--s3_endpoint_url=http://localhost:9", "--s3_access_key_id=made", "--s3_secret_access_key=made", "--store_timeout=0.2")


TESTS = pathlib.Path(__file__).parents[1]


def given(command: str, made: object) -> list[str]:
    return [argument.format(made) for argument in GIVEN[command]]


@pytest.fixture
def ends(tmp_path, capsys) -> Callable[..., tuple[int, dict[str, Any] | None]]:
    """Runs a command: its exit code, and what `--error_json` says, None where it is not there."""

    def run(*arguments: str) -> tuple[int, dict[str, Any] | None]:
        file = tmp_path / "error.json"
        file.write_text("of an earlier command")
        code = main([*arguments, f"--error_json={file}"])
        reported = json.loads(file.read_text()) if file.exists() else None
        shown = capsys.readouterr().err
        assert reported is None or (reported["exit_code"] == code and shown.endswith(f"recordmill: {reported['message']}\n")), shown
        return code, reported

    return run


@pytest.mark.parametrize("command", command_line._COMMANDS)
def test_wrong_use_is_not_tried_again(ends, command):
    code, reported = ends(command)
    assert (code, reported["kind"], reported["retryable"]) == (2, "usage", False), reported


@pytest.mark.slow(4)
def test_what_is_done_is_0_and_leaves_no_error(ends, tmp_path_factory, tmp_path):
    """Of those that are done at once; of the others their own tests see it."""
    made = shutil.copytree(mixed_images(tmp_path_factory), tmp_path / "made")
    for command in GIVEN:
        if command not in ("prepare", "analyze", "transform", "benchmark"):
            assert ends(command, *given(command, made)) == (0, None), command


@pytest.mark.slow(3)
def test_output_that_nobody_reads_ends_without_a_word(tmp_path_factory, tmp_path):
    """As that of `recordmill leaks OUT | head -1`, once `head` has seen enough."""
    made = shutil.copytree(mixed_images(tmp_path_factory), tmp_path / "made")
    programs = {modules: shlex.split(forked_python.command_line("-m", "beam_pipelines", preloaded=modules)) for modules in (BEAM, TENSORFLOW)}
    reader, writer = os.pipe()
    os.close(reader)
    environment = {**os.environ, "PYTHONPATH": str(TESTS.parent)}
    for arguments in (["--help"], *([command, *given(command, made)] for command in ("verify", "report", "leaks", "quality", "inspect", "status", "which"))):
        program = programs[TENSORFLOW if arguments[0] in ("inspect", "which") else BEAM]
        ended = subprocess.run([*program, *arguments], stdout=writer, stderr=subprocess.PIPE, text=True, env=environment, timeout=240)
        assert (ended.returncode, "Error" in ended.stderr) == (0, False), (arguments, ended.stderr)
    os.close(writer)


@pytest.mark.slow(0.8)
@pytest.mark.parametrize("command", AWAY)
def test_a_store_that_is_away_may_be_back(ends, command):
    code, reported = ends(command, *AWAY[command], *NOBODY)
    assert (code, reported["kind"], reported["retryable"]) == (1, "storage", True), reported


@pytest.mark.slow(1)
def test_so_may_one_that_is_read_from(ends, monkeypatch):
    """By `inspect`; `benchmark` and `which` tell of it in the same place."""
    for name, value in {"ENDPOINT_URL": "http://localhost:9", "ACCESS_KEY_ID": "made", "SECRET_ACCESS_KEY": "made", "REGION": "made"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setattr(read_stores, "_RETRIES", {**read_stores._RETRIES, "max_retries": 2})
    code, reported = ends("inspect", "s3://made/out")
    assert (code, reported["kind"], reported["retryable"]) == (1, "storage", True), reported


@pytest.mark.parametrize("sent", [signal.SIGHUP, signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_is_its_signal_and_may_be_tried_again(ends, monkeypatch, request, sent):
    before = signal.signal(sent, signal.default_int_handler if sent == signal.SIGINT else signal.SIG_DFL)  # a background job's is ignored
    request.addfinalizer(lambda: signal.signal(sent, before))
    for command in GIVEN:
        monkeypatch.setitem(command_line._COMMANDS, command, lambda *unused: signal.raise_signal(sent))
        code, reported = ends(command, *given(command, "made"))
        assert (code, reported["kind"], reported["retryable"]) == (128 + sent, "interrupted", True), command


def test_what_a_command_looks_for_and_finds_is_1_and_would_be_found_again(ends, tmp_path_factory, tmp_path):
    made = pathlib.Path(shutil.copytree(mixed_images(tmp_path_factory), tmp_path / "made"))
    next(made.glob("*train*")).write_bytes(b"")
    for command in (("verify", str(made), "--quick"), ("repair", str(made), "--dry_run")):
        code, reported = ends(*command)
        assert (code, reported["kind"], reported["retryable"]) == (1, "found", False), reported


def test_each_fault_of_the_page_has_tests_that_there_are():
    rows = [line for line in (TESTS.parent / "docs" / "reference" / "exit_codes.md").read_text().splitlines() if line.startswith("|") and "`test_" in line]
    existing = {path.stem for path in TESTS.rglob("test_*.py")}
    assert len(rows) > 10
    for row in rows:
        assert set(re.findall(r"`(test_\w+)`", row)) <= existing, row


@pytest.mark.slow(3)
@pytest.mark.parametrize("command", ["verify", "leaks", "inspect"])
def test_a_misspelt_option_of_a_complete_call_gets_the_similar_name(command, tmp_path_factory, capfd):
    made = mixed_images(tmp_path_factory)
    assert main([command, *given(command, made), "--log_fromat=json"]) == 2
    assert "did you mean --log_format?" in capfd.readouterr().err
