"""Manages working directories, on disks and in object stores. Each belongs to a single run.

For safety, a directory is emptied only if it contains a marker file of Recordmill.
"""

import contextlib
import dataclasses
import errno
import fcntl
import os
import re
import shlex
import time
from typing import Callable, Iterator

from beam_pipelines.errors import BusyError, StillRunningError, StorageError, UserError, printable
from beam_pipelines.storage.files import files_at, is_remote, write_file
from beam_pipelines.storage.lease import LEASE, HeldLease, Lease, busy_error, held_lease, read_lease, wait_for_lease
from tf_input.dataset_format import MANIFEST

# The marker file or object, which shows that the files beside it are the incomplete files of a run.
MARKER = "INCOMPLETE"
MARKER_TEXT = (
    b"A recordmill run is writing to this directory, or was interrupted. The next run resumes from these files or "
    b"deletes them. Complete output does not contain this file.\n"
)


def is_owned(directory: str) -> bool:
    """Returns whether a directory may be emptied, because it is missing, is empty or contains a marker file."""
    mark = f"{directory}/{MARKER}"
    if is_remote(directory):
        store = files_at(directory)
        return not any(store.top_level(directory)) or store.exists(mark) or store.exists(f"{directory}/{LEASE}")
    if not os.path.isdir(directory):
        return True
    names = os.listdir(directory)
    if os.path.islink(directory) or not os.path.isfile(mark):
        return not names and not os.path.islink(directory)
    with open(mark, "rb") as file:
        text = file.read(len(MARKER_TEXT) + 1)
    return text == MARKER_TEXT or (names == [MARKER] and MARKER_TEXT.startswith(text))  # An incomplete marker.


def check_is_owned(directory: str, message_start: str) -> None:
    """Raises an error if a directory must not be emptied.

    Args:
        directory: The path of the directory.
        message_start: The option and path at the start of the error message.

    Raises:
        UserError: The directory may contain files that do not belong to a run.
    """
    shown = printable(directory)
    try:
        if is_owned(directory):
            return
    except OSError as error:
        if is_remote(directory):
            raise
        raise UserError(f"{message_start}: {shown}: {error.strerror}") from None
    raise UserError(f"{message_start}: {shown}, which the run needs for its files, has files from elsewhere. Move or remove them.")


