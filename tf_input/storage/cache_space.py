"""Limits the size of a cache directory, which all processes and datasets on a machine share."""

import contextlib
import itertools
import logging
import os
import pathlib
import shutil
import threading
import weakref
from typing import Iterator, Mapping, NamedTuple

BLOCK, PART = ".block", ".part"  # suffixes of complete and temporary block files

_MARK = ".recordmill-cache"  # this file marks a folder of the cache; readers of the dataset hold a shared lock on it
_LEDGER = ".recordmill-cache-bytes"  # this file contains the approximate size of all folders; it is locked for changes
_DISK_BYTES = 4096  # block size of the file system
_FREE = 20  # without a limit, 1/20 of the disk stays free

_logger = logging.getLogger("tf_input")


class CacheSpace:
    """Allocates space in a cache directory for the blocks of a dataset.

    Blocks of open datasets are never removed. A dataset never replaces its own blocks, because the next epoch needs all
    of them again. If the cache is full, blocks of the least recently opened dataset are removed first, beginning with
    the oldest blocks. If all blocks are in use, additional blocks are not cached.

    Args:
        folder: The folder of the dataset in the cache directory. It is created.
        cache_bytes: The maximum number of bytes in the cache directory. None means no limit except the free disk space.

    Attributes:
        is_full: Whether this process has stopped caching blocks. Opening the dataset again resets the value.

    Raises:
        OSError: The folder cannot be created or locked.
    """

    def __init__(self, folder: pathlib.Path, cache_bytes: int | None) -> None:
        self.is_full = False
        self._directory, self._cache_bytes = folder.parent, cache_bytes
        self._log_lock = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)
        mark = open(folder / _MARK, "ab")
        weakref.finalize(self, mark.close)  # releases the lock together with this object
        _lock(mark.fileno(), shared=True)
        os.utime(folder / _MARK)

    def take(self, num_bytes: int, unfinished: int) -> bool:
        """Allocates cache space for a temporary file and removes old blocks if the cache is full.

        Args:
            num_bytes: The size of the file in bytes, to which the file is extended.
            unfinished: The file descriptor of the file.

        Returns:
            Whether there is enough space.
        """
        if self.is_full:
            return False
        if self._cache_bytes is None and self._disk_has(num_bytes):
            os.ftruncate(unfinished, num_bytes)
            return True
        with self._ledger() as ledger:
            has_space = self._take_disk(num_bytes) if self._cache_bytes is None else self._take_share(num_bytes, ledger)
            if has_space:  # extended while the lock is held, so that other processes count the file
                os.ftruncate(unfinished, num_bytes)
        if not has_space:
            taken = f"open datasets use all {self._cache_bytes:,} bytes of cache_bytes"
            self.close("a twentieth of its disk must stay free" if self._cache_bytes is None else taken)
        return has_space

    def fits_in_cache(self, blocks: Mapping[str, int]) -> bool:
        """Returns whether the cache is large enough for all blocks of the dataset.

        Args:
            blocks: The sizes of the block files in bytes, by path.
        """
        missing = [num_bytes for path, num_bytes in blocks.items() if not os.path.exists(path)]
        if not missing or self.is_full:
            return not missing
        if self._cache_bytes is not None:
            return self.needed(blocks) <= self._cache_bytes
        with _unused(self._directory) as removable:
            unused = sum(item.num_bytes for item in removable)
        return self._disk_has(sum(-(-num_bytes // _DISK_BYTES) * _DISK_BYTES for num_bytes in missing) - unused)

    def needed(self, blocks: Mapping[str, int]) -> int:
        """Returns the total size in bytes of the given blocks and all other cached blocks in use.

        Args:
            blocks: The sizes of the block files in bytes, by path.
        """
        with _unused(self._directory) as removable:
            unused = {item.path for item in removable}
        others = [entry for entry in _kept(self._directory) if entry.path not in unused and entry.path.removesuffix(PART) not in blocks]
        return sum(other.num_bytes for other in others) + sum(blocks.values())

    def close(self, reason: str) -> None:
        """Stops caching and logs the reason once."""
        with self._log_lock:
            was_full, self.is_full = self.is_full, True
        if not was_full:
            _logger.warning("%s: %s. The cache stores no further data.", self._directory, reason)

    def _disk_has(self, num_bytes: int) -> bool:
        disk = shutil.disk_usage(self._directory)
        return disk.free - num_bytes >= disk.total // _FREE

    def _take_disk(self, num_bytes: int) -> bool:
        with _unused(self._directory) as removable:
            while not self._disk_has(num_bytes):
                if (oldest := next(removable, None)) is None:
                    return False
                oldest.remove()
        return True

    def _take_share(self, num_bytes: int, ledger: int) -> bool:
        total = int(os.pread(ledger, 32, 0) or 0)
        if total + num_bytes > self._cache_bytes:
            total = sum(item.num_bytes for item in _kept(self._directory))  # the number in the ledger may be too high
            with _unused(self._directory) as removable:
                while total + num_bytes > self._cache_bytes and (oldest := next(removable, None)) is not None:
                    oldest.remove()
                    total -= oldest.num_bytes
        has_space = total + num_bytes <= self._cache_bytes
        os.pwrite(ledger, f"{total + num_bytes * has_space:<32}".encode(), 0)
        return has_space

    @contextlib.contextmanager
    def _ledger(self) -> Iterator[int]:
        descriptor = os.open(self._directory / _LEDGER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            _lock(descriptor)
            yield descriptor
        finally:
            os.close(descriptor)


class _Kept(NamedTuple):
    """A file in a cache."""

    opened: float  # time when its dataset was last opened
    written: float
    path: str
    num_bytes: int

    def remove(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
        with contextlib.suppress(OSError):
            os.rmdir(os.path.dirname(self.path))  # the folder, if it is empty


def _folders(directory: pathlib.Path) -> list[pathlib.Path]:
    """Returns the folders of a cache directory in which blocks are stored."""
    return [path for path in directory.iterdir() if (path / _MARK).is_file()]


def _kept(directory: pathlib.Path) -> Iterator[_Kept]:
    """Returns the block files in a cache directory."""
    return itertools.chain.from_iterable(map(_kept_of, _folders(directory)))


def _kept_of(folder: pathlib.Path) -> Iterator[_Kept]:
    opened = (folder / _MARK).stat().st_mtime
    for root, _, names in os.walk(folder):
        for name in names:
            if name.endswith((BLOCK, PART)):
                with contextlib.suppress(FileNotFoundError):
                    status = os.stat(path := os.path.join(root, name))
                    yield _Kept(opened, status.st_mtime, path, status.st_size)


@contextlib.contextmanager
def _unused(directory: pathlib.Path) -> Iterator[Iterator[_Kept]]:
    """Context manager that yields the cached blocks of unused datasets, oldest first, and locks these datasets."""
    with contextlib.ExitStack() as stack:
        files = []
        for folder in _folders(directory):
            mark = stack.enter_context(open(folder / _MARK, "ab"))
            with contextlib.suppress(BlockingIOError):
                _lock(mark.fileno(), wait=False)
                files += _kept_of(folder)
        yield iter(sorted(files))


def lock_part(path: str) -> int:
    """Opens a temporary file with an exclusive lock.

    Other processes that open the file wait until the descriptor is closed or the process that locked the file ends.

    Returns:
        A file descriptor, which the caller must close.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            _lock(descriptor)
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        except FileNotFoundError:  # the previous holder has renamed or removed the file
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _lock(descriptor: int, *, shared: bool = False, wait: bool = True) -> None:
    import fcntl  # missing on Windows, where caches do not work

    fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
