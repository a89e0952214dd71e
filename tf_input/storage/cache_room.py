"""How much a cache directory may hold, of which all processes of a machine and all data sets take their parts."""

import contextlib
import itertools
import logging
import os
import pathlib
import shutil
import threading
import weakref
from typing import Iterator, Mapping, NamedTuple

BLOCK, PART = ".block", ".part"  # what a file in a cache is called that is whole, or not yet

_MARK = ".recordmill-cache"  # in a folder that is ours; locked while a data set is open, shared by those who have it open
_LEDGER = ".recordmill-cache-bytes"  # beside these folders: how many bytes they hold, about; itself the lock of who changes it
_DISK_BYTES = 4096  # of which a file takes whole ones
_FREE = 20  # a twentieth of the disk is left free where there is no limit

_logger = logging.getLogger("tf_input")


class CacheRoom:
    """The room that a data set has in a cache directory.

    What is in use is never removed, and all that an open data set has is: an epoch reads each byte once, so to make room for the
    next block by removing one of its own would leave nothing for the next epoch. Where all room is taken, no more is kept.
    Otherwise that goes first which belongs to the data set that was opened longest ago, and of that the oldest.

    Args:
        folder: The folder of the data set, in the cache directory; it is made.
        cache_bytes: The number of bytes that may lie in the cache directory; None: as many as its disk has room for.

    Attributes:
        is_full: Whether nothing more is kept, by this process, until it opens the data set anew.

    Raises:
        OSError: The folder can't be made, or locked.
    """

    def __init__(self, folder: pathlib.Path, cache_bytes: int | None) -> None:
        self.is_full = False
        self._directory, self._cache_bytes = folder.parent, cache_bytes
        self._telling = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)
        mark = open(folder / _MARK, "ab")
        weakref.finalize(self, mark.close)  # and the lock is gone with this object
        _lock(mark.fileno(), shared=True)
        os.utime(folder / _MARK)

    def take(self, num_bytes: int, unfinished: int) -> bool:
        """Whether there is room for so many bytes more, which an open file takes at once; it is made where that is possible."""
        if self.is_full:
            return False
        if self._cache_bytes is None and self._disk_has(num_bytes):
            os.ftruncate(unfinished, num_bytes)
            return True
        with self._ledger() as ledger:
            found = self._take_disk(num_bytes) if self._cache_bytes is None else self._take_share(num_bytes, ledger)
            if found:  # before anybody counts again
                os.ftruncate(unfinished, num_bytes)
        if not found:
            taken = f"the {self._cache_bytes:,} bytes of cache_bytes are taken by data sets that are open"
            self.close("a twentieth of its disk stays free" if self._cache_bytes is None else taken)
        return found

    def can_hold(self, blocks: Mapping[str, int]) -> bool:
        """Whether blocks, by their paths and what each takes, are there all together once each was asked for."""
        missing = [num_bytes for path, num_bytes in blocks.items() if not os.path.exists(path)]
        if not missing or self.is_full:
            return not missing
        if self._cache_bytes is not None:
            return self.needed(blocks) <= self._cache_bytes
        with _unused(self._directory) as removable:
            unused = sum(one.num_bytes for one in removable)
        return self._disk_has(sum(-(-num_bytes // _DISK_BYTES) * _DISK_BYTES for num_bytes in missing) - unused)

    def needed(self, blocks: Mapping[str, int]) -> int:
        """How many bytes blocks take, and with them all else in the directory that is in use and stays."""
        with _unused(self._directory) as removable:
            unused = {one.path for one in removable}
        others = [one for one in _kept(self._directory) if one.path not in unused and one.path.removesuffix(PART) not in blocks]
        return sum(one.num_bytes for one in others) + sum(blocks.values())

    def close(self, reason: str) -> None:
        """Keeps no more, and says so once."""
        with self._telling:
            told, self.is_full = self.is_full, True
        if not told:
            _logger.warning("%s: %s; what else is read is not kept there", self._directory, reason)

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
            total = sum(one.num_bytes for one in _kept(self._directory))  # what killed processes took, or users removed, is not there
            with _unused(self._directory) as removable:
                while total + num_bytes > self._cache_bytes and (oldest := next(removable, None)) is not None:
                    oldest.remove()
                    total -= oldest.num_bytes
        found = total + num_bytes <= self._cache_bytes
        os.pwrite(ledger, f"{total + num_bytes * found:<32}".encode(), 0)
        return found

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

    opened: float  # when its data set last was
    written: float
    path: str
    num_bytes: int

    def remove(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
        with contextlib.suppress(OSError):
            os.rmdir(os.path.dirname(self.path))  # the file that it was a block of, if it was the last one


def _folders(directory: pathlib.Path) -> list[pathlib.Path]:
    """Those that are ours."""
    return [one for one in directory.iterdir() if (one / _MARK).is_file()]


def _kept(directory: pathlib.Path) -> Iterator[_Kept]:
    """What lies in a cache directory, as far as it is ours."""
    return itertools.chain.from_iterable(map(_kept_of, _folders(directory)))


def _kept_of(folder: pathlib.Path) -> Iterator[_Kept]:
    opened = (folder / _MARK).stat().st_mtime
    for root, _, names in os.walk(folder):
        for name in names:
            if name.endswith((BLOCK, PART)):
                with contextlib.suppress(FileNotFoundError):
                    found = os.stat(path := os.path.join(root, name))
                    yield _Kept(opened, found.st_mtime, path, found.st_size)


@contextlib.contextmanager
def _unused(directory: pathlib.Path) -> Iterator[Iterator[_Kept]]:
    """What no open data set has, the oldest first; nobody opens one of these data sets meanwhile."""
    with contextlib.ExitStack() as stack:
        found = []
        for folder in _folders(directory):
            mark = stack.enter_context(open(folder / _MARK, "ab"))
            with contextlib.suppress(BlockingIOError):
                _lock(mark.fileno(), wait=False)
                found += _kept_of(folder)
        yield iter(sorted(found))


def lock_part(path: str) -> int:
    """Opens an unfinished file, alone: who wants the same waits for who has it, and a process that dies lets go of it.

    Returns:
        A descriptor, to be closed.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            _lock(descriptor)
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        except FileNotFoundError:  # whoever had it has finished it
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _lock(descriptor: int, *, shared: bool = False, wait: bool = True) -> None:
    import fcntl  # not on Windows, where only caches need it

    fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
