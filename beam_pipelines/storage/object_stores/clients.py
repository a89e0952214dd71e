"""Settings of obstore's clients, and conversion of their exceptions to `OSError`."""

import datetime
import errno
import re
from typing import Any

from beam_pipelines.storage.object_stores.retries import CONNECT_SECONDS, Transient, status_error

NUM_THREADS = 32

_STATUS = re.compile(r"status code: (\d{3}) ?([A-Za-z '-]*)")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_NO_BUCKET = re.compile("<Code>(NoSuchBucket|ContainerNotFound)</Code>")
_NOT_CONNECTED = re.compile(r"dns error|tcp connect error|ConnectError|Connection refused")
_BROKEN_OFF = re.compile(r"HTTP error|Header missing|invalid \w+ response|non-partial response")
_AFTER_END = re.compile(r"status code: 416|Wanted range starting at")
_ODD_NAME = re.compile(r"(^|/)\.{0,2}(/|$)|[\x00-\x1f\x7f]")


def client_settings(timeout: float, seconds: float, **retries: Any) -> dict[str, Any]:
    """Returns the settings of a client.

    Args:
        timeout: The value of `--store_timeout`.
        seconds: The time without data after which a request fails.
        **retries: Settings for retries by obstore. By default, obstore does not retry requests.
    """
    client = {
        "allow_http": True,
        "connect_timeout": datetime.timedelta(seconds=min(CONNECT_SECONDS, timeout)),
        "read_timeout": datetime.timedelta(seconds=min(seconds, timeout)),
        "timeout": "1h",
        "pool_max_idle_per_host": str(2 * NUM_THREADS),
        "default_headers": {"Accept-Encoding": "gzip"},  # Otherwise, GCS decompresses objects.
    }
    return {"client_options": client, "retry_config": {"max_retries": 0, **retries}}


def patient_retries(timeout: float) -> dict[str, Any]:
    """Returns the obstore settings for retrying requests for `timeout` seconds."""
    backoff = {"init_backoff": datetime.timedelta(seconds=0.2), "max_backoff": datetime.timedelta(seconds=20), "base": 2}
    return {"max_retries": 10_000, "retry_timeout": datetime.timedelta(seconds=timeout), "backoff": backoff}


def checked_name(key: str) -> str:
    """Returns the key of an object. Raises `OSError` if obstore does not support the key."""
    if _ODD_NAME.search(key):
        raise OSError(errno.EILSEQ, "the name has an empty part, a part '.' or '..', or a control character", key)
    return key


def explain(path: str, error: Exception, endpoint: str, advice: str) -> OSError:
    """Converts an obstore exception to an `OSError`. Temporary failures become `Transient`.

    Args:
        path: The path of the object.
        error: The exception.
        endpoint: The URL of the store.
        advice: Text to add to the message if access is denied.
    """
    text = str(error).partition("\nDebug source")[0]
    if match := _STATUS.search(text):
        code = _CODE.search(text)
        reason = (code[1] if code else match[2].strip()) + (advice if match[1] in ("401", "403") else "")
        return status_error(path, int(match[1]), reason, no_bucket=has_no_bucket(error))
    if isinstance(error, FileNotFoundError):
        return status_error(path, 404, "")
    if _NOT_CONNECTED.search(str(error)):
        return Transient(errno.EHOSTUNREACH, f"{endpoint} is not reachable", path)
    reason = "no response in time" if "TimedOut" in str(error) else text.strip().partition("\n")[0]
    return (Transient if _BROKEN_OFF.search(text) else OSError)(errno.EIO, reason, path)


def is_after_end(error: Exception) -> bool:
    """Returns whether a requested byte range begins after the end of the object."""
    return bool(_AFTER_END.search(str(error)))


def has_no_bucket(error: Exception) -> bool:
    """Returns whether a request failed because the bucket does not exist."""
    return bool(_NO_BUCKET.search(str(error)))
