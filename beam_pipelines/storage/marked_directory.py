"""A directory on a disk that is one run's alone. Its mark says that it is ours: a directory without it is never emptied."""

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

# A file, or in an object store an object, that says that what lies beside it is a run's and not whole yet.
MARKER = "INCOMPLETE"
MARKER_TEXT = (
    b"A run of recordmill is writing here, or failed: the next run goes on from here, or removes what is here. "
    b"In what is whole this is not.\n"
)

# What says of the rest that it is there: it goes first, so that who is killed meanwhile leaves nothing that claims too much.
CLAIMS = (MANIFEST, LEASE)


def is_ours(directory: str) -> bool:
    """Whether a directory holds nothing but what a run of ours has put there, and may be emptied."""
    names = os.listdir(directory)
    mark = f"{directory}/{MARKER}"
    if os.path.islink(directory) or not os.path.isfile(mark):
        return not names and not os.path.islink(directory)
    with open(mark, "rb") as file:
        text = file.read(len(MARKER_TEXT) + 1)
    return text == MARKER_TEXT or (names == [MARKER] and MARKER_TEXT.startswith(text))  # the latter: killed as it wrote the mark


def check_is_ours(directory: str, whose: str) -> None:
    """Fails where there is a directory that a run would have to empty, and that may not be a run's.

    Raises:
        UserError: It begins with `whose`: how the user names what the directory is for.
    """
    shown = printable(directory)
    try:
        if not os.path.isdir(directory) or is_ours(directory):
            return
    except OSError as error:
        raise UserError(f"{whose}: {shown}: {error.strerror}") from None
    raise UserError(f"{whose}: {shown}, where the run would work, holds what no run has put there; expected it moved away, or removed")


def make_marked(directory: str) -> None:
    """Makes a directory of ours, but not what it should lie in; one that is there stays as it is."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(directory)
        _mark(directory)


@contextlib.contextmanager
def own_directory(
    directory: str,
    whose: str,
    busy: str,
    rescue: Callable[[], None] = lambda: None,
    goes_on: bool = False,
    stays: Callable[[BaseException], bool] = lambda error: False,
) -> Iterator[int]:
    """Makes a directory, or takes the one that a killed run left: this run's alone, empty but for the mark. Removes it after the block.

    The lock is on the directory itself: it goes with the process, however that ends, so a directory that a killed run left is known to
    be nobody's. What has been renamed by the end of the block stays, and so it does after StillRunningError.

    Args:
        directory: The path of the directory.
        whose: The name of what the directory is for, as the user knows it.
        busy: The message where another run has it.
        rescue: A function that is called before it is emptied, when it is this run's alone: takes out what a killed run left that must not
            be lost, or raises UserError, and all stays as it is.
        goes_on: Whether it is not emptied, since the run goes on from what is there.
        stays: Whether it stays after an error.

    Yields:
        The directory's descriptor.

    Raises:
        BusyError: Another run has it.
        UserError: It is not ours, or it can't be made.
        StorageError: It can't be written to: the disk is full, say; or it can't be emptied.
    """
    try:
        os.makedirs(directory, exist_ok=True)
        descriptor = os.open(directory, os.O_RDONLY)
    except OSError as error:
        raise UserError(f"{whose}: {printable(directory)}: {error.strerror}") from None
    try:
        if not _lock(descriptor) or not is_same(descriptor, directory):  # another run has it, or has just renamed or removed it
            raise BusyError(f"{whose}: {busy}")
        check_elsewhere(directory, whose)
        if not goes_on:
            check_is_ours(directory, whose)
        rescue()
        is_left = False
        try:
            _mark(directory)
            if not goes_on:
                _empty_at_last(directory)
            yield descriptor
        except BaseException as error:
            is_left = isinstance(error, StillRunningError) or stays(error)
            raise
        finally:
            if not is_left and is_same(descriptor, directory):  # else it is in its place, and another run may have made a new one
                remove_directory(directory)
    finally:
        os.close(descriptor)


# `is_in_use` has a lock for a moment too, which must not make a run fail that begins just then.
_LOCK_SECONDS = 0.5


def _lock(descriptor: int) -> bool:
    """Locks a directory for this process; returns whether that was possible."""
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
    """Whether a run is at work in a directory, on this machine by its lock, on another one by its lease."""
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
    """Those of attempts that were killed; who has the directory has no attempt under way."""
    for left in pathlib.Path(directory).rglob(f".*{TEMPORARY}"):
        left.unlink(missing_ok=True)


def is_same(descriptor: int, path: str) -> bool:
    """Whether a path is that of a directory that is open."""
    return os.path.exists(path) and os.path.samestat(os.fstat(descriptor), os.stat(path))


def _mark(directory: str) -> None:
    path = f"{directory}/{MARKER}"
    if os.path.exists(path) and os.path.getsize(path) == len(MARKER_TEXT):
        return  # never for a moment without it
    try:
        with open(path, "wb") as file:
            file.write(MARKER_TEXT)
    except OSError as error:
        raise StorageError(f"{printable(directory)} could not be written: {error.strerror}") from None


def _empty(directory: str, ignore_errors: bool = False) -> None:
    """The mark stays: who is killed meanwhile leaves what is still ours."""
    for name in CLAIMS:
        with contextlib.suppress(OSError if ignore_errors else (FileNotFoundError, NotADirectoryError)):
            os.unlink(f"{directory}/{name}")
    with os.scandir(directory) as found:
        entries = list(found)
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=ignore_errors)
        elif entry.name != MARKER:
            with contextlib.suppress(OSError if ignore_errors else ()):
                os.unlink(entry.path)


# Workers of a cluster may still be at what they began when the job was cancelled that a killed command left.
_MAX_EMPTYING_S = 30.0


def _empty_at_last(directory: str) -> None:
    """Empties a directory, though somebody may still write there, or remove, for a while."""
    deadline = time.monotonic() + _MAX_EMPTYING_S
    while True:
        try:
            return _empty(directory)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.ENOENT) or time.monotonic() > deadline:
                raise StorageError(f"{printable(directory)} could not be emptied: {error.strerror}") from None
        time.sleep(0.1)


# Threads of a worker within this process (Prism's, of several threads) may still be at what they began when a run is interrupted.
_MAX_REMOVALS = 20


def remove_directory(directory: str) -> None:
    """The mark goes last, and stays where something can't be removed, or comes again and again."""
    for _ in range(_MAX_REMOVALS):
        with contextlib.suppress(OSError):
            _empty(directory, ignore_errors=True)
            if os.listdir(directory) in ([], [MARKER]):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(f"{directory}/{MARKER}")
                os.rmdir(directory)
                return
