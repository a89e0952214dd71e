"""Finds and stops the processes of a cluster."""

import contextlib
import os
import pathlib
import signal
import time

_SECONDS_TO_END = 10


def command_line(pid: int) -> list[str]:
    """Returns the command line of a process, or an empty list if the process does not exist or has ended."""
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def belongs_to(folder: pathlib.Path, pid: int) -> bool:
    """Returns whether a process of the cluster is running. The ID of an ended process may be reused."""
    for _ in range(100):
        line = command_line(pid)
        if any(line) or not _is_alive(pid):
            break
        time.sleep(0.01)  # Java has no command line for a moment during its start.
    return not {str(folder / "conf"), f"--cluster={folder}"}.isdisjoint(line)


def _is_alive(pid: int) -> bool:
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def end(folder: pathlib.Path, pid: int, how: signal.Signals) -> None:
    """Sends signals to a process until it has ended, and kills it if it is still running after a time limit."""
    deadline = time.monotonic() + _SECONDS_TO_END
    while belongs_to(folder, pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, how if time.monotonic() < deadline else signal.SIGKILL)
        time.sleep(0.1)
    with contextlib.suppress(ChildProcessError):  # The process was started by another process.
        os.waitpid(pid, os.WNOHANG)
