"""Caches remote files on a local disk. Each byte of a dataset is downloaded only once, and is then available for all
epochs and all processes."""

import contextlib
import itertools
import os
import pathlib
import struct
from typing import Iterator, Mapping, Sequence

import google_crc32c

from tf_input.storage.cache_space import BLOCK, PART, CacheSpace, lock_part
from tf_input.storage.files import Files
from tf_input.storage.fingerprints import Fingerprints
from tf_input.storage.local_files import LocalFiles
from tf_input.storage.paths import join

BLOCK_BYTES = 8 << 20  # the unit that is stored and removed
_HEADER = struct.Struct("<QI")  # the header of a block file: the number of bytes that follow, and their CRC-32C


class CachedFiles:
    """Implements `Files` with a cache of file blocks in a local folder.

    Each block is a separate file, which is written under a temporary name and then renamed. If several processes or
    threads need the same block, the first one downloads the block and the others wait. A single request downloads
    adjacent blocks. Each process verifies the checksum of a block before its first use. Corrupt or missing blocks are
    downloaded again. If the cache is full or its disk fails, files are read without the cache.

    Args:
        files: The remote files.
        directory: The directory of the dataset.
        folder: The folder in the cache directory for the blocks of the dataset.
        cache_bytes: The maximum number of bytes in the cache directory (see `CacheSpace`).

    Attributes:
        source: The remote files, for reads that bypass the cache.
        folder: The folder in the cache directory for the blocks of the dataset.
    """

    is_local = False

    def __init__(self, files: Files, directory: str, folder: pathlib.Path, cache_bytes: int | None) -> None:
        self.source, self.folder = files, folder
        self._arguments = files, directory, folder, cache_bytes
        self._directory = join(directory, "")
        self._space = CacheSpace(folder, cache_bytes)
        self._local = LocalFiles()
        self._checked: dict[str, int] = {}  # sizes of the verified blocks in bytes, by path

    def __reduce__(self) -> tuple[type["CachedFiles"], tuple]:
        return CachedFiles, self._arguments

    def read(self, path: str) -> bytes:
        blocks = []
        while not blocks or len(blocks[-1]) == BLOCK_BYTES:
            blocks.append(self.read_range(path, len(blocks) * BLOCK_BYTES, BLOCK_BYTES))
        return b"".join(blocks)

    def read_range(self, path: str, begin: int, num_bytes: int) -> bytes:
        if num_bytes <= 0:
            return b""
        wanted = [_Part(index, begin, begin + num_bytes) for index in _blocks(begin, begin + num_bytes)]
        blocks = {part.index: self._kept(path, part) for part in wanted}
        missing = [part for part in wanted if blocks[part.index] is None]
        if missing:
            blocks |= self._fetch_and_keep(path, missing) if not self._space.is_full else self._fetch(path, missing)
        return b"".join(blocks[part.index] for part in wanted)

    def read_into(self, path: str, begin: int, buffer: memoryview) -> int:
        data = self.read_range(path, begin, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def sizes(self, directory: str, names: Sequence[str]) -> list[int | None]:
        return self.source.sizes(directory, names)

    def copy_directory(self, path: str, copy: str) -> None:
        self.source.copy_directory(path, copy)

    def watch(self, fingerprints: Fingerprints) -> None:
        self.source.watch(fingerprints)

    def release(self) -> None:
        self.source.release()
        self._local.release()

    def fits_in_cache(self, sizes: Mapping[str, int]) -> bool:
        return self.source.fits_in_cache(sizes) or self._space.fits_in_cache(self._blocks_of(sizes))  # local files need no cache

    def required_cache_bytes(self, sizes: Mapping[str, int]) -> int:
        """Returns a value of `cache_bytes` that is large enough for the given files and all other datasets in use.

        Args:
            sizes: The sizes of the files in bytes, by path.
        """
        return self._space.needed(self._blocks_of(sizes))

    def _blocks_of(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Returns the sizes in bytes of the block files that store the given files, by path."""
        return {
            self._block(path, index): _HEADER.size + min(BLOCK_BYTES, num_bytes - index * BLOCK_BYTES)
            for path, num_bytes in sizes.items()
            for index in _blocks(0, num_bytes)
        }

    def discard(self, path: str, begin: int, num_bytes: int) -> bool:
        return any([self._drop_block(self._block(path, index)) for index in _blocks(begin, begin + num_bytes)])

    def _kept(self, path: str, part: "_Part") -> bytes | None:
        """Returns a part of a cached block, or None if the block is missing or corrupt."""
        block = self._block(path, part.index)
        try:
            if (num_bytes := self._checked.get(block)) is None:
                data = self._local.read_range(block, 0, _HEADER.size + BLOCK_BYTES + 1)
                if data[: _HEADER.size] == _header(data[_HEADER.size :]):
                    self._checked[block] = len(data) - _HEADER.size
                    return data[_HEADER.size + part.first : _HEADER.size + part.stop]
            else:
                wanted = max(0, min(part.stop, num_bytes) - part.first)
                data = self._local.read_range(block, _HEADER.size + part.first, wanted)
                if len(data) == wanted:
                    return data
        except FileNotFoundError:
            self._checked.pop(block, None)
            return None
        except OSError:  # a disk error
            pass
        self._drop_block(block)
        return None

    def _fetch(self, path: str, parts: Sequence["_Part"]) -> dict[int, bytes]:
        """Downloads parts of blocks without caching them."""
        blocks = {}
        for group in _adjacent(parts):
            begin = group[0].begin
            data = self.source.read_range(path, begin, group[-1].end - begin)
            blocks |= {part.index: data[part.begin - begin : part.end - begin] for part in group}
        return blocks

    def _fetch_and_keep(self, path: str, parts: Sequence["_Part"]) -> dict[int, bytes]:
        with contextlib.ExitStack() as stack:
            try:
                # All threads lock blocks in ascending order, which prevents deadlocks.
                locked = {part.index: stack.enter_context(self._lock_block(self._block(path, part.index))) for part in parts}
            except OSError as error:
                self._space.close(f"{error}")
                return self._fetch(path, parts)
            blocks = {part.index: self._kept(path, part) for part in parts}  # other threads may have stored blocks
            for group in _adjacent([part for part in parts if blocks[part.index] is None]):
                origin = group[0].index * BLOCK_BYTES
                data = self.source.read_range(path, origin, len(group) * BLOCK_BYTES)
                for part in group:
                    begin = part.index * BLOCK_BYTES - origin
                    block = data[begin : begin + BLOCK_BYTES]
                    blocks[part.index] = block[part.first : part.stop]
                    self._keep(self._block(path, part.index), locked[part.index], block)
        return blocks

    def _keep(self, block: str, unfinished: int, data: bytes) -> None:
        try:
            if not data or not self._space.take(_HEADER.size + len(data), unfinished):
                return
            with open(unfinished, "wb", closefd=False) as file:
                file.write(_header(data))
                file.write(data)
            os.replace(f"{block}{PART}", block)
        except OSError as error:  # for example, a full disk
            self._space.close(f"{error}")

    @contextlib.contextmanager
    def _lock_block(self, block: str) -> Iterator[int]:
        """Context manager that creates and locks a temporary file for a block, and removes the file on exit."""
        if not self.folder.is_dir():
            raise FileNotFoundError(f"{self.folder} was removed")
        os.makedirs(os.path.dirname(block), exist_ok=True)
        unfinished = lock_part(f"{block}{PART}")
        try:
            yield unfinished
        finally:
            with contextlib.suppress(OSError):
                if os.path.samestat(os.fstat(unfinished), os.stat(f"{block}{PART}")):
                    os.unlink(f"{block}{PART}")
            os.close(unfinished)

    def _drop_block(self, block: str) -> bool:
        self._checked.pop(block, None)
        self._local.forget(block)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(block)
            return True
        return False

    def _block(self, path: str, index: int) -> str:
        return os.path.join(self.folder, path.removeprefix(self._directory).lstrip("/"), f"{index:06d}{BLOCK}")


class _Part:
    """The requested byte range within a block.

    Attributes:
        index: The index of the block in its file.
        first, stop: The start and the end of the byte range, relative to the block.
        begin, end: The start and the end of the byte range, relative to the file.
    """

    def __init__(self, index: int, begin: int, end: int) -> None:
        origin = index * BLOCK_BYTES
        self.index = index
        self.begin, self.end = max(begin, origin), min(end, origin + BLOCK_BYTES)
        self.first, self.stop = self.begin - origin, self.end - origin


def kept_bytes(num_bytes: int) -> int:
    """Returns the disk space in bytes that a file of `num_bytes` bytes needs in the cache."""
    return num_bytes + _HEADER.size * len(_blocks(0, num_bytes))


def _header(data: bytes) -> bytes:
    return _HEADER.pack(len(data), google_crc32c.value(data))


def _blocks(begin: int, end: int) -> range:
    return range(begin // BLOCK_BYTES, -(-end // BLOCK_BYTES))


def _adjacent(parts: Sequence[_Part]) -> list[list[_Part]]:
    """Groups parts of adjacent blocks."""
    groups = itertools.groupby(enumerate(parts), lambda numbered: numbered[1].index - numbered[0])
    return [[part for _, part in group] for _, group in groups]
