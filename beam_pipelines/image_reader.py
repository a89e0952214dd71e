"""Reads the images that references point to, in the order of the references. Plain, for light processes."""

from typing import Iterator

import google_crc32c
import numpy as np

from beam_pipelines.errors import RunError, printable
from beam_pipelines.files import files_at, is_remote
from beam_pipelines.read_ahead import read_ahead
from beam_pipelines.references import References
from beam_pipelines.spool import SpoolReader

# Neighbours in the spool are read together, where each reading is a request over a network.
_STRETCH_BYTES = 4 << 20


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

    def read_all(self, references: References) -> Iterator[bytes]:
        """The bytes of each image.

        Raises:
            RunError: They cannot be read, or differ from what was checked.
        """
        rows = references.rows[["num_bytes", "crc32c", "spool", "offset"]].tolist()
        if self._is_remote:
            images = self._read_stretches(references)
        else:
            images = (self._read(references.path(i), row[0], *row[2:]) for i, row in enumerate(rows))
        for index, (data, (num_bytes, crc32c, _, _)) in enumerate(zip(images, rows)):
            if len(data) != num_bytes or (self._has_checksums and google_crc32c.value(data) != crc32c):
                raise RunError(
                    f"{printable(references.path(index))} changed between its check and its write: "
                    f"it had {num_bytes} bytes, and these {len(data)} differ"
                )
            yield data

    def _read(self, path: str, num_bytes: int, spool: int, offset: int) -> bytes:
        try:
            return self._spool.read(spool, offset, num_bytes) if spool else self._files.read(f"{self._root}/{path}")
        except OSError as error:
            raise RunError(f"{printable(path)} could not be read again to be written: {error.strerror or error}") from error

    def _read_stretches(self, references: References) -> Iterator[bytes]:
        """Ahead of the need, and in one piece what lies in one piece."""
        rows = references.rows

        def read(stretch: tuple[int, int]) -> list[bytes]:
            first, last = stretch
            ends = np.cumsum(rows["num_bytes"][first:last], dtype=np.int64).tolist()
            spool, offset = rows["spool"][first].item(), rows["offset"][first].item()
            data = self._read(references.path(first), ends[-1], spool, offset)
            return [data] if last == first + 1 else [data[start:end] for start, end in zip([0, *ends], ends)]

        sizes = ((stretch, int(rows["num_bytes"][slice(*stretch)].sum(dtype=np.int64))) for stretch in stretches(rows))
        for images in read_ahead(read, sizes):
            yield from images


def stretches(rows: np.ndarray) -> Iterator[tuple[int, int]]:
    """(first, behind the last) of the references that point to one place after the other in one spool, up to a size."""
    ends = rows["offset"] + rows["num_bytes"]
    follows = (rows["spool"][1:] != 0) & (rows["spool"][1:] == rows["spool"][:-1]) & (rows["offset"][1:] == ends[:-1])
    first, num_bytes = 0, 0
    for index, (size, joins) in enumerate(zip(rows["num_bytes"].tolist(), [False, *follows.tolist()])):
        if index and not (joins and num_bytes + size <= _STRETCH_BYTES):
            yield first, index
            first, num_bytes = index, 0
        num_bytes += size
    if len(rows):
        yield first, len(rows)
