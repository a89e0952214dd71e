"""Defines an error in a file of a dataset."""

import contextlib
import errno
from typing import Any, BinaryIO, Iterator, NamedTuple

from beam_pipelines.errors import printable
from beam_pipelines.storage.files import files_at, is_remote, open_file

# The maximum number of reported errors per file. A shard without its first bytes can cause a million errors.
MAX_PROBLEMS = 100

# Error numbers of a disk or a mount that do not mean that the file is corrupt.
_STORAGE_ERRORS = frozenset(
    (
        errno.EACCES,
        errno.EPERM,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.ESTALE,
        errno.ENOTCONN,
        errno.ETIMEDOUT,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
    )
)


class Corruption(NamedTuple):
    """A difference between a file of a dataset and the file that Recordmill wrote.

    Attributes:
        file: The path of the file within the dataset.
        reason: The value that was found, and the expected value.
        record: The index of the record in the shard, or of the row in an index or a catalog. -1 if not applicable.
        offset: The byte offset of the error in the file. -1 if unknown.
        can_repair: Whether `recordmill repair` can rebuild the file.
    """

    file: str
    reason: str
    record: int = -1
    offset: int = -1
    can_repair: bool = False

    def describe(self) -> str:
        """Returns a one-line description."""
        record = f", record {self.record:,}" if self.record >= 0 else ""
        offset = f", byte {self.offset:,}" if self.offset >= 0 else ""
        return f"{printable(self.file)}{record}{offset}: {printable(self.reason)}"

    def to_json(self) -> dict[str, Any]:
        """Returns a dictionary of all attributes that are known."""
        fields = {name: value for name, value in self._asdict().items() if value != -1}
        return {**fields, "file": printable(self.file), "reason": printable(self.reason)}


class CorruptFileError(Exception):
    """Raised if a file is missing, cannot be read, or has invalid contents.

    Attributes:
        corruption: The error.
    """

    def __init__(self, corruption: Corruption) -> None:
        super().__init__(corruption.reason)
        self.corruption = corruption


@contextlib.contextmanager
def reading(path: str, name: str, can_repair: bool = False) -> Iterator[None]:
    """Context manager that converts read errors of a file to `CorruptFileError`. Errors with a cause other than the file
    itself, such as an unavailable object store, stay unchanged.

    Args:
        path: The path of the file.
        name: The path of the file within the dataset.
        can_repair: Whether `recordmill repair` can rebuild the file.
    """
    try:
        yield
    except FileNotFoundError:
        raise CorruptFileError(Corruption(name, "the file is missing", can_repair=can_repair)) from None
    except OSError as error:
        if is_remote(path) or error.errno in _STORAGE_ERRORS:
            raise
        raise CorruptFileError(Corruption(name, f"the file cannot be read: {error.strerror or error}", can_repair=can_repair)) from None


def read_corruptible(path: str, name: str, can_repair: bool = False) -> bytes:
    """Reads a file. See `reading`."""
    with reading(path, name, can_repair):
        return files_at(path).read(path)


@contextlib.contextmanager
def open_corruptible(path: str, name: str, can_repair: bool = False) -> Iterator[BinaryIO]:
    """Context manager that opens a file. See `reading`."""
    with reading(path, name, can_repair), open_file(path) as file:
        yield file
