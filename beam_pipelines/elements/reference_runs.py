"""Stores sorted runs of references in temporary files, as in the first half of an external merge sort.

References in a range of shuffle keys can be read without reading the whole file. Beam transfers only the locations of
the references between workers.
"""

from typing import Iterable, Iterator, NamedTuple

import numpy as np

from beam_pipelines.elements.dead_letters import DeadLetter, to_json_lines
from beam_pipelines.elements.references import CHUNK_REFERENCES, References, unpack_chunks
from beam_pipelines.errors import RunError
from beam_pipelines.storage.spool import SpoolReader, SpoolWriter, read_exactly

# Maximum number and size of references in a run. They bound the memory for sorting.
RUN_REFERENCES = 1 << 19
RUN_BYTES = 96 << 20


class SpoolRange(NamedTuple):
    """A byte range of a temporary file (spool file), for example of packed references.

    Attributes:
        spool: The number of the spool file.
        offset: The offset of the first byte in the spool file.
        num_bytes: The number of bytes.
    """

    spool: int
    offset: int
    num_bytes: int


class SortedRun(NamedTuple):
    """References of all splits, sorted by shuffle key and stored in a temporary file.

    Attributes:
        spool: The number of the spool file, which contains only these references.
        num_references: The number of references.
        orders: The first shuffle key of each chunk of references, as bytes of uint64 [num_chunks].
        offsets: The offset of each chunk, and the size of the file, as bytes of uint64 [num_chunks + 1].
    """

    spool: int
    num_references: int
    orders: bytes
    offsets: bytes

    def smallest(self, num: int) -> SpoolRange:
        """Returns a byte range that contains the first `num` references."""
        offsets = np.frombuffer(self.offsets, np.uint64)
        last = min(-(-num // CHUNK_REFERENCES), len(offsets) - 1)
        return SpoolRange(self.spool, 0, int(offsets[last]))

    def chunks(self) -> Iterator[tuple[int, int, SpoolRange]]:
        """Yields, for each chunk, the index of its first reference, its number of references and its byte range."""
        offsets = np.frombuffer(self.offsets, np.uint64).tolist()
        for number, (offset, end) in enumerate(zip(offsets, offsets[1:])):
            first = number * CHUNK_REFERENCES
            yield first, min(CHUNK_REFERENCES, self.num_references - first), SpoolRange(self.spool, offset, end - offset)

    def cut(self, bounds: np.ndarray) -> Iterator[tuple[int, SpoolRange]]:
        """Divides the references into blocks of shuffle keys. Yields the index and the byte range of each block.

        `bounds` contains the smallest shuffle key of each block, uint64 [num_blocks].
        """
        orders, offsets = np.frombuffer(self.orders, np.uint64), np.frombuffer(self.offsets, np.uint64)
        firsts = np.maximum(np.searchsorted(orders, bounds, side="left") - 1, 0)
        lasts = np.append(np.searchsorted(orders, bounds[1:], side="left"), len(orders))
        for block, (first, last) in enumerate(zip(firsts.tolist(), lasts.tolist())):
            if first < last:
                yield block, SpoolRange(self.spool, int(offsets[first]), int(offsets[last] - offsets[first]))


def write_run(batches: list[References], spool_directory: str) -> SortedRun:
    """Sorts references by shuffle key and writes them to a temporary file."""
    references = References.concatenate(batches)
    orders = references.rows["order"]
    if (orders[1:] < orders[:-1]).any():  # A run that is written again is already sorted.
        references = references.take(np.argsort(orders, kind="stable"))
    with SpoolWriter(spool_directory) as spool:
        offsets = [spool.append(b"")]  # The file exists even without references.
        for chunk in references.chunks():
            offsets.append(spool.append(chunk) + len(chunk))
    orders = np.ascontiguousarray(references.rows["order"][::CHUNK_REFERENCES])
    return SortedRun(spool.spool, len(references), orders.tobytes(), np.array(offsets, np.uint64).tobytes())


def write_chunks(references: References, ranges: Iterable[tuple[int, int]], spool_directory: str) -> list[SpoolRange]:
    """Writes slices of references to a temporary file. Returns the byte range of each slice."""
    chunks = []
    with SpoolWriter(spool_directory) as spool:
        for start, stop in ranges:
            data = b"".join(references.chunks(start, stop))
            chunks.append(SpoolRange(spool.spool, spool.append(data), len(data)))
    return chunks


def read_range(spool_range: SpoolRange, spool: SpoolReader) -> bytes:
    """Reads a byte range of the spool.

    Raises:
        RunError: The bytes are missing or incomplete.
    """
    return read_exactly(spool, *spool_range) if spool_range.num_bytes else b""


def read_references(spool_range: SpoolRange, spool: SpoolReader) -> References:
    """Reads references from the spool.

    Raises:
        RunError: The references are missing or corrupt.
    """
    try:
        return unpack_chunks(read_range(spool_range, spool))
    except ValueError as error:
        raise RunError(f"the spool is corrupt at offset {spool_range.offset}: {error}") from error


def read_run(run: SortedRun, spool_directory: str) -> References:
    """Reads all references of a run, in sorted order."""
    with SpoolReader(spool_directory) as spool:
        return read_references(run.smallest(run.num_references), spool)


def write_range(data: bytes, spool_directory: str) -> SpoolRange:
    """Writes a new temporary file and returns its byte range."""
    with SpoolWriter(spool_directory) as spool:
        return SpoolRange(spool.spool, spool.append(data), len(data))


def write_dead_letters(dead_letters: list[DeadLetter], spool_directory: str) -> SpoolRange:
    """Writes sorted lines of dead letters to a temporary file."""
    return write_range(to_json_lines(dead_letters).encode(), spool_directory)
