"""Checks that input files have not changed since they were listed."""

import itertools
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Mapping, Sequence

from beam_pipelines.storage.files import Files, files_at, is_remote
from beam_pipelines.storage.input_errors import describe_fact, is_fact
from beam_pipelines.storage.local_files import version_of
from beam_pipelines.storage.versions import changed_error
from tf_input.regular_files import open_regular, read_at

_NUM_THREADS = 32
_MAX_OPEN = 256  # A process may usually open 1,024 files.


class PinnedFiles:
    """Reads byte ranges of input files and raises an error if a file has changed since it was listed. The class
    implements `Files`, and can be used by several threads.

    Local files stay open, because a file can contain millions of inputs.

    Args:
        files: The underlying `Files`.
        versions: The listed versions by path. Other files may have any version.
    """

    def __init__(self, files: Files, versions: Mapping[str, str]) -> None:
        self._files, self._versions = files, versions
        self._open: dict[str, _OpenFile] = {}
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def read_range(self, path: str, offset: int, num_bytes: int, version: str | None = None) -> bytes:
        version = self._versions.get(path, version)
        try:
            if version is None or is_remote(path):
                return self._files.read_range(path, offset, num_bytes, version)
            file = self._open.get(path) or self._open_file(path, version)
            return file.read(offset, num_bytes)
        except OSError as error:
            if version is None or not is_fact(error, path):
                raise
            raise changed_error(path, version, error.strerror or str(error)) from error

    def read_ranges(self, ranges: Sequence[tuple[str, int, int]]) -> list[bytes] | None:
        """Reads byte ranges, each given as (path, offset, number of bytes). Checks the version of each file only once.

        Returns None if a file is remote or has no known version, or if there are too many files.
        """
        paths = {path for path, _, _ in ranges}
        if len(paths) > _MAX_OPEN or not paths <= self._versions.keys() or any(map(is_remote, paths)):
            return None
        files = {}
        for path in sorted(paths):
            try:
                files[path] = self._open.get(path) or self._open_file(path, self._versions[path])
                files[path].check()
            except OSError as error:
                if not is_fact(error, path):
                    raise
                raise changed_error(path, self._versions[path], error.strerror or str(error)) from error
        return [read_at(files[path].descriptor, num_bytes, offset) for path, offset, num_bytes in ranges]

    def _open_file(self, path: str, version: str) -> "_OpenFile":
        file = _OpenFile(path, version)
        with self._lock:
            while len(self._open) >= _MAX_OPEN:
                del self._open[next(iter(self._open))]
            return self._open.setdefault(path, file)


class _OpenFile:
    """An open local file of a known version, which is closed when this object is garbage-collected."""

    def __init__(self, path: str, version: str) -> None:
        self._path, self._version = path, version
        self.descriptor, status = open_regular(path)
        self._identity = status.st_size, status.st_mtime_ns
        if (actual := version_of(status)) != version:
            raise changed_error(path, version, actual)

    def read(self, offset: int, num_bytes: int) -> bytes:
        self.check()
        return read_at(self.descriptor, num_bytes, offset)

    def check(self) -> None:
        """Raises `DataError` if the file has changed."""
        status = os.stat(self._path)  # The path can also be removed, or lead to another file.
        if (status.st_size, status.st_mtime_ns) != self._identity:
            raise changed_error(self._path, self._version, version_of(status))

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):  # The file was opened.
            os.close(self.descriptor)


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
