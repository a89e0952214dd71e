"""Logs messages of a command to standard error, in the format of `--log_format`.

    default     recordmill: warning: sky: 1 class has a number and no example
    text        2026-11-22T22:01:07Z 1a2b3c4d write warning: sky: 1 class has a number and no example
    json        {"time": "…", "run_id": "1a2b…", "stage": "write", "level": "warning", "message": "sky: …"}
"""

import contextlib
import json
import logging
import os
import sys
import time
from typing import Any, Callable

from beam_pipelines.errors import UserError, escaped, printable

FORMATS = ("text", "json")
DISPLAYS = ("auto", "json", "none")  # Values of --progress.

_format: str | None = None
_is_quiet = False
_is_command = False  # False in worker processes.
_run_id = ""
_find_stage: Callable[[], str] = lambda: "start"


def set_format(name: str | None, *, quiet: bool = False) -> None:
    """Sets the format of log lines and resets the run ID.

    Args:
        name: The format, one of `FORMATS`. None prints plain lines, without messages that are useful only in a log.
        quiet: Whether to print only warnings and errors.
    """
    global _format, _is_quiet, _is_command
    _format, _is_quiet, _is_command = name, quiet, True
    set_run("", lambda: "start")


def set_run(run_id: str, find_stage: Callable[[], str]) -> None:
    """Sets the run ID of log lines.

    Args:
        run_id: The ID of the run.
        find_stage: A function that returns the current stage: start, list, plan, write or publish.
    """
    global _run_id, _find_stage
    _run_id, _find_stage = run_id, find_stage


def is_quiet() -> bool:
    """Returns whether only warnings and errors are printed."""
    return _is_quiet


def is_kept() -> bool:
    """Returns whether `--log_format` is set. If so, the start, the options and the end of a run are also logged."""
    return _format is not None


def stage() -> str:
    """Returns the current stage of the run."""
    return _find_stage()


def print_message(message: str, level: str = "info", **fields: Any) -> None:
    """Prints a message to standard error in the current format.

    Args:
        message: The message: a single line, or a line that is followed by a list.
        level: The level of the message: info, warning or error.
        **fields: Additional fields of the JSON format, as JSON values.
    """
    if _is_quiet and level == "info":
        return
    shown = f"warning: {message}" if level == "warning" else message
    if _format is None:
        line = f"recordmill: {shown}"
    else:
        now, step = _now(), stage()
        if _format == "json":
            line = json.dumps({"time": now, "run_id": _run_id, "stage": step, "level": level, "message": message, **fields}, default=str)
        else:
            line = f"{now} {_run_id[:8] or '-'} {step} {shown}"
    with contextlib.suppress(OSError):  # A full disk, for example, must not end a run.
        print(escaped(line), file=sys.stderr, flush=True)


def log_progress(**fields: Any) -> None:
    """Prints a progress line in JSON, for `--progress=json`."""
    line = {"time": _now(), "run_id": _run_id, "stage": stage(), "level": "progress", **fields}
    with contextlib.suppress(OSError):
        print(json.dumps(line), file=sys.stderr, flush=True)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def name_run_in_messages(run_id: str) -> None:
    """Adds the run ID to all log messages in a worker process, including messages from libraries."""
    if not run_id or _is_command:
        return
    make = logging.LogRecord

    def make_named(*args: Any, **options: Any) -> logging.LogRecord:
        record = make(*args, **options)
        record.msg = f"{record.msg} (run {run_id})"
        return record

    logging.setLogRecordFactory(make_named)


def write_error(path: str, error: BaseException | None, message: str, exit_code: int, in_place: str) -> None:
    """Writes the error of a failed command to the file of `--error_json`.

    Args:
        path: The path of the file. If it is empty, nothing is written.
        error: The error that ended the command, or None after an interrupt.
        message: The logged message of the error.
        exit_code: The exit code of the command.
        in_place: A description of the files that the command has written.
    """
    if not path:
        return
    fields = {
        "kind": "interrupted" if error is None else getattr(error, "kind", "unexpected"),
        "message": message,
        "stage": stage(),
        "path": getattr(error, "path", None),
        "retryable": getattr(error, "is_retryable", True),
        "exit_code": exit_code,
        "in_place": in_place,
        "run_id": _run_id,
    }
    try:
        with open(f"{path}.tmp", "w", encoding="utf-8") as file:
            json.dump(fields, file, indent=1)
        os.replace(f"{path}.tmp", path)
    except OSError as failure:
        with contextlib.suppress(OSError):
            os.unlink(f"{path}.tmp")
        if not message.startswith("--error_json="):  # Otherwise, the message is about this file.
            print_message(f"--error_json={printable(path)} could not be written: {failure.strerror}", "warning")


def clear_error(path: str) -> None:
    """Removes the error file of an earlier command.

    Raises:
        UserError: The path is not writable.
    """
    if not path:
        return
    try:
        if os.path.lexists(path):
            os.unlink(path)
        elif not os.path.isdir(os.path.dirname(path) or "."):
            raise UserError(
                f"--error_json={printable(path)}: the folder does not exist. Give a path in an existing folder."
            )
    except OSError as error:
        raise UserError(f"--error_json={printable(path)}: {error.strerror}. Give the path of a file.") from None
