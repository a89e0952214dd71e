"""Pairs of 64-bit hashes of which few bits differ, without a look at all pairs.

Multi-index hashing (Norouzi, Punjani, Fleet, https://doi.org/10.1109/TPAMI.2013.231): of two hashes that differ in at most `distance`
bits, one of `m` bands differs in at most `distance // m`. Two bands that differ in at most two bits meet where each of them has flipped at most
one. So each band is entered with none and with one of its bits flipped; what meets is compared, and each pair comes once.
"""

from typing import Iterator, NamedTuple

import numpy as np

MAX_DISTANCE = 8

_NUM_BANDS = 3
_BANDS = ((0, 22), (22, 21), (43, 21))  # (first bit, bits)
# Entries of a band that are held together, about; and pairs of them.
_PART_ENTRIES = 1 << 23
_PART_PAIRS = 1 << 21
# Of an entry as one number: a value of 22 bits stands before these.
_FLIP_BITS, _PLACE_BITS = 5, 32


class SearchPart(NamedTuple):
    """A part of a search, which is as much as is held in memory at a time.

    Attributes:
        band: Its place among the bands.
        part: Which of the values of that band: those that leave this rest.
        num_parts: Divided by this.
    """

    band: int
    part: int
    num_parts: int


def search_parts(num_hashes: int) -> list[SearchPart]:
    """The parts of a search among so many hashes, of both arguments of `near_pairs` together. Each pair is found in one of them."""
    found = []
    for band, (_, num_bits) in enumerate(_BANDS):
        num_parts = max(1, num_hashes * (num_bits + 1) // _PART_ENTRIES)
        found += [SearchPart(band, part, num_parts) for part in range(num_parts)]
    return found


class Entries(NamedTuple):
    """Values of a band of some hashes, each also with one bit flipped, as far as they are in one part of a search; in ascending order.

    Attributes:
        hashes: uint64 [num_hashes]: those that they are of.
        part: Which part.
        values: uint32 [n].
        places: int64 [n], whose they are.
        flips: int8 [n], the bit that was flipped, from 1; 0: none.
    """

    hashes: np.ndarray
    part: SearchPart
    values: np.ndarray
    places: np.ndarray
    flips: np.ndarray


def band_entries(hashes: np.ndarray, part: SearchPart) -> Entries:
    """Prepares hashes, uint64 [num_hashes], fewer than 2**32, for one part of a search."""
    first, num_bits = _BANDS[part.band]
    band = (hashes >> np.uint64(first)) & np.uint64((1 << num_bits) - 1)
    packed = [np.zeros(0, np.uint64)]
    for flip in range(num_bits + 1):
        flipped = band ^ np.uint64(1 << flip >> 1)
        places = np.arange(len(hashes), dtype=np.uint64)
        if part.num_parts > 1:
            places = np.flatnonzero(flipped.astype(np.uint32) % np.uint32(part.num_parts) == part.part).astype(np.uint64)
            flipped = flipped[places]
        packed.append(flipped << np.uint64(_PLACE_BITS + _FLIP_BITS) | np.uint64(flip << _PLACE_BITS) | places)
    entries = np.sort(np.concatenate(packed))  # one number each: many times as fast as an order of them
    places = (entries & np.uint64((1 << _PLACE_BITS) - 1)).astype(np.int64)
    flips = (entries >> np.uint64(_PLACE_BITS) & np.uint64((1 << _FLIP_BITS) - 1)).astype(np.int8)
    return Entries(hashes, part, (entries >> np.uint64(_PLACE_BITS + _FLIP_BITS)).astype(np.uint32), places, flips)


def near_pairs(left: Entries, right: Entries, distance: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Finds what is near, in one part of a search.

    Args:
        left: Of some hashes.
        right: Of others, in the same part; may be `left` itself: then a pair comes once, the smaller place first.
        distance: Bits that may differ, `MAX_DISTANCE` at most.

    Yields:
        Places in the hashes of the one and of the other, int64 [k] each, of pairs that are near; no pair comes twice, in whatever part.

    Raises:
        ValueError: The distance is another one.
    """
    if not 0 <= distance <= MAX_DISTANCE:
        raise ValueError(f"distance={distance}; expected 0 to {MAX_DISTANCE}")
    for one, other in _meet(left, right):
        if left is right:
            keep = one < other
            one, other = one[keep], other[keep]
        differing = left.hashes[one] ^ right.hashes[other]
        keep = np.bitwise_count(differing) <= distance
        one, other = one[keep], other[keep]
        keep = _first_band(differing[keep]) == left.part.band
        if keep.any():
            yield one[keep], other[keep]


def _meet(left: Entries, right: Entries) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Places of all that have one value, some millions of pairs at a time.

    Two that differ in one bit or in two meet where either flips, and equal ones in each entry; only one of these ways counts.
    """
    starts = np.flatnonzero(np.diff(left.values, prepend=np.uint32(0xFFFFFFFF)))  # no band has such a value
    values, sizes = left.values[starts], np.diff(np.append(starts, len(left.values)))
    begins = np.searchsorted(right.values, values, "left")
    counts = np.repeat(np.searchsorted(right.values, values, "right") - begins, sizes)
    begins = np.repeat(begins, sizes)
    totals = np.cumsum(counts)
    start = 0
    while start < len(counts):
        behind = totals[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(totals, behind + _PART_PAIRS, "right")))
        num = counts[start:stop]
        one = np.repeat(np.arange(start, stop), num)
        other = np.arange(len(one)) + np.repeat(begins[start:stop] - np.cumsum(num) + num, num)
        flips = left.flips[one]
        counts_here = (flips == 0) | (flips < right.flips[other])
        yield left.places[one[counts_here]], right.places[other[counts_here]]
        start = stop


def _first_band(differing: np.ndarray) -> np.ndarray:
    """The first band in which so few bits differ that the pair meets there."""
    found = np.full(len(differing), _NUM_BANDS, np.int8)
    for band in reversed(range(_NUM_BANDS)):
        first, num_bits = _BANDS[band]
        in_band = (differing >> np.uint64(first)) & np.uint64((1 << num_bits) - 1)
        found[np.bitwise_count(in_band) <= MAX_DISTANCE // _NUM_BANDS] = band
    return found
