"""One request to an object store: its path, its attempts, and what a failure means."""

import errno
import itertools
import random
import re
import time
from typing import Any, Callable

from beam_pipelines.errors import UserError, printable

RETRY_SECONDS = 120.0
# Before a run, and for each request of it: longer than a lost first packet takes to be sent a third time (after 1, 3 and 7 seconds).
CHECK_SECONDS = 8.0
CHECK_ATTEMPTS = 2
CONNECT_SECONDS, RESPONSE_SECONDS = 5.0, 30.0
_FIRST_DELAY, _LONGEST_DELAY = 0.2, 20.0

_PATH = re.compile(r"\w+://([^/]+)(?:/(.*))?", re.DOTALL)


class Transient(OSError):
    """Worth another attempt: the store is busy, or a connection broke off."""


def split_path(path: str) -> tuple[str, str]:
    """The bucket and the key."""
    match = _PATH.fullmatch(path)
    if not match:
        raise UserError(f"{printable(path)}: expected gs://BUCKET/NAME or s3://BUCKET/NAME")
    return match[1], match[2] or ""


def persist(
    request: Callable[[], Any],
    library_errors: tuple[type[Exception], ...],
    make_os_error: Callable[[Exception], OSError],
    patience: float | None = None,
    min_attempts: int = 1,
) -> Any:
    """Makes a request, again and again while its failure is `Transient`.

    The delays double, and a random part of each is waited, so that workers which were refused together do not come back
    together.

    Args:
        request: What to do; the same each time.
        library_errors: What may come of it.
        make_os_error: Says what such an error means.
        patience: Seconds after which there is no other attempt; None: `RETRY_SECONDS`.
        min_attempts: There are so many in any case: on a busy machine the first one can take all of the time.

    Raises:
        OSError: What the last error meant.
    """
    deadline = time.monotonic() + (RETRY_SECONDS if patience is None else patience)
    for attempt in itertools.count():
        try:
            return request()
        except library_errors as error:
            failure = make_os_error(error)
            delay = random.uniform(0, min(_LONGEST_DELAY, _FIRST_DELAY * 2**attempt))
            is_over = attempt + 1 >= min_attempts and time.monotonic() + delay > deadline
            if is_over or not isinstance(failure, Transient):
                raise failure from error
        time.sleep(delay)


def status_error(path: str, status: int, reason: str, *, no_bucket: bool = False) -> OSError:
    """What an HTTP status means for a path; a folder that is not found is a bucket that does not exist."""
    bucket, key = split_path(path)
    if status == 404:
        is_bucket = no_bucket or not key or key.endswith("/")
        return OSError(errno.ENOENT, f"bucket '{bucket}' does not exist" if is_bucket else "no such object", path)
    if status in (401, 403):
        return OSError(errno.EACCES, f"access to bucket '{bucket}' is denied ({reason})", path)
    is_transient = status in (408, 429, 500, 502, 503, 504)
    return (Transient if is_transient else OSError)(errno.EIO, f"the store answers {status} ({reason})", path)
