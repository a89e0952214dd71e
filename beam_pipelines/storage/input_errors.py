"""What it means that an input can't be read: a fact about it, or trouble that says nothing of it. The one place that decides.

A fact makes a dead letter. A disk or a store that is busy, broken or refuses us would make other bytes of the same inputs, and nobody
would know: so that fails the bundle, which the runner may try again, and in the end the run.
"""

import errno
import os
import stat

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
        errno.ENXIO,  # a socket
        errno.ENODEV,
    )
)
# Of a file on a disk; a store says the same where credentials have run out, and of a whole bucket.
_FACTS_ON_A_DISK = frozenset((errno.EACCES, errno.EPERM))


def is_fact(error: OSError, path: str) -> bool:
    """Whether an error says something about what lies at a path, which it would say again tomorrow."""
    return error.errno in _FACTS or (error.errno in _FACTS_ON_A_DISK and not is_remote(path))


def describe_fact(error: OSError, path: str) -> str:
    """What a dead letter says of an input that can't be read.

    Raises:
        StorageError: It is no fact about the input.
    """
    if is_fact(error, path):
        return error.strerror or str(error)
    raise _trouble(error, path) from error


def listing_error(error: Exception, path: str, message: str) -> UserError | StorageError:
    """What to raise where a file that lists inputs can't be read.

    Args:
        error: The error, of whatever class: damage is not an OSError, or one without a number.
        path: The path of the file.
        message: The message where it is the file's fault.
    """
    is_trouble = isinstance(error, OSError) and error.errno is not None and not is_fact(error, path)
    if isinstance(error, OSError) and isinstance(error.filename, str):
        path = error.filename
    return _trouble(error, path) if is_trouble else UserError(message)


def _trouble(error: OSError, path: str) -> StorageError:
    if isinstance(error, SilentStoreError):  # which says all that there is to say; another one, since this one is its cause
        return SilentStoreError(str(error), error.path)
    reason = " ".join(str(error.strerror or error).split())
    return StorageError(f"{printable(path)} could not be read: {reason}; run again once it can be read, or leave it out", path)


def size_on_disk(path: str) -> int | None:
    """Bytes of a file on a disk, behind links; None where there is none: who reads it says why.

    Raises:
        StorageError: It could not be found out.
    """
    found = _stat(path)
    return found.st_size if found and stat.S_ISREG(found.st_mode) else None


def kind_of(path: str) -> str | None:
    """What lies at a path on a disk, behind links: "file", "folder" or "other"; None if nothing does.

    Raises:
        StorageError: It could not be found out.
    """
    found = _stat(path)
    if found is None:
        return None
    return "file" if stat.S_ISREG(found.st_mode) else "folder" if stat.S_ISDIR(found.st_mode) else "other"


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError as error:
        describe_fact(error, path)
        return None
