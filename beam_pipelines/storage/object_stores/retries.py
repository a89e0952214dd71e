"""Sends requests to object stores, with retries, and converts failures to errors."""

import errno
import itertools
import math
import random
import re
import threading
import time
import urllib.parse
from typing import Any, Callable

from beam_pipelines.errors import SilentStoreError, UserError, printable, require

RETRY_SECONDS = 120.0  # For a request that fails while other requests to the store succeed.
# For the checks before a run. Longer than the third TCP retransmission of a lost packet, after 1, 3 and 7 seconds.
CHECK_SECONDS = 8.0
CHECK_ATTEMPTS = 2
CONNECT_SECONDS, RESPONSE_SECONDS = 5.0, 30.0
ABANDON_SECONDS = 10.0
_FIRST_DELAY, _LONGEST_DELAY = 0.2, 20.0
_COOL_SECONDS = 10.0  # Pause before new requests to an unavailable store.

# The number of retries in all threads of the process.
_retries, _lock = [0], threading.Lock()

# Set when the process should end, so that no request is retried.
_is_ending = threading.Event()

_PATH = re.compile(r"(\w+)://([^/]+)(?:/(.*))?", re.DOTALL)


class Transient(OSError):
    """Raised for a temporary error, such as a lost connection. The request is retried."""


def foreign_answer(description: str, content_type: str | None) -> Transient:
    """Returns the error to raise for a successful response that is not from an object store."""
    kind = f" ({printable(content_type)})" if content_type else ""
    origin = "It may come from a proxy or the login page of a network instead of the store"
    return Transient(errno.EIO, f"the response is {description}{kind}. {origin}")


class Breaker:
    """A circuit breaker for requests to a store. If the store is unavailable for too long, it stops all retries.

    All threads of a process share it.

    Args:
        endpoint: The name of the store in messages.
        timeout: The time without a successful response after which the store is unavailable, in seconds.
    """

    def __init__(self, endpoint: str, timeout: float) -> None:
        self._endpoint, self._timeout = endpoint, timeout
        self._lock = threading.Lock()
        self._last_answer = self._last_failure = -math.inf
        self._silent_since: float | None = None
        self._is_open, self._reason = False, ""

    def check(self, path: str) -> None:
        """Call this method before an attempt.

        Raises:
            SilentStoreError: The store is unavailable, and the last attempt failed a few seconds ago.
        """
        with self._lock:
            if self._is_open and time.monotonic() - self._last_failure < _COOL_SECONDS:
                raise self._error(path)

    def note_answer(self) -> None:
        """Records that the store has responded to a request."""
        with self._lock:
            self._last_answer = time.monotonic()
            self._silent_since, self._is_open = None, False

    def note_failure(self, began: float, reason: str) -> None:
        """Call this method after a failed attempt. `began` is the monotonic time when the attempt started."""
        with self._lock:
            has_paused = began - self._last_failure > 2 * _LONGEST_DELAY and not self._is_open  # No requests were sent.
            if self._silent_since is None or has_paused:
                self._silent_since = max(began, self._last_answer)
            self._last_failure, self._reason = time.monotonic(), reason

    def give_up(self, path: str, delay: float) -> None:
        """Call this method before each retry. `delay` is the time until the retry in seconds.

        Raises:
            SilentStoreError: At the time of the retry, the store would be unavailable for longer than the timeout.
        """
        with self._lock:
            self._is_open = self._silent_since is not None and time.monotonic() + delay - self._silent_since > self._timeout
            if self._is_open:
                raise self._error(path)

    def has_answered_since(self, began: float) -> bool:
        """Returns whether the store has responded to any request since a monotonic time."""
        return self._last_answer > began

    def _error(self, path: str) -> SilentStoreError:
        message = f"no successful response from {self._endpoint} for {self._timeout:g} s (--store_timeout)"
        return SilentStoreError(f"{printable(path)}: {message}; last error: {self._reason}", path)


def check_timeout(seconds: float) -> None:
    """Raises `UserError` if the value of `--store_timeout` is invalid."""
    require(0 < seconds < math.inf, "--store_timeout", f"{seconds:g}", "a number of seconds above 0")


def end_waiting(is_ending: bool = True) -> None:
    """Stops all retries in this process, or allows retries again with `is_ending=False`."""
    _is_ending.set() if is_ending else _is_ending.clear()


def split_path(path: str) -> tuple[str, str]:
    """Splits the URL of an object into its bucket and its key. Raises `UserError` if the URL is invalid."""
    match = _PATH.fullmatch(path)
    if not match:
        raise UserError(f"{printable(path)} is not a valid URL. Give SCHEME://BUCKET/NAME, such as s3://BUCKET/NAME.")
    key = match[3] or ""
    return match[2], urllib.parse.unquote(key) if match[1].startswith("http") else key


def persist(
    path: str,
    request: Callable[[], Any],
    library_errors: tuple[type[Exception], ...],
    make_os_error: Callable[[Exception], OSError],
    breaker: Breaker,
    patience: float | None = None,
    min_attempts: int = 1,
) -> Any:
    """Sends a request and retries it after `Transient` errors.

    Delays between retries grow exponentially, with random jitter, so that workers do not retry at the same time.

    Args:
        path: The path of the object, for messages.
        request: A function that sends the request.
        library_errors: The exception classes of the client library.
        make_os_error: A function that converts an exception of the client library to an `OSError`.
        breaker: The circuit breaker of the store.
        patience: The time after which the request is not retried, in seconds. If None, it is `RETRY_SECONDS` while
            other requests to the store succeed.
        min_attempts: The minimum number of attempts, even if they take longer than `patience`.

    Raises:
        OSError: The request failed.
        SilentStoreError: The store is unavailable.
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
    """Returns the number of retries in this process since the last call."""
    with _lock:
        taken, _retries[0] = _retries[0], 0
    return taken


def _pause(seconds: float) -> None:
    _is_ending.wait(seconds)


def status_error(path: str, status: int, reason: str, *, no_bucket: bool = False) -> OSError:
    """Returns the error for an HTTP status."""
    bucket, key = split_path(path)
    if status == 404:
        is_bucket = no_bucket or not key or key.endswith("/")
        return OSError(errno.ENOENT, f"bucket '{bucket}' does not exist" if is_bucket else "the object does not exist", path)
    if status in (401, 403):
        return OSError(errno.EACCES, f"access to bucket '{bucket}' is denied ({reason})", path)
    is_transient = status in (408, 429, 500, 502, 503, 504)
    return (Transient if is_transient else OSError)(errno.EIO, f"the store responded with status {status} ({reason})", path)
