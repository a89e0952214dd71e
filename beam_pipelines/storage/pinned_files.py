"""Checks that input files have not changed since they were listed."""

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Mapping

from beam_pipelines.storage.files import Files, files_at, is_remote
from beam_pipelines.storage.input_errors import describe_fact, is_fact
from beam_pipelines.storage.versions import changed_error

_NUM_THREADS = 32


class PinnedFiles:
    """An implementation of `Files` that raises an error if an input file has changed since it was listed.

    Args:
        files: The underlying `Files`.
        versions: A mapping from path to the version at the time of the listing. Files without an entry may have any
            version.
    """

    def __init__(self, files: Files, versions: Mapping[str, str]) -> None:
        self._files, self._versions = files, versions

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def read_range(self, path: str, offset: int, num_bytes: int, version: str | None = None) -> bytes:
        version = self._versions.get(path, version)
        try:
            return self._files.read_range(path, offset, num_bytes, version)
        except OSError as error:
            if version is None or not is_fact(error, path):
                raise
            raise changed_error(path, version, error.strerror or str(error)) from error


def check_versions(versions: Mapping[str, str]) -> None:
    """Checks that files have not changed since they were listed. In an object store, this takes one request per file.

    Args:
        versions: A mapping from path to the version at the time of the listing.

    Raises:
        DataError: A file has changed, or can no longer be read.
        StorageError: A disk or an object store failed.
    """
    on_disk = (item for item in versions.items() if not is_remote(item[0]))
    for _ in itertools.starmap(_check_version, on_disk):
        pass
    if remote := [item for item in versions.items() if is_remote(item[0])]:
        with ThreadPoolExecutor(_NUM_THREADS) as pool:
            for _ in pool.map(lambda item: _check_version(*item), remote):
                pass


def _check_version(path: str, version: str) -> None:
    try:
        actual = files_at(path).stat(path).version
    except OSError as error:
        actual = describe_fact(error, path)
    if actual != version:
        raise changed_error(path, version, actual)
