"""Which processes are a cluster's, and how they end."""

import contextlib
import os
import pathlib
import signal
import time

_SECONDS_TO_END = 10


def command_line(pid: int) -> list[str]:
    """Empty where there is no such process, or it has ended and nobody has asked how."""
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def belongs_to(folder: pathlib.Path, pid: int) -> bool:
    """Whether it is there and of this cluster: an id may have been given to another process since."""
    for _ in range(100):
        line = command_line(pid)
        if any(line) or not _is_alive(pid):
            break
        time.sleep(0.01)  # for a moment, while it starts, Java has none
    return not {str(folder / "conf"), f"--cluster={folder}"}.isdisjoint(line)


def _is_alive(pid: int) -> bool:
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def end(folder: pathlib.Path, pid: int, how: signal.Signals) -> None:
    """Signals a process, until it is gone; one that does not go is killed."""
    deadline = time.monotonic() + _SECONDS_TO_END
    while belongs_to(folder, pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, how if time.monotonic() < deadline else signal.SIGKILL)
        time.sleep(0.1)
    with contextlib.suppress(ChildProcessError):  # it was another process's child
        os.waitpid(pid, os.WNOHANG)
