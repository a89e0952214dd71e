"""Checks that input files have not changed since they were listed."""

import contextlib
import itertools
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Iterator, Mapping, Sequence

from beam_pipelines.storage.files import Files, files_at, is_remote
from beam_pipelines.storage.input_errors import describe_fact, is_fact
from beam_pipelines.storage.local_files import MAX_OPEN, OpenFile, OpenFiles, version_of
from beam_pipelines.storage.versions import changed_error
from tf_input.regular_files import read_at

_NUM_THREADS = 32


class PinnedFiles:
    """Reads byte ranges of input files and raises an error if a file has changed since it was listed. The class
    implements `Files`, and can be used by several threads.

    Local files stay open, because a file can contain millions of inputs.

    Args:
        files: The underlying `Files`.
        versions: The listed versions by path. Other files may have any version.
    """

    def __init__(self, files: Files, versions: Mapping[str, str]) -> None:
        self._files, self._versions, self._open = files, versions, OpenFiles()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def read_range(self, path: str, offset: int, num_bytes: int, version: str | None = None) -> bytes:
        version = self._versions.get(path, version)
        if version is None:
            return self._files.read_range(path, offset, num_bytes)
        with _changes(path, version):
            if is_remote(path):
                return self._files.read_range(path, offset, num_bytes, version)
            file = self._open_unchanged(path, version)
            return read_at(file.descriptor, num_bytes, offset)

    def read_ranges(self, ranges: Sequence[tuple[str, int, int]]) -> list[bytes] | None:
        """Reads byte ranges, each given as (path, offset, number of bytes). Faster than `read_range`, because the version
        of each file is checked once. Returns None if a file is remote or has no known version, or if there are too many
        files."""
        paths = {path for path, _, _ in ranges}
        if len(paths) > MAX_OPEN or not paths <= self._versions.keys() or any(map(is_remote, paths)):
            return None
        files = {}
        for path in sorted(paths):
            with _changes(path, self._versions[path]):
                files[path] = self._open_unchanged(path, self._versions[path])
        return [read_at(files[path].descriptor, num_bytes, offset) for path, offset, num_bytes in ranges]

    def _open_unchanged(self, path: str, version: str) -> OpenFile:
        file = self._open.open(path)
        if (actual := version_of(os.stat(path))) != version:  # The path can also be removed, or lead to another file.
            raise changed_error(path, version, actual)
        return file


@contextlib.contextmanager
def _changes(path: str, version: str) -> Iterator[None]:
    """Context manager that reports a file of a known version as changed if it can no longer be read."""
    try:
        yield
    except OSError as error:
        if not is_fact(error, path):
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
