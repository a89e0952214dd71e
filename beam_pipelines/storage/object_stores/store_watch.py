"""Stores that the workers of a job use, seen from the command that waits for the job."""

import contextlib
import threading
from typing import Callable, Collection, Iterator

from beam_pipelines.errors import SilentStoreError
from beam_pipelines.storage.object_stores.open_object_store import open_object_store

_LOOK_SECONDS = 10.0


@contextlib.contextmanager
def watched_stores(paths: Collection[str], give_up: Callable[[SilentStoreError], None]) -> Iterator[None]:
    """Asks stores now and then, while a job goes on elsewhere, and says it when one is to be given up.

    The job's workers find that out too; but an engine that tries their bundles again and again would ask the store for as long each time.

    Args:
        paths: The URLs of folders in the stores, `gs://…` or `s3://…`.
        give_up: A function that is called once, in a thread of ours.
    """
    end = threading.Event()

    def watch() -> None:
        while not end.wait(_LOOK_SECONDS):
            for path in paths:
                try:
                    open_object_store(path).exists(f"{path.rstrip('/')}/manifest.json")
                except SilentStoreError as error:
                    if not end.is_set():
                        give_up(error)
                    return
                except OSError:  # it answers, whatever that is
                    pass

    if paths:
        threading.Thread(target=watch, name="store_watch", daemon=True).start()
    try:
        yield
    finally:
        end.set()
