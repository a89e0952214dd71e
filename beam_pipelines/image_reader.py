"""Reads the images that references point to, and their extras, in the order of the references. Plain, for light processes."""

from typing import Iterator

import google_crc32c
import numpy as np

from beam_pipelines.errors import RunError, printable
from beam_pipelines.files import files_at, is_remote
from beam_pipelines.read_ahead import read_ahead
from beam_pipelines.references import SOURCE_FILE, SOURCE_PART, References
from beam_pipelines.spool import SpoolReader

# Neighbours in the spool are read together, where each reading is a request over a network.
_STRETCH_BYTES = 4 << 20

_Read = tuple[bytes, bytes]  # extras, image


class ImageReader:
    """Follows pointers, and notices where a file is not what was checked.

    Args:
        root: The source's root.
        spool_directory: Where the spool files lie.
        has_checksums: Whether references carry the checksum of what was checked.
    """

    def __init__(self, root: str, spool_directory: str, has_checksums: bool) -> None:
        self._root = root
        self._files = files_at(root)
        self._spool = SpoolReader(spool_directory)
        self._has_checksums = has_checksums
        self._is_remote = is_remote(root) or is_remote(spool_directory)

    def __enter__(self) -> "ImageReader":
        return self

    def __exit__(self, *unused: object) -> None:
        self._spool.close()

    def read_all(self, references: References) -> Iterator[_Read]:
        """The extras and the bytes of each image.

        Raises:
            RunError: They cannot be read, or differ from what was checked.
        """
        if self._is_remote:
            found = self._read_stretches(references)
        else:
            found = (self._read_one(references, index) for index in range(len(references)))
        expected = references.rows[["num_bytes", "crc32c"]].tolist()
        for index, ((extras, image), (num_bytes, crc32c)) in enumerate(zip(found, expected)):
            if len(image) != num_bytes or (self._has_checksums and google_crc32c.value(image) != crc32c):
                raise RunError(
                    f"{printable(references.path(index))} changed between its check and its write: "
                    f"it had {num_bytes} bytes, and these {len(image)} differ"
                )
            yield extras, image

    def _read_one(self, references: References, index: int) -> _Read:
        num_bytes, spool, offset = references.rows[["num_bytes", "spool", "offset"]][index].item()
        path = references.path(index)
        if references.extras is None:
            return b"", self._read(path, num_bytes, spool, offset)
        extras_bytes, extras_spool, extras_offset = references.extras[index].item()
        if spool == extras_spool:  # and then behind the extras: see `read_images`
            data = self._read(path, extras_bytes + num_bytes, spool, extras_offset)
            return data[:extras_bytes], data[extras_bytes:]
        extras = self._read(path, extras_bytes, extras_spool, extras_offset) if extras_bytes else b""
        return extras, self._read(path, num_bytes, spool, offset)

    def _read(self, path: str, num_bytes: int, spool: int, offset: int) -> bytes:
        try:
            if spool == SOURCE_FILE:
                return self._files.read(f"{self._root}/{path}")
            if spool == SOURCE_PART:
                return self._files.read_range(f"{self._root}/{path}", offset, num_bytes)
            return self._spool.read(spool, offset, num_bytes)
        except OSError as error:
            raise RunError(f"{printable(path)} could not be read again to be written: {error.strerror or error}") from error

    def _read_stretches(self, references: References) -> Iterator[_Read]:
        """Ahead of the need, and in one piece what lies in one piece."""
        spools, starts, extras_bytes, sizes = blocks(references)

        def read(stretch: tuple[int, int]) -> list[_Read]:
            first, last = stretch
            if last == first + 1:
                return [self._read_one(references, first)]
            ends = np.cumsum(sizes[first:last]).tolist()
            data = self._read(references.path(first), ends[-1], spools[first].item(), starts[first].item())
            cuts = [start + num_bytes for start, num_bytes in zip([0, *ends], extras_bytes[first:last].tolist())]
            return [(data[start:cut], data[cut:end]) for start, cut, end in zip([0, *ends], cuts, ends)]

        items = ((stretch, int(sizes[slice(*stretch)].sum())) for stretch in stretches(spools, starts, sizes))
        for found in read_ahead(read, items):
            yield from found


def blocks(references: References) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Of each image's bytes, with its extras before them where both lie together: spool, offset, bytes of extras, bytes in all."""
    rows, extras = references.rows, references.extras
    starts, sizes = rows["offset"], rows["num_bytes"].astype(np.int64)
    if extras is None:
        return rows["spool"], starts, np.zeros(len(rows), np.int64), sizes
    extras_bytes = extras["num_bytes"].astype(np.int64)
    together = (rows["spool"] == extras["spool"]) & (rows["spool"] > SOURCE_PART)
    # Apart from their extras they are read alone.
    spools = np.where(together, rows["spool"], SOURCE_FILE)
    return spools, np.where(together, extras["offset"], starts), extras_bytes, sizes + extras_bytes


def stretches(spools: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> Iterator[tuple[int, int]]:
    """(first, behind the last) of the blocks that lie one after the other in one spool, up to a size."""
    ends = starts + sizes.astype(np.uint64)
    follows = (spools[1:] > SOURCE_PART) & (spools[1:] == spools[:-1]) & (starts[1:] == ends[:-1])
    first, num_bytes = 0, 0
    for index, (size, joins) in enumerate(zip(sizes.tolist(), [False, *follows.tolist()])):
        if index and not (joins and num_bytes + size <= _STRETCH_BYTES):
            yield first, index
            first, num_bytes = index, 0
        num_bytes += size
    if len(spools):
        yield first, len(spools)
