"""Handles Ctrl-C, SIGTERM and SIGHUP, even if a library suppresses KeyboardInterrupt.

Some libraries suppress KeyboardInterrupt, for example in finalizers or during optional imports. Nevertheless, a command
ends within ten seconds of the first signal, even if its threads are blocked. A second signal ends it at once.
"""

import atexit
import contextlib
import os
import pathlib
import select
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from types import FrameType
from typing import Callable, Iterator, NoReturn

from beam_pipelines.storage.object_stores import retries

RESUME = "Rerun with --resume to continue."

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# The time for the main thread to stop and report. If it is exceeded, the watching thread performs three steps, each
# with the second limit. The sum is less than ten seconds.
_STOP_SECONDS, _POLL_SECONDS = 5.5, 1.2
_CLEAN_SECONDS = 10.0  # Time for libraries' exit handlers after a normal end.
_SAME_SECONDS = 0.5  # A terminal and a process supervisor can both send the signal for one Ctrl-C.

# Global state, because signals arrive at the whole process.
_received: int | None = None
_find_published: Callable[[], str] = str
_num_without_time_limit = 0
_report: Callable[[str, str], None] = lambda reported, in_place: None
_report_lock = threading.Lock()
_folders: set[str] = set()


def listen() -> None:
    """Installs handlers that record the first signal and raise KeyboardInterrupt. Ignored signals stay ignored."""
    forget()
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    if sys.unraisablehook is sys.__unraisablehook__:
        sys.unraisablehook = _show_unraisable


def forget() -> None:
    """Resets this module, as if no signal had arrived."""
    global _received, _find_published, _report_lock
    _received, _find_published, _report_lock = None, str, threading.Lock()
    retries.end_waiting(False)


def received() -> bool:
    """Returns whether a signal arrived."""
    return _received is not None


def exit_code() -> int:
    """Returns the exit code that shells use for the received signal, such as 130 for Ctrl-C and 143 for SIGTERM."""
    return 128 + (_received or signal.SIGINT)


def note(find: Callable[[], str]) -> None:
    """Sets the function that describes the completed output of the run after an interruption.

    The function returns an empty string if no output is complete.
    """
    global _find_published
    _find_published = find


def find_published(*, can_resume: bool = True) -> str:
    """Returns a description of the run's completed output, or an empty string if no output is complete.

    Args:
        can_resume: Whether `--resume` alone may succeed. If not, the advice to resume is omitted.
    """
    return _find_published() if can_resume else _find_published().replace(RESUME, "").strip()


def set_reporter(report: Callable[[str, str], None]) -> None:
    """Sets the function that reports an interruption. It takes a message and a description of the completed output."""
    global _report
    _report = report


def report(message: str, in_place: str) -> None:
    """Reports an interruption, unless another thread has already reported it."""
    if _report_lock.acquire(blocking=False):
        _report(message, in_place)


def restore_handlers() -> None:
    """Restores the default signal handlers, so that a signal ends the process without a message."""
    for number in _SIGNALS:
        if signal.getsignal(number) is _interrupt:
            signal.signal(number, signal.SIG_DFL)


def check() -> None:
    """Raises KeyboardInterrupt if a signal arrived, in case a library suppressed the first exception."""
    if received():
        raise KeyboardInterrupt


@contextlib.contextmanager
def without_time_limit() -> Iterator[None]:
    """Context manager in which an interrupted command may take more than ten seconds to stop a job on a cluster."""
    global _num_without_time_limit
    _num_without_time_limit += 1
    try:
        yield
    finally:
        _num_without_time_limit -= 1


@contextlib.contextmanager
def temporary_folder() -> Iterator[str]:
    """Context manager for a temporary folder, which is also deleted if a signal ends the process."""
    with tempfile.TemporaryDirectory(prefix="recordmill-") as folder:
        _folders.add(folder)
        try:
            yield folder
        finally:
            _folders.discard(folder)


def end_in_time() -> None:
    """Ends this process within ten seconds of a signal, even if the main thread is blocked."""
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    # The system's signal handler writes to this socket, even if the main thread is blocked.
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(reader, writer), daemon=True).start()


def end(code: int) -> NoReturn:
    """Ends this process and its child processes without waiting for blocked threads."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # The stream has no reader.
            stream.flush()
    # Equals a normal interpreter exit, except that threads are not joined.
    _join(atexit._run_exitfuncs, _POLL_SECONDS if received() else _CLEAN_SECONDS)
    for child in _descendants(os.getpid()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    for folder in [*_folders]:
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(code)


def _watch(reader: socket.socket, unused_writer: socket.socket) -> None:
    global _received
    while (first := reader.recv(1)[0]) not in _SIGNALS:
        pass
    _received = _received or first  # The main thread may not have run its handler yet.
    retries.end_waiting()
    came = deadline = time.monotonic()
    while _num_without_time_limit or time.monotonic() < deadline + _STOP_SECONDS:
        if _num_without_time_limit:
            deadline = time.monotonic()
        if not select.select([reader], [], [], 0.1)[0] or reader.recv(1)[0] not in (signal.SIGINT, signal.SIGTERM):
            continue
        if time.monotonic() > came + _SAME_SECONDS:
            job = " The job may continue." if _num_without_time_limit else ""
            message, in_place = f"Interrupted twice. The state of the output is unknown.{job}", ""
            break
    else:
        published: list[str] = []
        _join(lambda: published.append(find_published()))
        in_place = published[0] if published else f"The state of the output is unknown. {RESUME}"
        nothing = "Nothing was written." if _find_published is str else "No shard is complete; temporary files remain."
        message = f"Interrupted. {in_place or nothing}"
    _join(lambda: report(message, in_place))
    end(128 + first)


def _join(function: Callable[[], None], seconds: float = _POLL_SECONDS) -> None:
    """Runs a function in a thread and waits for at most the given number of seconds."""
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    thread.join(seconds)


def _descendants(process: int) -> list[int]:
    """Returns the descendants of a process. The list is empty if the system does not provide them."""
    children = [int(child) for path in pathlib.Path(f"/proc/{process}/task").glob("*/children") for child in _words(path)]
    return [result for child in children for result in (child, *_descendants(child))]


def _words(path: pathlib.Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:  # The process has just ended.
        return []


def _interrupt(number: int, unused_frame: FrameType | None) -> NoReturn:
    global _received
    _received = _received or number
    raise KeyboardInterrupt


def _show_unraisable(unraisable: "sys.UnraisableHookArgs") -> None:
    """Reports exceptions in finalizers as usual, but hides the traceback of an interrupt."""
    if not issubclass(unraisable.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)
