"""Versions of input files: how a run notices that a file has changed since it was listed.

A version is a text: the size and the modification time of a file on a disk, the ETag or the generation of an object in a store. It stays in the
plan of a run and is not published.
"""

import contextlib
import contextvars
from typing import Iterator, NamedTuple

from beam_pipelines.errors import DataError, printable


class FileStat(NamedTuple):
    """The size of a file in bytes, and its version."""

    size: int
    version: str


_noted: contextvars.ContextVar[dict[str, str] | None] = contextvars.ContextVar("noted_versions", default=None)


@contextlib.contextmanager
def noting_versions(versions: dict[str, str]) -> Iterator[None]:
    """Within the block, adds each file that this thread opens to `versions`: its path -> its version."""
    token = _noted.set(versions)
    try:
        yield
    finally:
        _noted.reset(token)


def note_version(path: str, version: str) -> None:
    """Notes the version of a file that is opened, if somebody wants to know.

    Raises:
        DataError: The file was noted before, and has changed since.
    """
    versions = _noted.get()
    if versions is not None:
        add_version(versions, path, version)


def add_version(versions: dict[str, str], path: str, version: str) -> None:
    """Adds the version of a file to others.

    Raises:
        DataError: They have another version of it.
    """
    if (known := versions.setdefault(path, version)) != version:
        raise changed_error(path, known, version)


def changed_error(path: str, listed: str, found: str) -> DataError:
    """The error to raise if a file has another version than when it was listed.

    Args:
        path: The path of the file.
        listed: The version that the listing saw.
        found: The version that it has now, or a text that says why it cannot be read.
    """
    return DataError(
        f"{printable(path)} has changed since it was listed: it was {listed}, now {printable(found)}. Examples could get the labels of others: "
        "run again once nothing writes to the input any more, `prepare` with --restart.",
        path,
    )
