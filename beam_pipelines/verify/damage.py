"""What is found to be damaged in a data set."""

import errno
from typing import Any, NamedTuple

from beam_pipelines.errors import printable
from beam_pipelines.storage.files import is_remote

# What is told of one file: a shard whose beginning is gone has a million records that are not where they should be.
MAX_DAMAGES = 100

# What a disk or a mount says where it is not the file that is wrong.
_NOT_OF_THE_FILE = frozenset(
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


class Damage(NamedTuple):
    """One thing that is not as it was written.

    Attributes:
        file: The path of the file within the data set.
        reason: The text of what was found against what was expected.
        record: The number of the record in the file, or of the row of an index or a catalog; -1: none of them.
        offset: The byte of the file at which that begins; -1: not known.
        can_repair: Whether `recordmill repair` makes such a file again.
    """

    file: str
    reason: str
    record: int = -1
    offset: int = -1
    can_repair: bool = False

    def describe(self) -> str:
        """The damage on one line, for people."""
        record = f", record {self.record:,}" if self.record >= 0 else ""
        offset = f", byte {self.offset:,}" if self.offset >= 0 else ""
        return f"{printable(self.file)}{record}{offset}: {printable(self.reason)}"

    def to_json(self) -> dict[str, Any]:
        """Plain values, without those that are not known."""
        fields = {name: value for name, value in self._asdict().items() if value != -1}
        return {**fields, "file": printable(self.file), "reason": printable(self.reason)}


def says_nothing(error: OSError, path: str) -> bool:
    """Whether it says nothing about a file's bytes that it can't be read: a store or a mount is busy, or refuses us."""
    return is_remote(path) or error.errno in _NOT_OF_THE_FILE
