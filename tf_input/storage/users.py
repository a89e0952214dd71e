"""Counts the readers of files, so that the files can be closed after the last reader has finished."""

import threading
from typing import Any, Callable


class Users:
    """Counts the readers of files. Each reader uses the object as a context manager while it reads.

    Args:
        release: A function that closes all open files. It is called when the last reader exits. Later reads open files
            again.
    """

    def __init__(self, release: Callable[[], None]) -> None:
        self._release, self._count, self._lock = release, 0, threading.Lock()

    def __enter__(self) -> "Users":
        with self._lock:
            self._count += 1
        return self

    def __exit__(self, *unused: Any) -> None:
        with self._lock:
            self._count -= 1
            is_last = not self._count
        if is_last:
            self._release()
