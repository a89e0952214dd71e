"""The base class for remote files."""

import abc
import functools
from typing import Mapping

from tf_input.storage.fingerprints import Fingerprints


class RemoteFiles(abc.ABC):
    """A base class for implementations of `Files` that read remote files, with one request for each byte range."""

    is_local = False
    _fingerprints: Fingerprints | None = None
    _checked: set[str]

    def read_range(self, path: str, begin: int, num_bytes: int) -> bytes:
        data = self._read_range(path, begin, num_bytes)
        self._check(path, begin, data)
        return data

    def read_into(self, path: str, begin: int, buffer: memoryview) -> int:
        num_bytes = self._read_into(path, begin, buffer)
        self._check(path, begin, buffer[:num_bytes])
        return num_bytes

    @abc.abstractmethod
    def _read_range(self, path: str, begin: int, num_bytes: int) -> bytes:
        """Reads a byte range like `read_range`, without checking the fingerprint of the shard."""

    def _read_into(self, path: str, begin: int, buffer: memoryview) -> int:
        data = self._read_range(path, begin, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def discard(self, path: str, begin: int, num_bytes: int) -> bool:
        return False

    def watch(self, fingerprints: Fingerprints) -> None:
        self._fingerprints, self._checked = fingerprints, set()

    def release(self) -> None:
        if self._fingerprints is not None:
            self._checked.clear()  # the next iteration checks each shard again

    def fits_in_cache(self, sizes: Mapping[str, int]) -> bool:
        return False

    def _check(self, path: str, begin: int, data: memoryview | bytes) -> None:
        if self._fingerprints is None or path not in self._fingerprints:
            return
        is_first = path not in self._checked
        self._checked.add(path)  # before the check, so that other threads do not check the shard again
        try:
            self._fingerprints.check_part(path, begin, data, functools.partial(self._read_range, path), is_first=is_first)
        except BaseException:
            self._checked.discard(path)
            raise
