"""The disk works while Beam is imported."""

import contextlib
import itertools
import os
import threading
from typing import Iterator

from beam_pipelines.errors import UserError
from beam_pipelines.publish.written_data_set import open_data_set
from tf_input.dataset_format import Manifest

# What a fast disk reads meanwhile; and of one request, as systems leave out what is more than a disk takes at once.
_MAX_BYTES, _REQUEST_BYTES = 1 << 30, 1 << 20


def begin_reading(directory: str) -> bool:
    """Asks the system to read the first shards of a data set on a disk into its cache, in a thread.

    Returns:
        Whether there is a data set. What is wrong with it is told by others.
    """
    with contextlib.suppress(OSError, UserError):
        manifest = open_data_set(directory)[0]
        if hasattr(os, "posix_fadvise"):  # not on macOS
            threading.Thread(target=_ask, args=(directory, manifest), daemon=True).start()
        return True
    return False


def _ask(directory: str, manifest: Manifest) -> None:
    with contextlib.suppress(OSError):
        for path, offset in itertools.islice(_requests(directory, manifest), _MAX_BYTES // _REQUEST_BYTES):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.posix_fadvise(descriptor, offset, _REQUEST_BYTES, os.POSIX_FADV_WILLNEED)
            finally:
                os.close(descriptor)


def _requests(directory: str, manifest: Manifest) -> Iterator[tuple[str, int]]:
    for info in (info for infos in manifest.splits.values() for info in infos):
        for offset in range(0, info.num_bytes, _REQUEST_BYTES):
            yield f"{directory}/{info.name}", offset
