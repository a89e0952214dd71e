"""Ctrl-C, SIGTERM and SIGHUP, which hold even where a library swallows the exception: in a finalizer, or where it tries imports.

A command ends within ten seconds of one of them, whatever its threads wait for, and at once with a second one.
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

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# For the main thread to stop its work and to tell of it; and for each of the three things that are done in its place. Less than ten in all.
_STOP_SECONDS, _LOOK_SECONDS = 5.5, 1.2
_CLEAN_SECONDS = 10.0  # what libraries want to do at the end of a process that nobody has told to end
_SAME_SECONDS = 0.5  # a terminal and who watches over a process both send one, of the same Ctrl-C

# Of the process, as the signals are: what is told of one is found out when it has come, wherever that was.
_received: int | None = None
_find_in_place: Callable[[], str] = str
_num_unhurried = 0
_tell: Callable[[str, str], None] = lambda told, in_place: None
_telling = threading.Lock()
_folders: set[str] = set()


def listen() -> None:
    """Makes a signal raise KeyboardInterrupt from now on, and remembers it.

    A signal that is ignored, as a background job's is, stays so.
    """
    forget()
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    if sys.unraisablehook is sys.__unraisablehook__:
        sys.unraisablehook = _show_unraisable


def forget() -> None:
    """Forgets a signal that has come, as if none had."""
    global _received, _find_in_place, _telling
    _received, _find_in_place, _telling = None, str, threading.Lock()
    retries.end_waiting(False)


def received() -> bool:
    """Whether a signal came."""
    return _received is not None


def exit_code() -> int:
    """The exit code of a process that a signal has ended, as a shell has it: 130 of Ctrl-C, 143 of SIGTERM, 129 of SIGHUP."""
    return 128 + (_received or signal.SIGINT)


def note(find: Callable[[], str]) -> None:
    """Sets the function that says from now on what of the run's work is in place; it returns an empty text if nothing is."""
    global _find_in_place
    _find_in_place = find


def find_in_place() -> str:
    """Says what of the run's work is in its place, whole, wherever the run was stopped; an empty text if nothing is."""
    return _find_in_place()


def tell_by(tell: Callable[[str, str], None]) -> None:
    """Sets the function that says from now on that the command was interrupted: in one line, and what is in place."""
    global _tell
    _tell = tell


def tell(told: str, in_place: str) -> None:
    """Says that the command was interrupted, unless that is being said."""
    if _telling.acquire(blocking=False):
        _tell(told, in_place)


def let_go() -> None:
    """Lets a signal end the process from now on, without a word: all is told."""
    for number in _SIGNALS:
        if signal.getsignal(number) is _interrupt:
            signal.signal(number, signal.SIG_DFL)


def check() -> None:
    """Checks whether a signal came.

    Raises:
        KeyboardInterrupt: A signal came, whether or not anybody heard of it.
    """
    if received():
        raise KeyboardInterrupt


@contextlib.contextmanager
def unhurried() -> Iterator[None]:
    """Within the block a signal's ten seconds do not run: a cluster ends a job when it can."""
    global _num_unhurried
    _num_unhurried += 1
    try:
        yield
    finally:
        _num_unhurried -= 1


@contextlib.contextmanager
def temporary_folder() -> Iterator[str]:
    """Makes a new folder, which is gone when the block ends, or when the process is ended by a signal before that."""
    with tempfile.TemporaryDirectory(prefix="recordmill-") as folder:
        _folders.add(folder)
        try:
            yield folder
        finally:
            _folders.discard(folder)


def end_in_time() -> None:
    """Makes this process end in time from now on, whatever the main thread waits for.

    An exception alone would not do: the main thread may be long in getting it, or in passing it on. It is for a command; a program that
    calls `main` has an end of its own.
    """
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)  # the system's handler writes there, wherever the main thread is
    threading.Thread(target=_watch, args=(reader, writer), daemon=True).start()


def end(code: int) -> NoReturn:
    """Ends the process, with its children, and does not wait for threads that wait for something."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # nobody reads it
            stream.flush()
    _join(atexit._run_exitfuncs, _LOOK_SECONDS if received() else _CLEAN_SECONDS)  # the same as an interpreter's end, but for its threads
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
    _received = _received or first  # where the main thread has not come to its handler
    retries.end_waiting()
    came = deadline = time.monotonic()
    while _num_unhurried or time.monotonic() < deadline + _STOP_SECONDS:
        if _num_unhurried:
            deadline = time.monotonic()
        if not select.select([reader], [], [], 0.1)[0] or reader.recv(1)[0] not in (signal.SIGINT, signal.SIGTERM):
            continue
        if time.monotonic() > came + _SAME_SECONDS:
            job = "the job may go on, and " if _num_unhurried else ""
            told, in_place = f"interrupted twice; {job}what is in place was not looked at", ""
            break
    else:
        found: list[str] = []
        _join(lambda: found.append(find_in_place()))
        in_place = found[0] if found else "what is in place could not be found out in time; --resume goes on from it"
        nothing = "nothing was written" if _find_in_place is str else "no shard is finished, and what was begun was left there"
        told = f"interrupted; {in_place or nothing}"
    _join(lambda: tell(told, in_place))
    end(128 + first)


def _join(function: Callable[[], None], seconds: float = _LOOK_SECONDS) -> None:
    """Calls a function that may wait for something, and does not wait for it longer."""
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    thread.join(seconds)


def _descendants(process: int) -> list[int]:
    """All processes that a process has started, and that these have; none where the system does not tell: they end with their input."""
    children = [int(child) for path in pathlib.Path(f"/proc/{process}/task").glob("*/children") for child in _words(path)]
    return [found for child in children for found in (child, *_descendants(child))]


def _words(path: pathlib.Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:  # it has just ended
        return []


def _interrupt(number: int, unused_frame: FrameType | None) -> NoReturn:
    global _received
    _received = _received or number
    raise KeyboardInterrupt


def _show_unraisable(unraisable: "sys.UnraisableHookArgs") -> None:
    """Shows what a finalizer raised, but for an interrupt, which will be told in one line."""
    if not issubclass(unraisable.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)
