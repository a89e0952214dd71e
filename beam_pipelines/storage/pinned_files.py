"""Input files that must still have the version that the listing saw: see `versions`."""

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Mapping

from beam_pipelines.storage.files import Files, files_at, is_remote
from beam_pipelines.storage.input_errors import describe_fact, is_fact
from beam_pipelines.storage.versions import changed_error

_NUM_THREADS = 32


class PinnedFiles:
    """Reads byte ranges only from the versions of files that were listed. Its methods are those of `Files`.

    Args:
        files: The files to read.
        versions: Path -> the version that was listed. Other files may have any version.
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
    """Checks that files still have the versions that were listed: one request for each file in a store.

    Args:
        versions: Path -> the version that was listed.

    Raises:
        DataError: A file has changed, or cannot be read any more.
        StorageError: A disk or a store did not answer.
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
        found = files_at(path).stat(path).version
    except OSError as error:
        found = describe_fact(error, path)
    if found != version:
        raise changed_error(path, version, found)
