"""Sorted runs of references in the spool: what is listed waits there, and a range of shuffle keys can be read again by itself.

So the runner's memory and its shuffle hold pointers alone, whatever the number of images: this is the first half of a merge sort.
"""

from typing import Iterable, Iterator, NamedTuple

import numpy as np

from beam_pipelines.elements.dead_letters import DeadLetter, to_json_lines
from beam_pipelines.elements.references import PIECE_REFERENCES, References, unpack_pieces
from beam_pipelines.errors import RunError
from beam_pipelines.storage.spool import SpoolReader, own_spool, read_whole

# References of a run, unless the listing ends before; and their bytes, which bound the memory that it takes to sort them.
RUN_REFERENCES = 1 << 19
RUN_BYTES = 96 << 20


class SpoolStretch(NamedTuple):
    """Bytes that lie together in a spool file, such as pieces of references: see `References.pieces`.

    Attributes:
        spool: The number of the spool file.
        offset: The offset of the first byte in the spool file.
        num_bytes: The number of bytes.
    """

    spool: int
    offset: int
    num_bytes: int


class Run(NamedTuple):
    """References in the order of their shuffle keys, of all splits together.

    Attributes:
        spool: The number of the spool file that holds the references, and nothing else.
        num_references: The number of references.
        orders: The key at which each piece begins, as bytes of uint64 [num_pieces].
        offsets: The offset at which each piece begins, and the end, as bytes of uint64 [num_pieces + 1].
    """

    spool: int
    num_references: int
    orders: bytes
    offsets: bytes

    def smallest(self, num: int) -> SpoolStretch:
        """The pieces that hold the first `num` references."""
        offsets = np.frombuffer(self.offsets, np.uint64)
        last = min(-(-num // PIECE_REFERENCES), len(offsets) - 1)
        return SpoolStretch(self.spool, 0, int(offsets[last]))

    def pieces(self) -> Iterator[tuple[int, int, SpoolStretch]]:
        """For each piece the place of its first reference, how many there are, and where it lies."""
        offsets = np.frombuffer(self.offsets, np.uint64).tolist()
        for number, (offset, end) in enumerate(zip(offsets, offsets[1:])):
            first = number * PIECE_REFERENCES
            yield first, min(PIECE_REFERENCES, self.num_references - first), SpoolStretch(self.spool, offset, end - offset)

    def cut(self, bounds: np.ndarray) -> Iterator[tuple[int, SpoolStretch]]:
        """(block, the pieces that may hold references of it), by the key at which each block begins, uint64 [num_blocks]."""
        orders, offsets = np.frombuffer(self.orders, np.uint64), np.frombuffer(self.offsets, np.uint64)
        firsts = np.maximum(np.searchsorted(orders, bounds, side="left") - 1, 0)
        lasts = np.append(np.searchsorted(orders, bounds[1:], side="left"), len(orders))
        for block, (first, last) in enumerate(zip(firsts.tolist(), lasts.tolist())):
            if first < last:
                yield block, SpoolStretch(self.spool, int(offsets[first]), int(offsets[last] - offsets[first]))


def write_run(batches: list[References], spool_directory: str) -> Run:
    """Sorts references that were listed, and spools them."""
    references = References.concatenate(batches)
    orders = references.rows["order"]
    if (orders[1:] < orders[:-1]).any():  # those of a run that is written again are in order
        references = references.take(np.argsort(orders, kind="stable"))
    offsets = [0]
    with own_spool(spool_directory) as spool:
        for piece in references.pieces():
            offsets.append(spool.append(piece) + len(piece))
    orders = np.ascontiguousarray(references.rows["order"][::PIECE_REFERENCES])
    return Run(spool.spool, len(references), orders.tobytes(), np.array(offsets, np.uint64).tobytes())


def write_pieces(references: References, ranges: Iterable[tuple[int, int]], spool_directory: str) -> list[SpoolStretch]:
    """Spools references, those of each range for themselves."""
    stretches = []
    with own_spool(spool_directory) as spool:
        for start, stop in ranges:
            data = b"".join(references.pieces(start, stop))
            stretches.append(SpoolStretch(spool.spool, spool.append(data), len(data)))
    return stretches


def read_stretch(stretch: SpoolStretch, spool: SpoolReader) -> bytes:
    """Reads bytes from the spool. In an object store there is nothing where nothing was written.

    Raises:
        RunError: The bytes are not there, or not whole.
    """
    return read_whole(spool, *stretch) if stretch.num_bytes else b""


def read_references(stretch: SpoolStretch, spool: SpoolReader) -> References:
    """Reads references from the spool.

    Raises:
        RunError: The references are not there, or not whole.
    """
    try:
        return unpack_pieces(read_stretch(stretch, spool))
    except ValueError as error:
        raise RunError(f"the spool is damaged at {stretch.offset}: {error}") from error


def write_dead_letters(dead_letters: list[DeadLetter], spool_directory: str) -> SpoolStretch:
    """Spools a sorted run of dead letters, a line each."""
    data = to_json_lines(dead_letters).encode()
    with own_spool(spool_directory) as spool:
        return SpoolStretch(spool.spool, spool.append(data), len(data))
