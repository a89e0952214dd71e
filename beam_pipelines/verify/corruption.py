"""Defines an error in a file of a dataset."""

import errno
from typing import Any, NamedTuple

from beam_pipelines.errors import printable
from beam_pipelines.storage.files import is_remote

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


def is_unrelated_error(error: OSError, path: str) -> bool:
    """Returns whether a read error has a cause other than the file itself, such as an unavailable object store."""
    return is_remote(path) or error.errno in _STORAGE_ERRORS
