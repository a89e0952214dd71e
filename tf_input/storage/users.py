"""Who reads what is open, so that it is closed with the last of them."""

import threading
from typing import Any, Callable


class Users:
    """Counts those who read; as a context manager it is one of them.

    Args:
        release: Closes what is open. It is called as the last one ends, and what is closed is opened again for who comes then.
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
