"""Spool files: image bytes that wait on disk, out of the runner's memory, while their pointers are shuffled."""

import os
import pathlib
import threading

from beam_pipelines.errors import RunError


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
        self._lock = threading.Lock()  # the local runner may run bundles in threads of one process

    def append(self, data: bytes) -> int:
        """Returns the offset at which `data` begins; RunError if the disk is full."""
        with self._lock:
            offset = self._offset
            try:
                self._file.write(data)
            except OSError as error:
                raise _write_error(error) from error
            self._offset += len(data)
            return offset

    def flush(self) -> None:
        """Makes what was appended readable for other processes: before its pointers leave this one."""
        try:
            with self._lock:
                self._file.flush()
        except OSError as error:
            raise _write_error(error) from error

    def is_removed(self) -> bool:
        """Whether the run that it belonged to is over."""
        return os.fstat(self._file.fileno()).st_nlink == 0

    def close(self) -> None:
        self._file.close()


def _write_error(error: OSError) -> RunError:
    return RunError(f"the spool could not be written: {error.strerror or error}")


_writers: dict[str, SpoolWriter] = {}
_writers_lock = threading.Lock()


def spool_writer(directory: str) -> SpoolWriter:
    """This process's writer for a run: one file a process, not one a batch. Those of earlier runs are closed."""
    with _writers_lock:
        for name in [name for name, writer in _writers.items() if writer.is_removed()]:
            _writers.pop(name).close()
        if directory not in _writers:
            _writers[directory] = SpoolWriter(directory)
        return _writers[directory]


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
