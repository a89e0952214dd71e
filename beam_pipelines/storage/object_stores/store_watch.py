"""Monitors the object stores of a job while a command waits for it."""

import contextlib
import threading
from typing import Callable, Collection, Iterator

from beam_pipelines.errors import SilentStoreError
from beam_pipelines.storage.files import files_at

_POLL_SECONDS = 10.0


@contextlib.contextmanager
def watched_stores(paths: Collection[str], give_up: Callable[[SilentStoreError], None]) -> Iterator[None]:
    """Context manager that polls object stores during a remote job, and reports stores that are unavailable.

    Workers also detect unavailable stores. However, an engine may retry the work many times, and each attempt waits for
    the full timeout.

    Args:
        paths: The URLs of folders in the stores, `gs://…` or `s3://…`.
        give_up: A function to call, at most once and in another thread, if a store is unavailable.
    """
    end = threading.Event()

    def watch() -> None:
        while not end.wait(_POLL_SECONDS):
            for path in paths:
                try:
                    files_at(path).exists(f"{path.rstrip('/')}/manifest.json")
                except SilentStoreError as error:
                    if not end.is_set():
                        give_up(error)
                    return
                except OSError:  # An error response shows that the store is available.
                    pass

    if paths:
        threading.Thread(target=watch, name="store_watch", daemon=True).start()
    try:
        yield
    finally:
        end.set()
