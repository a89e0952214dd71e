"""Determines the versions of input files, so that a run can detect files that have changed since they were listed.

A version is a string. For a local file, it consists of the size and the modification time. For an object in a store, it
is the ETag or the generation. Versions are stored in the plan of a run, but not in the published dataset.
"""

import contextlib
import contextvars
from typing import Iterator, NamedTuple

from beam_pipelines.errors import DataError, printable


class FileStat(NamedTuple):
    """The size of a file in bytes, and its version."""

    size: int
    version: str


_noted_versions: contextvars.ContextVar[dict[str, str] | None] = contextvars.ContextVar("noted_versions", default=None)


@contextlib.contextmanager
def noting_versions(versions: dict[str, str]) -> Iterator[None]:
    """Context manager that records in `versions` the version of each file that this thread opens."""
    token = _noted_versions.set(versions)
    try:
        yield
    finally:
        _noted_versions.reset(token)


def note_version(path: str, version: str) -> None:
    """Records the version of an opened file inside a `noting_versions` block. Does nothing outside such a block.

    Raises:
        DataError: The file was recorded before, and has changed since.
    """
    versions = _noted_versions.get()
    if versions is not None:
        add_version(versions, path, version)


def add_version(versions: dict[str, str], path: str, version: str) -> None:
    """Adds the current version of a file to `versions`.

    Raises:
        DataError: `versions` contains another version of the file.
    """
    if (known := versions.setdefault(path, version)) != version:
        raise changed_error(path, known, version)


def changed_error(path: str, listed: str, actual: str) -> DataError:
    """Returns the error to raise for a file that has changed since it was listed.

    Args:
        path: The path of the file.
        listed: The version at the time of the listing.
        actual: The current version, or the reason why the file cannot be read.
    """
    return DataError(
        f"{printable(path)} has changed since it was listed: it was {listed}, and is now {printable(actual)}, so images "
        "and labels "
        "may no longer match. Run the command again when the input no longer changes (`prepare` with --restart).",
        path,
    )