def make_marked(directory: str) -> None:
    """Creates a directory with a marker file. The parent directory must exist. An existing directory is not changed."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(directory)
        _mark(directory)


@dataclasses.dataclass(frozen=True)
class WorkingDirectory:
    """A directory that a command holds while it writes an output.

    Attributes:
        path: The path or URL of the directory.
        lease: The lease of the command.
        message_start: The option and path with which error messages begin.
        check: A function to call when the directory is held, before it is changed. If it raises `UserError`, the
            directory is not changed.
        resumes: Whether the run uses the files in the directory, so that it is not emptied.
        stays: A function that returns whether the directory is kept after an exception.
        is_at_work: A function that returns whether the job of another command's detached lease is still active.
        output: The URL of a directory in the store that belongs to the run, too. Empty on a disk.
        last_file: The name of the file that shows that the output is complete.
    """

    path: str
    lease: Lease
    message_start: str
    check: Callable[[], None] = lambda: None
    resumes: bool = False
    stays: Callable[[BaseException], bool] = lambda error: False
    is_at_work: Callable[[Lease], bool] = lambda other: True
    output: str = ""
    last_file: str = MANIFEST

    def hold(self) -> contextlib.AbstractContextManager[HeldLease]:
        """Context manager that creates or takes over the directory, and marks, empties and finally removes it.

        On success, the caller must remove a directory in an object store. The directory is not removed if it was
        renamed, if another command has taken it over, or if a `StillRunningError` is raised.

        Raises:
            BusyError: Another run uses the directory.
            UserError: The directory has no marker, or it cannot be created.
            StorageError: The directory cannot be written or emptied, for example because the disk is full.
        """
        return self._hold_in_store() if is_remote(self.path) else self._hold_on_disk()

    @contextlib.contextmanager
    def _hold_on_disk(self) -> Iterator[HeldLease]:
        """The operating system releases the lock of the directory when the process ends, even if it is killed."""
        try:
            os.makedirs(self.path, exist_ok=True)
            descriptor = os.open(self.path, os.O_RDONLY)
        except OSError as error:
            raise UserError(f"{self.message_start}: {printable(self.path)}: {error.strerror}") from None
        try:
            if not _lock(descriptor) or not is_same(descriptor, self.path):  # Another run uses, renames or removes it.
                raise _busy_error(self.path, self.message_start)
            # The lock may be invisible to other machines that share the disk.
            if (other := read_lease(self.path)) and other.is_elsewhere:
                raise busy_error(other, self.message_start)
            check_is_owned(self.path, self.message_start)
            self.check()
            stays = False
            try:
                _mark(self.path)
                with held_lease(self.path, self.lease, self.message_start) as held:
                    if not self.resumes:
                        _empty_with_retries(self.path, self.last_file)
                    yield held
            except BaseException as error:
                stays = self._stays(error)
                raise
            finally:
                if not stays and is_same(descriptor, self.path):  # Not if it was renamed.
                    remove_directory(self.path)
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def _hold_in_store(self) -> Iterator[HeldLease]:
        directories = [self.path, *filter(None, [self.output])]
        for directory in directories:
            check_is_owned(directory, self.message_start)
        with held_lease(self.path, self.lease, self.message_start, self.is_at_work) as held:
            try:
                self.check()
                for directory in directories:
                    write_file(f"{directory}/{MARKER}", MARKER_TEXT)
                    files_at(directory).abandon_uploads(directory)
                    if not self.resumes:
                        _empty(directory, self.last_file)
                yield held
            except BaseException as error:
                if not self._stays(error) and held.is_owned():
                    if self.output and not files_at(self.output).exists(f"{self.output}/{self.last_file}"):
                        remove_directory(self.output, self.last_file)
                    remove_directory(self.path, self.last_file)
                raise

    def _stays(self, error: BaseException) -> bool:
        return isinstance(error, StillRunningError) or self.stays(error)


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


def wait_until_unused(directory: str, message_start: str) -> None:
    """Waits until no other command uses a directory. Raises `BusyError` if another command is running."""
    if is_remote(directory):
        wait_for_lease(directory, message_start)  # The lease of a killed command must expire.
    elif is_in_use(directory):  # The operating system releases the lock of a killed command at once.
        raise _busy_error(directory, message_start)


def _busy_error(directory: str, message_start: str) -> BusyError:
    """Returns the error to raise if another command has locked a directory. It may not have written its lease yet."""
    with contextlib.suppress(OSError):
        if (lease := read_lease(directory)) and lease.is_live:
            return busy_error(lease, message_start)
    output = shlex.quote(re.sub(r"^-*\w+=", "", message_start))  # without the option
    return BusyError(f"{message_start}: another run is writing to it (see `recordmill status {output}`)")


def is_in_use(directory: str) -> bool:
    """Returns whether a run uses a directory, according to its lock or its lease."""
    lease = read_lease(directory)
    if is_remote(directory) or (lease is not None and lease.is_elsewhere):
        return lease is not None and lease.is_live
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


def _empty(directory: str, last_file: str) -> None:
    """Removes all files in a directory except the marker and the lease. The last file refers to the other files."""
    files = files_at(directory)
    files.remove(f"{directory}/{last_file}")
    files.remove_all(directory, but=(MARKER, LEASE))


# Workers on a cluster may still write for a while after their job is canceled.
_MAX_EMPTYING_S = 30.0


def _empty_with_retries(directory: str, last_file: str) -> None:
    """Empties a directory. Retries if workers are still changing files."""
    deadline = time.monotonic() + _MAX_EMPTYING_S
    while True:
        try:
            return _empty(directory, last_file)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.ENOENT) or time.monotonic() > deadline:
                raise StorageError(f"{printable(directory)} could not be emptied: {error.strerror}") from None
        time.sleep(0.1)


# Worker threads in this process, as used by Prism, may still write after a run is interrupted.
_MAX_REMOVALS = 20


def remove_directory(directory: str, last_file: str = MANIFEST) -> None:
    """Removes a directory. The marker file is removed last, so that a later run can complete an interrupted removal.

    On a disk, the removal is repeated if other threads are still writing. Errors are ignored.
    """
    if is_remote(directory):
        _remove_files(directory, last_file)
        return
    for _ in range(_MAX_REMOVALS):
        with contextlib.suppress(OSError):
            _remove_files(directory, last_file)
            os.rmdir(directory)
            return


def _remove_files(directory: str, last_file: str) -> None:
    _empty(directory, last_file)
    for name in (LEASE, MARKER):
        files_at(directory).remove(f"{directory}/{name}")


def remove_leftovers(directory: str, lease: Lease, message_start: str) -> None:
    """Removes the directory of a run that was killed after it had published its output, unless it is in use."""
    if any(files_at(directory).top_level(directory)) if is_remote(directory) else os.path.lexists(directory):
        with contextlib.suppress(BusyError), WorkingDirectory(directory, lease, message_start).hold():
            remove_directory(directory)
