"""Spool files: image bytes that wait on disk, out of the runner's memory, while their pointers are shuffled."""

import functools
import os
import pathlib


class SpoolWriter:
    """Appends image bytes to one file, which no other process and no other attempt writes to.

    Attributes:
        spool: The file's id, never 0. It does not reach the output, so it need not be the same in every run.
    """

    def __init__(self, directory: str) -> None:
        self.spool = int.from_bytes(os.urandom(8), "little") | 1
        path = _spool_path(directory, self.spool)
        path.parent.mkdir(exist_ok=True)
        self._file = open(path, "xb", buffering=1 << 20)
        self._offset = 0

    def append(self, data: bytes) -> int:
        """Returns the offset at which `data` begins."""
        offset = self._offset
        self._file.write(data)
        self._offset += len(data)
        return offset

    def flush(self) -> None:
        """Makes what was appended readable for other processes: before its pointers leave this one."""
        self._file.flush()


@functools.lru_cache(maxsize=1)
def spool_writer(directory: str) -> SpoolWriter:
    """This process's writer: one file a process, not one a batch."""
    return SpoolWriter(directory)


class SpoolReader:
    """Reads spooled bytes back. Close it: an open file keeps its disk space even when the spool is deleted."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._descriptors: dict[int, int] = {}

    def read(self, spool: int, offset: int, num_bytes: int) -> bytes:
        if spool not in self._descriptors:
            self._descriptors[spool] = os.open(_spool_path(self._directory, spool), os.O_RDONLY | os.O_CLOEXEC)
        return os.pread(self._descriptors[spool], num_bytes, offset)

    def close(self) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()


def _spool_path(directory: str, spool: int) -> pathlib.Path:
    return pathlib.Path(directory) / f"{spool:016x}.spool"
