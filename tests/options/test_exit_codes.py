"""Tests the exit code and the `--error_json` file of every command, because schedulers rely on them."""

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

from beam_pipelines import commands
import forked_python
from beam_pipelines.__main__ import main
from forked_python import BEAM, TENSORFLOW
from prepared import mixed_images
from tf_input.storage import object_stores as read_stores

# Arguments of each command for a dataset `{}`.
ARGUMENTS = {
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

# Arguments of each command that supports object stores, for a store that does not respond.
UNAVAILABLE_ARGUMENTS = {
    "prepare": ("--input=s3://made/in", "--output=s3://made/out"),
    "export": ("s3://made/out", "s3://made/export", "--to=tfrecord"),
    **{command: ("s3://made/out",) for command in ("verify", "report", "leaks", "quality", "status")},
}
UNAVAILABLE_STORE = ("--s3_endpoint_url=http://localhost:9", "--s3_access_key_id=made", "--s3_secret_access_key=made", "--store_timeout=0.2")


TESTS = pathlib.Path(__file__).parents[1]


def arguments_of(command: str, made: object) -> list[str]:
    return [argument.format(made) for argument in ARGUMENTS[command]]


@pytest.fixture
def run_command(tmp_path, capsys) -> Callable[..., tuple[int, dict[str, Any] | None]]:
    """Returns a function that runs a command and returns its exit code and the content of `--error_json`."""

    def run(*arguments: str) -> tuple[int, dict[str, Any] | None]:
        file = tmp_path / "error.json"
        file.write_text("from an earlier command")
        code = main([*arguments, f"--error_json={file}"])
        reported = json.loads(file.read_text()) if file.exists() else None
        shown = capsys.readouterr().err
        assert reported is None or (reported["exit_code"] == code and shown.endswith(f"recordmill: {reported['message']}\n")), shown
        return code, reported

    return run


@pytest.mark.parametrize("command", commands.COMMANDS)
def test_usage_error_exits_with_2_and_is_not_retryable(run_command, command):
    code, reported = run_command(command)
    assert (code, reported["kind"], reported["retryable"]) == (2, "usage", False), reported


@pytest.mark.slow(4)
def test_success_exits_with_0_and_writes_no_error_file(run_command, tmp_path_factory, tmp_path):
    """Only quick commands are tested here. Other modules test long-running commands."""
    made = shutil.copytree(mixed_images(tmp_path_factory), tmp_path / "made")
    for command in ARGUMENTS:
        if command not in ("prepare", "analyze", "transform", "benchmark"):
            assert run_command(command, *arguments_of(command, made)) == (0, None), command


@pytest.mark.slow(3)
def test_closed_output_pipe_is_not_an_error(tmp_path_factory, tmp_path):
    """For example, `head` closes the pipe early in the command `recordmill leaks OUT | head -1`."""
    made = shutil.copytree(mixed_images(tmp_path_factory), tmp_path / "made")
    programs = {modules: shlex.split(forked_python.command_line("-m", "beam_pipelines", preloaded=modules)) for modules in (BEAM, TENSORFLOW)}
    reader, writer = os.pipe()
    os.close(reader)
    environment = {**os.environ, "PYTHONPATH": str(TESTS.parent)}
    for arguments in (["--help"], *([command, *arguments_of(command, made)] for command in ("verify", "report", "leaks", "quality", "inspect", "status", "which"))):
        program = programs[TENSORFLOW if arguments[0] in ("inspect", "which") else BEAM]
        ended = subprocess.run([*program, *arguments], stdout=writer, stderr=subprocess.PIPE, text=True, env=environment, timeout=240)
        assert (ended.returncode, "Error" in ended.stderr) == (0, False), (arguments, ended.stderr)
    os.close(writer)


@pytest.mark.slow(0.8)
@pytest.mark.parametrize("command", UNAVAILABLE_ARGUMENTS)
def test_unavailable_store_is_retryable(run_command, command):
    code, reported = run_command(command, *UNAVAILABLE_ARGUMENTS[command], *UNAVAILABLE_STORE)
    assert (code, reported["kind"], reported["retryable"]) == (1, "storage", True), reported


@pytest.mark.slow(1)
def test_unavailable_store_is_retryable_for_readers(run_command, monkeypatch):
    """Only `inspect` is tested, because `benchmark` and `which` report the error with the same function."""
    for name, value in {"ENDPOINT_URL": "http://localhost:9", "ACCESS_KEY_ID": "made", "SECRET_ACCESS_KEY": "made", "REGION": "made"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setattr(read_stores, "_RETRIES", {**read_stores._RETRIES, "max_retries": 2})
    code, reported = run_command("inspect", "s3://made/out")
    assert (code, reported["kind"], reported["retryable"]) == (1, "storage", True), reported


@pytest.mark.parametrize("sent", [signal.SIGHUP, signal.SIGINT, signal.SIGTERM])
def test_interrupt_exits_with_its_signal_and_is_retryable(run_command, monkeypatch, request, sent):
    before = signal.signal(sent, signal.default_int_handler if sent == signal.SIGINT else signal.SIG_DFL)
    request.addfinalizer(lambda: signal.signal(sent, before))
    for command in ARGUMENTS:
        monkeypatch.setitem(commands.COMMANDS, command, lambda *unused: signal.raise_signal(sent))
        code, reported = run_command(command, *arguments_of(command, "made"))
        assert (code, reported["kind"], reported["retryable"]) == (128 + sent, "interrupted", True), command


def test_problem_found_exits_with_1_and_is_not_retryable(run_command, tmp_path_factory, tmp_path):
    made = pathlib.Path(shutil.copytree(mixed_images(tmp_path_factory), tmp_path / "made"))
    next(made.glob("*train*")).write_bytes(b"")
    for command in (("verify", str(made), "--quick"), ("repair", str(made), "--dry_run")):
        code, reported = run_command(*command)
        assert (code, reported["kind"], reported["retryable"]) == (1, "problems_found", False), reported


def test_tests_named_in_the_exit_codes_page_exist():
    rows = [line for line in (TESTS.parent / "docs" / "reference" / "exit_codes.md").read_text().splitlines() if line.startswith("|") and "`test_" in line]
    existing = {path.stem for path in TESTS.rglob("test_*.py")}
    assert len(rows) > 5
    for row in rows:
        assert set(re.findall(r"`(test_\w+)`", row)) <= existing, row


@pytest.mark.slow(3)
@pytest.mark.parametrize("command", ["verify", "leaks", "inspect"])
def test_misspelled_option_gets_a_suggestion(command, tmp_path_factory, capfd):
    made = mixed_images(tmp_path_factory)
    assert main([command, *arguments_of(command, made), "--log_fromat=json"]) == 2
    assert "did you mean --log_format?" in capfd.readouterr().err
