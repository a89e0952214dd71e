"""Distinguishes invalid inputs from temporary errors of a disk or an object store.

If an error is permanent (a "fact" in function names), the input becomes a dead letter. If an error is temporary, the
input may be readable later. An exception is then raised, so that the Beam runner can retry.
"""

import contextlib
import errno
import os
import stat
from typing import Iterator

from beam_pipelines.errors import SilentStoreError, StorageError, UserError, printable
from beam_pipelines.storage.files import is_remote

_FACTS = frozenset(
    (
        errno.ENOENT,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.EFBIG,
        errno.ENXIO,  # A socket.
        errno.ENODEV,
        errno.EILSEQ,  # An object's name that the client of the store does not support.
    )
)
# Permanent only for local files. Object stores report the same errors for expired credentials and whole buckets.
_FACTS_ON_A_DISK = frozenset((errno.EACCES, errno.EPERM))


def is_fact(error: OSError, path: str) -> bool:
    """Returns whether an error is permanent, such as a missing file."""
    return error.errno in _FACTS or (error.errno in _FACTS_ON_A_DISK and not is_remote(path))


def describe_fact(error: OSError, path: str) -> str:
    """Returns a message for the dead letter of an input that cannot be read.

    Raises:
        StorageError: The error may be temporary.
    """
    if is_fact(error, path):
        return error.strerror or str(error)
    raise _as_storage_error(error, path) from error


def listing_error(error: Exception, path: str, message: str) -> UserError | StorageError:
    """Returns the error to raise if a file that lists inputs cannot be read.

    Args:
        error: The original error. If the file is corrupt, it is not an `OSError`, or has no error number.
        path: The path of the file.
        message: The message to use if the file itself is the cause.
    """
    is_trouble = isinstance(error, OSError) and error.errno is not None and not is_fact(error, path)
    if isinstance(error, OSError) and isinstance(error.filename, str):
        path = error.filename
    return _as_storage_error(error, path) if is_trouble else UserError(message)


@contextlib.contextmanager
def read_errors(path: str, name: str = "") -> Iterator[None]:
    """Context manager that converts each `OSError` to a `UserError` or `StorageError`.

    Args:
        path: The path of the file that lists inputs, which is read inside the block.
        name: The name of the file in messages, if it differs from its path.
    """
    try:
        yield
    except OSError as error:
        raise listing_error(error, path, f"{printable(name or path)} cannot be read: {error.strerror or error}.") from error


def _as_storage_error(error: OSError, path: str) -> StorageError:
    if isinstance(error, SilentStoreError):  # Create a new object, because `error` becomes its cause.
        return SilentStoreError(str(error), error.path)
    reason = " ".join(str(error.strerror or error).split())
    return StorageError(f"{printable(path)} could not be read: {reason}. Run again when it is readable, or leave it out.", path)


def size_on_disk(path: str) -> int | None:
    """Returns the size of a local regular file in bytes, following links. Returns None if there is no such file.

    Raises:
        StorageError: A temporary error occurred.
    """
    status = _stat(path)
    return status.st_size if status and stat.S_ISREG(status.st_mode) else None


def kind_of(path: str) -> str | None:
    """Returns the kind of a local path, following links: "file", "folder", "other", or None for a missing path.

    Raises:
        StorageError: A temporary error occurred.
    """
    status = _stat(path)
    if status is None:
        return None
    return "file" if stat.S_ISREG(status.st_mode) else "folder" if stat.S_ISDIR(status.st_mode) else "other"


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError as error:
        describe_fact(error, path)
        return None
