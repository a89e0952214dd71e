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
    """Pieces that lie one after the other: see `References.pieces`.

    Attributes:
        spool: The spool file.
        offset: Of the first byte.
        num_bytes: Of all of them.
    """

    spool: int
    offset: int
    num_bytes: int


class Run(NamedTuple):
    """References in the order of their shuffle keys, of all splits together.

    Attributes:
        spool: The spool file that they are.
        num_references: How many.
        orders: uint64 [num_pieces]: the key at which each piece begins.
        offsets: uint64 [num_pieces + 1]: where each piece begins, and the end.
    """

    spool: int
    num_references: int
    orders: bytes
    offsets: bytes

    def smallest(self, num: int) -> SpoolStretch:
        """The pieces with its first references."""
        offsets = np.frombuffer(self.offsets, np.uint64)
        last = min(-(-num // PIECE_REFERENCES), len(offsets) - 1)
        return SpoolStretch(self.spool, 0, int(offsets[last]))

    def pieces(self) -> Iterator[tuple[int, int, SpoolStretch]]:
        """Each piece: the place of its first reference, how many there are, and where it lies."""
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
    """Sorts what was listed, and spools it."""
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
    """RunError where it is not there, or not whole. In an object store there is nothing where nothing was written."""
    return read_whole(spool, *stretch) if stretch.num_bytes else b""


def read_references(stretch: SpoolStretch, spool: SpoolReader) -> References:
    """RunError where they are not there, or not whole."""
    try:
        return unpack_pieces(read_stretch(stretch, spool))
    except ValueError as error:
        raise RunError(f"the spool is damaged at {stretch.offset}: {error}") from error


def write_dead_letters(dead_letters: list[DeadLetter], spool_directory: str) -> SpoolStretch:
    """A sorted run of them, a line each."""
    data = to_json_lines(dead_letters).encode()
    with own_spool(spool_directory) as spool:
        return SpoolStretch(spool.spool, spool.append(data), len(data))
