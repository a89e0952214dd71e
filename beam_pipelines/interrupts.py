"""Ctrl-C and SIGTERM, which hold even where a library swallows the exception: in a finalizer, or where it tries what it can import.

Plain.
"""

import signal
import sys
from types import FrameType
from typing import NoReturn

_received = False


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
    global _received
    _received = False


def received() -> bool:
    """Whether a signal came."""
    return _received


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
