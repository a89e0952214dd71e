"""One request to an object store: its path, its attempts, and what a failure means."""

import errno
import itertools
import math
import random
import re
import threading
import time
from typing import Any, Callable

from beam_pipelines.errors import SilentStoreError, UserError, printable, require

RETRY_SECONDS = 120.0  # of one request, while the store answers others
# Before a run, and for each request of it: longer than a lost first packet takes to be sent a third time (after 1, 3 and 7 seconds).
CHECK_SECONDS = 8.0
CHECK_ATTEMPTS = 2
CONNECT_SECONDS, RESPONSE_SECONDS = 5.0, 30.0
ABANDON_SECONDS = 10.0
_FIRST_DELAY, _LONGEST_DELAY = 0.2, 20.0
_COOL_SECONDS = 10.0  # a store that has been given up is not asked again sooner

# Of the whole process, since it is one of many threads that asks and another that counts.
_retries, _lock = [0], threading.Lock()

# Of the whole process: it has been told to end, and no request is worth waiting for.
_is_ending = threading.Event()

_PATH = re.compile(r"\w+://([^/]+)(?:/(.*))?", re.DOTALL)


class Transient(OSError):
    """Worth another attempt: the store is busy, or a connection broke off."""


def foreign_answer(found: str, content_type: str | None) -> Transient:
    """The error of an answer that is not one of a store, although its status says that all is well."""
    kind = f" ({printable(content_type)})" if content_type else ""
    return Transient(errno.EIO, f"the answer is {found}{kind}: it is not the store's own, but perhaps the login page of a network or a proxy")


class Breaker:
    """Whether a store answers, as all threads of a process see it: one that is silent for too long is given up, by all of them at once.

    Args:
        endpoint: The name of the store in messages.
        timeout: The time for which it may answer nothing useful while it is asked, in seconds.
    """

    def __init__(self, endpoint: str, timeout: float) -> None:
        self._endpoint, self._timeout = endpoint, timeout
        self._lock = threading.Lock()
        self._last_answer = self._last_failure = -math.inf
        self._silent_since: float | None = None
        self._is_open, self._reason = False, ""

    def check(self, path: str) -> None:
        """Is called before an attempt.

        Raises:
            SilentStoreError: The store has been given up, and has just been asked again in vain.
        """
        with self._lock:
            if self._is_open and time.monotonic() - self._last_failure < _COOL_SECONDS:
                raise self._error(path)

    def note_answer(self) -> None:
        """Is called after an attempt that the store has answered."""
        with self._lock:
            self._last_answer = time.monotonic()
            self._silent_since, self._is_open = None, False

    def note_failure(self, began: float, reason: str) -> None:
        """Is called after an attempt that failed; `began` is the monotonic time of its beginning."""
        with self._lock:
            has_paused = began - self._last_failure > 2 * _LONGEST_DELAY and not self._is_open  # nobody has asked
            if self._silent_since is None or has_paused:
                self._silent_since = max(began, self._last_answer)
            self._last_failure, self._reason = time.monotonic(), reason

    def give_up(self, path: str, delay: float) -> None:
        """Is called before another attempt that is to be made after some seconds.

        Raises:
            SilentStoreError: By then the store would have been silent for too long.
        """
        with self._lock:
            self._is_open = self._silent_since is not None and time.monotonic() + delay - self._silent_since > self._timeout
            if self._is_open:
                raise self._error(path)

    def has_answered_since(self, began: float) -> bool:
        """Whether the store has answered any attempt since the monotonic time `began`."""
        return self._last_answer > began

    def _error(self, path: str) -> SilentStoreError:
        told = f"{self._endpoint} has answered nothing useful for {self._timeout:g} s (--store_timeout), at last: {self._reason}"
        return SilentStoreError(f"{printable(path)}: {told}", path)


def check_timeout(seconds: float) -> None:
    """Raises UserError unless a store can be waited for so long."""
    require(0 < seconds < math.inf, "--store_timeout", f"{seconds:g}", "seconds, more than 0")


def end_waiting(is_ending: bool = True) -> None:
    """From now on no request of this process is made more than once, and none waits for another attempt; or again as ever."""
    _is_ending.set() if is_ending else _is_ending.clear()


def split_path(path: str) -> tuple[str, str]:
    """Splits the URL of an object into its bucket and its key; UserError where it is no such URL."""
    match = _PATH.fullmatch(path)
    if not match:
        raise UserError(f"{printable(path)}: expected gs://BUCKET/NAME or s3://BUCKET/NAME")
    return match[1], match[2] or ""


def persist(
    path: str,
    request: Callable[[], Any],
    library_errors: tuple[type[Exception], ...],
    make_os_error: Callable[[Exception], OSError],
    breaker: Breaker,
    patience: float | None = None,
    min_attempts: int = 1,
) -> Any:
    """Makes a request, again and again while its failure is `Transient`.

    The delays double, and a random part of each is waited, so that workers which were refused together do not come back
    together.

    Args:
        path: The path that the request is for.
        request: The request to make; the same each time.
        library_errors: The classes of errors that the client library may raise.
        make_os_error: A function that says what such an error means.
        breaker: The breaker of the store; it decides how long a store is waited for that answers nobody.
        patience: Seconds after which there is no other attempt; None: `RETRY_SECONDS`, where the store answers others meanwhile.
        min_attempts: The number of attempts that are made in any case: on a busy machine the first one can take all of the time.

    Raises:
        OSError: The error that the last failure meant.
        SilentStoreError: The store answers nobody.
    """
    first = time.monotonic()
    for attempt in itertools.count():
        breaker.check(path)
        began = time.monotonic()
        try:
            result = request()
        except (*library_errors, Transient) as error:
            failure = error if isinstance(error, Transient) else make_os_error(error)
            if not isinstance(failure, Transient):
                breaker.note_answer()
                raise failure from error
            breaker.note_failure(began, " ".join(str(failure.strerror or failure).split()))
            delay = random.uniform(0, min(_LONGEST_DELAY, _FIRST_DELAY * 2**attempt))
            if _is_ending.is_set():
                raise failure from error
            if attempt + 1 >= min_attempts:
                breaker.give_up(path, delay)
                is_late = time.monotonic() + delay > first + (RETRY_SECONDS if patience is None else patience)
                if is_late and (patience is not None or breaker.has_answered_since(first)):
                    raise failure from error
        else:
            breaker.note_answer()
            return result
        with _lock:
            _retries[0] += 1
        _pause(delay)


def take_retries() -> int:
    """Attempts of this process that followed a first one, since the last call."""
    with _lock:
        taken, _retries[0] = _retries[0], 0
    return taken


def _pause(seconds: float) -> None:
    _is_ending.wait(seconds)


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
