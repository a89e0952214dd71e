"""Manages local working directories, each of which belongs to a single run.

For safety, a directory is emptied only if it contains a marker file of Recordmill.
"""

import contextlib
import errno
import fcntl
import os
import pathlib
import shutil
import time
from typing import Callable, Iterator

from beam_pipelines.errors import BusyError, StillRunningError, StorageError, UserError, printable
from beam_pipelines.storage.lease import LEASE, check_elsewhere, read_lease
from beam_pipelines.storage.local_files import TEMPORARY
from tf_input.dataset_format import MANIFEST

# The marker file or object, which shows that the files beside it are the incomplete files of a run.
MARKER = "INCOMPLETE"
MARKER_TEXT = (
    b"A recordmill run is writing to this directory, or was interrupted. The next run resumes from these files or "
    b"deletes them. Complete output does not contain this file.\n"
)

# Files that refer to other files. They are removed first, so that an interrupted removal leaves no invalid references.
CLAIMS = (MANIFEST, LEASE)


def is_owned(directory: str) -> bool:
    """Returns whether a directory may be emptied, because it is empty or contains a marker file."""
    names = os.listdir(directory)
    mark = f"{directory}/{MARKER}"
    if os.path.islink(directory) or not os.path.isfile(mark):
        return not names and not os.path.islink(directory)
    with open(mark, "rb") as file:
        text = file.read(len(MARKER_TEXT) + 1)
    return text == MARKER_TEXT or (names == [MARKER] and MARKER_TEXT.startswith(text))  # An incomplete marker.


def check_is_owned(directory: str, message_start: str) -> None:
    """Raises an error if a directory exists and must not be emptied.

    Args:
        directory: The path of the directory.
        message_start: The option and path at the start of the error message.

    Raises:
        UserError: The directory may contain files that do not belong to a run.
    """
    shown = printable(directory)
    try:
        if not os.path.isdir(directory) or is_owned(directory):
            return
    except OSError as error:
        raise UserError(f"{message_start}: {shown}: {error.strerror}") from None
    raise UserError(f"{message_start}: {shown}, which the run needs for its files, has files from elsewhere. Move or remove them.")


def make_marked(directory: str) -> None:
    """Creates a directory with a marker file. The parent directory must exist. An existing directory is not changed."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(directory)
        _mark(directory)


@contextlib.contextmanager
def exclusive_directory(
    directory: str,
    message_start: str,
    busy: str,
    rescue: Callable[[], None] = lambda: None,
    resumes: bool = False,
    stays: Callable[[BaseException], bool] = lambda error: False,
) -> Iterator[int]:
    """Context manager that locks a working directory for this process, and removes it on exit.

    If the directory does not exist, it is created. If it was left behind by a killed run, it is emptied. The operating
    system releases the lock when the process ends, even if it is killed. The directory is not removed if it was
    renamed, or if a `StillRunningError` is raised.

    Args:
        directory: The path of the directory.
        message_start: The option and path at the start of error messages.
        busy: The error message if another run uses the directory.
        rescue: A function to call after locking and before emptying the directory. It moves valuable files to another
            directory. If it raises `UserError`, the directory is not changed.
        resumes: Whether the run uses the files in the directory, so that it is not emptied.
        stays: A function that returns whether the directory is kept after an exception.

    Yields:
        The descriptor of the directory.

    Raises:
        BusyError: Another run uses the directory.
        UserError: The directory has no marker, or it cannot be created.
        StorageError: The directory cannot be written or emptied, for example because the disk is full.
    """
    try:
        os.makedirs(directory, exist_ok=True)
        descriptor = os.open(directory, os.O_RDONLY)
    except OSError as error:
        raise UserError(f"{message_start}: {printable(directory)}: {error.strerror}") from None
    try:
        if not _lock(descriptor) or not is_same(descriptor, directory):  # Another run uses, renames or removes it.
            raise BusyError(f"{message_start}: {busy}")
        check_elsewhere(directory, message_start)
        if not resumes:
            check_is_owned(directory, message_start)
        rescue()
        is_resumable = False
        try:
            _mark(directory)
            if not resumes:
                _empty_with_retries(directory)
            yield descriptor
        except BaseException as error:
            is_resumable = isinstance(error, StillRunningError) or stays(error)
            raise
        finally:
            if not is_resumable and is_same(descriptor, directory):  # Not if it was renamed.
                remove_directory(directory)
    finally:
        os.close(descriptor)


# `is_in_use` holds a lock for a short time, which must not cause an error in a starting run.
_LOCK_SECONDS = 0.5


def _lock(descriptor: int) -> bool:
    """Locks a directory for this process. Returns whether the lock was acquired."""
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
        time.sleep(0.01)


def is_in_use(directory: str) -> bool:
    """Returns whether a run uses a directory, according to its lock or its lease."""
    lease = read_lease(directory)
    if lease is not None and lease.is_elsewhere:
        return True
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def remove_temporary_files(directory: str) -> None:
    """Removes temporary files left behind by killed processes."""
    for left in pathlib.Path(directory).rglob(f".*{TEMPORARY}"):
        left.unlink(missing_ok=True)


def is_same(descriptor: int, path: str) -> bool:
    """Returns whether a path still refers to the same directory as an open file descriptor."""
    return os.path.exists(path) and os.path.samestat(os.fstat(descriptor), os.stat(path))


def _mark(directory: str) -> None:
    path = f"{directory}/{MARKER}"
    if os.path.exists(path) and os.path.getsize(path) == len(MARKER_TEXT):
        return  # Writing the marker again would remove it for a short time.
    try:
        with open(path, "wb") as file:
            file.write(MARKER_TEXT)
    except OSError as error:
        raise StorageError(f"{printable(directory)} could not be written: {error.strerror}") from None


def _empty(directory: str, ignore_errors: bool = False) -> None:
    """Removes all files in a directory except the marker file."""
    for name in CLAIMS:
        with contextlib.suppress(OSError if ignore_errors else (FileNotFoundError, NotADirectoryError)):
            os.unlink(f"{directory}/{name}")
    with os.scandir(directory) as scan:
        entries = list(scan)
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=ignore_errors)
        elif entry.name != MARKER:
            with contextlib.suppress(OSError if ignore_errors else ()):
                os.unlink(entry.path)


# Workers on a cluster may still write for a while after their job is canceled.
_MAX_EMPTYING_S = 30.0


def _empty_with_retries(directory: str) -> None:
    """Empties a directory. Retries if workers are still changing files."""
    deadline = time.monotonic() + _MAX_EMPTYING_S
    while True:
        try:
            return _empty(directory)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.ENOENT) or time.monotonic() > deadline:
                raise StorageError(f"{printable(directory)} could not be emptied: {error.strerror}") from None
        time.sleep(0.1)


# Worker threads in this process, as used by Prism, may still write after a run is interrupted.
_MAX_REMOVALS = 20


def remove_directory(directory: str) -> None:
    """Removes a directory, with retries. The marker file is removed last, and only if all other files were removed."""
    for _ in range(_MAX_REMOVALS):
        with contextlib.suppress(OSError):
            _empty(directory, ignore_errors=True)
            if os.listdir(directory) in ([], [MARKER]):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(f"{directory}/{MARKER}")
                os.rmdir(directory)
                return
