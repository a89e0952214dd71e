"""A program that ends while its batches are still being read: Python is asked for no more of them.

TensorFlow reads ahead in threads of its own, which ask Python. One that does so while the interpreter takes itself apart waits for ever,
and whoever lets go of the pass, which is the interpreter, waits for it.
"""

import atexit
import threading
import time
from typing import Iterator, TypeVar

_Value = TypeVar("_Value")

_MOST_SECONDS = 5.0  # that an end waits for what is being read
_LOOK_SECONDS, _NUM_LOOKS = 0.01, 5  # after so many in which nobody is at work, nobody will be


class _Passes:
    """State of the whole process, which ends as one.

    Attributes:
        is_over: Whether the program ends.
        num_open: Passes that have begun and not ended.
        num_at_work: Of them those for which Python is at work now.
    """

    is_over = False
    num_open = num_at_work = 0
    lock = threading.Lock()

    @classmethod
    def count(cls, num_open: int, num_at_work: int) -> None:
        with cls.lock:
            cls.num_open += num_open
            cls.num_at_work += num_at_work


def until_exit(values: Iterator[_Value]) -> Iterator[_Value]:
    """Gives the values of an iterator, but none any more once the program ends."""
    _Passes.count(1, 1)
    is_at_work = True
    try:
        for value in values:
            if _Passes.is_over:
                return
            _Passes.count(0, -1)
            is_at_work = False
            yield value
            _Passes.count(0, 1)
            is_at_work = True
            if _Passes.is_over:
                return
    finally:
        _Passes.count(-1, -is_at_work)


@atexit.register
def _end() -> None:
    _Passes.is_over = True
    last, num_looks = time.monotonic() + _MOST_SECONDS, 0
    while _Passes.num_open and num_looks < _NUM_LOOKS and time.monotonic() < last:
        time.sleep(_LOOK_SECONDS)
        num_looks = 0 if _Passes.num_at_work else num_looks + 1
