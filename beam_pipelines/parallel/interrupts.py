"""Ctrl-C and SIGTERM, which hold even where a library swallows the exception: in a finalizer, or where it tries what it can import.
"""

import signal
import sys
from types import FrameType
from typing import Callable, NoReturn

# Of the process, as the signals are: what is told of one is found out when it has come, wherever that was.
_received = False
_find_in_place: Callable[[], str] = str


def listen() -> None:
    """From now on either signal raises KeyboardInterrupt, and is remembered. One that is ignored, as a background job's is, stays so."""
    forget()
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    if sys.unraisablehook is sys.__unraisablehook__:
        sys.unraisablehook = _show_unraisable


def forget() -> None:
    """As if no signal had come."""
    global _received, _find_in_place
    _received, _find_in_place = False, str


def received() -> bool:
    """Whether a signal came."""
    return _received


def note(find: Callable[[], str]) -> None:
    """From now on `find` says what of the run's work is in place; an empty text if nothing is."""
    global _find_in_place
    _find_in_place = find


def find_in_place() -> str:
    """What of the run's work is in its place, whole, wherever the run was stopped; an empty text if nothing is."""
    return _find_in_place()


def let_go() -> None:
    """All is told: from now on a signal ends the process, without a word."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is _interrupt:
            signal.signal(number, signal.SIG_DFL)


def check() -> None:
    """Raises:
    KeyboardInterrupt: A signal came, whether or not anybody heard of it.
    """
    if _received:
        raise KeyboardInterrupt


def _interrupt(unused_number: int, unused_frame: FrameType | None) -> NoReturn:
    global _received
    _received = True
    raise KeyboardInterrupt


def _show_unraisable(unraisable: "sys.UnraisableHookArgs") -> None:
    """What a finalizer raised; an interrupt will be told in one line."""
    if not issubclass(unraisable.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)
