"""Reads files on local disks and mounted file systems."""

import collections
import concurrent.futures
import os
import resource
import shutil
import threading
from typing import Callable, Mapping, Sequence

from tf_input.regular_files import open_regular, read_at, read_regular
from tf_input.storage.files import FILE_MISSING_ERRORS
from tf_input.storage.fingerprints import Fingerprints
from tf_input.storage.paths import join, local_path

# Files stay open, because opening a file takes as long as reading some small records. The usual limit for a process is
# 1024 open files.
_FEW_OPEN_FILES, _MOST_OPEN_FILES, _USUAL_LIMIT = 128, 8192, 1024
_NUM_QUESTIONS = 32  # number of parallel requests, because mounted file systems have a high latency


class LocalFiles:
    """Reads local files. It implements `Files`.

    The most recently used files stay open, which speeds up random access and reading many small shards.
    """

    is_local = True

    def __init__(self) -> None:
        self._open: collections.OrderedDict[str, _OpenFile] = collections.OrderedDict()
        self._num_open_files = num_open_files()
        self._lock = threading.Lock()
        self._fingerprints: Fingerprints | None = None

    def __reduce__(self) -> tuple[type["LocalFiles"], tuple[()]]:
        return LocalFiles, ()

    def read(self, path: str) -> bytes:
        return read_regular(local_path(path))

    def read_range(self, path: str, begin: int, num_bytes: int) -> bytes:
        file = self._opened(path)
        try:
            return read_at(file.descriptor, num_bytes, begin)
        except OSError as error:
            self.forget(path)  # the file handle may be stale
            raise OSError(error.errno, error.strerror, path) from None  # adds the path

    def read_into(self, path: str, begin: int, buffer: memoryview) -> int:
        file, read = self._opened(path), 0
        try:
            while read < len(buffer) and (more := os.preadv(file.descriptor, [buffer[read:]], begin + read)):
                read += more  # a call may return fewer bytes than requested
        except OSError as error:
            self.forget(path)
            raise OSError(error.errno, error.strerror, path) from None
        return read

    def sizes(self, directory: str, names: Sequence[str]) -> list[int | None]:
        def size(name: str) -> int | None:
            try:
                return os.stat(local_path(join(directory, name))).st_size
            except FILE_MISSING_ERRORS:
                return None

        with concurrent.futures.ThreadPoolExecutor(_NUM_QUESTIONS) as threads:
            return list(threads.map(size, names))

    def copy_directory(self, path: str, copy: str) -> None:
        shutil.copytree(local_path(path), copy)

    def watch(self, fingerprints: Fingerprints) -> None:
        self._fingerprints = fingerprints

    def discard(self, path: str, begin: int, num_bytes: int) -> bool:
        return False

    def fits_in_cache(self, sizes: Mapping[str, int]) -> bool:
        return True

    def release(self) -> None:
        with self._lock:
            self._open.clear()

    def forget(self, path: str) -> None:
        """Closes a file that was replaced on disk, so that the next read opens the new file."""
        with self._lock:
            self._open.pop(path, None)

    def _opened(self, path: str) -> "_OpenFile":
        with self._lock:
            if path in self._open:
                self._open.move_to_end(path)
                return self._open[path]
        file = _OpenFile(open_regular(local_path(path))[0])  # outside the lock, because it may be slow
        if self._fingerprints is not None and path in self._fingerprints:
            self._check(path, file.descriptor, self._fingerprints)
        with self._lock:
            file = self._open.setdefault(path, file)
            if len(self._open) > self._num_open_files:
                self._open.popitem(last=False)
        return file

    @staticmethod
    def _check(path: str, descriptor: int, fingerprints: Fingerprints) -> None:
        try:
            fingerprints.check(path, lambda begin, num_bytes: os.pread(descriptor, num_bytes, begin), os.fstat(descriptor))
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from None  # adds the path


class _OpenFile:
    """An open file descriptor, which is closed when this object is garbage-collected."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # `os` may be unloaded when Python ends
        close(self.descriptor)


def num_open_files() -> int:
    """Returns how many shards of a dataset may stay open at the same time.

    The number is (limit on open files - 1024) / 4, within fixed bounds, because a process may open several datasets.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return _MOST_OPEN_FILES
    return min(_MOST_OPEN_FILES, max(_FEW_OPEN_FILES, (limit - _USUAL_LIMIT) // 4))
