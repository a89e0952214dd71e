"""What a command says on the standard error output while it works: for people, for a log, or for programs (`--log_format`).

    as it is    recordmill: warning: sky: 1 class has a number and no example
    text        2026-11-22T22:01:07Z 1a2b3c4d write warning: sky: 1 class has a number and no example
    json        {"time": "2026-11-22T22:01:07Z", "run_id": "1a2b…", "stage": "write", "level": "warning", "message": "sky: …"}
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
DISPLAYS = ("auto", "json", "none")  # of progress

_format: str | None = None
_is_quiet = False
_is_command = False  # and not the process of a worker
_run_id = ""
_find_stage: Callable[[], str] = lambda: "start"


def set_format(name: str | None, *, quiet: bool = False) -> None:
    """Sets how everything is told from now on, of no run yet.

    Args:
        name: The format of the lines, one of `FORMATS`; None: plain lines, and none that only a log needs.
        quiet: Whether nothing is told but warnings and errors.
    """
    global _format, _is_quiet, _is_command
    _format, _is_quiet, _is_command = name, quiet, True
    set_run("", lambda: "start")


def set_run(run_id: str, find_stage: Callable[[], str]) -> None:
    """Sets the run that each line is of from now on.

    Args:
        run_id: The id of the run.
        find_stage: Says how far the run is: start, list, plan, write or publish.
    """
    global _run_id, _find_stage
    _run_id, _find_stage = run_id, find_stage


def is_quiet() -> bool:
    """Whether nothing is told but warnings and errors."""
    return _is_quiet


def is_kept() -> bool:
    """Whether the lines go to a log, where a start, an end and what it was done with are looked for."""
    return _format is not None


def stage() -> str:
    """The stage that the run is at."""
    return _find_stage()


def say(message: str, level: str = "info", **fields: Any) -> None:
    """Says one thing on the standard error output, in the format that is set.

    Args:
        message: The message for people: one line, or a list behind one.
        level: The level of the message: info, warning or error.
        **fields: The message for programs, as plain values.
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
    with contextlib.suppress(OSError):  # such as a log on a full disk, which must not end a run
        print(escaped(line), file=sys.stderr, flush=True)


def say_progress(**fields: Any) -> None:
    """Says one line of JSON for programs, as `--progress=json` has them."""
    line = {"time": _now(), "run_id": _run_id, "stage": stage(), "level": "progress", **fields}
    with contextlib.suppress(OSError):
        print(json.dumps(line), file=sys.stderr, flush=True)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def name_run_in_messages(run_id: str) -> None:
    """Makes what libraries log in a worker's process, where an engine keeps it, name the run.

    The command's own process does so itself.
    """
    if not run_id or _is_command:
        return
    make = logging.LogRecord

    def make_named(*args: Any, **options: Any) -> logging.LogRecord:
        record = make(*args, **options)
        record.msg = f"{record.msg} (run {run_id})"
        return record

    logging.setLogRecordFactory(make_named)


def write_error(path: str, error: BaseException | None, message: str, exit_code: int, in_place: str) -> None:
    """Writes the file that `--error_json` names, on the failure of this command.

    Args:
        path: The path of the file; empty: nobody asked for one.
        error: The error that ended the command; None: an interrupt did.
        message: The message that told of it.
        exit_code: The exit code of the command.
        in_place: A text that says what of the command's work is in place.
    """
    if not path:
        return
    found = {
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
            json.dump(found, file, indent=1)
        os.replace(f"{path}.tmp", path)
    except OSError as failure:
        with contextlib.suppress(OSError):
            os.unlink(f"{path}.tmp")
        if not message.startswith("--error_json="):  # which says so already
            say(f"--error_json={printable(path)} could not be written: {failure.strerror}", "warning")


def clear_error(path: str) -> None:
    """Removes, before a command begins, what an earlier one has written there: it says nothing of this one.

    Raises:
        UserError: Nothing can be written at the path.
    """
    if not path:
        return
    try:
        if os.path.lexists(path):
            os.unlink(path)
        elif not os.path.isdir(os.path.dirname(path) or "."):
            raise UserError(f"--error_json={printable(path)}: expected a path in a folder that is there")
    except OSError as error:
        raise UserError(f"--error_json={printable(path)}: {error.strerror}; expected the path of a file") from None
