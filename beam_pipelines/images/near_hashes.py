"""Pairs of 64-bit hashes of which few bits differ, as they are or one of them mirrored, without a look at all pairs.

Multi-index hashing (Norouzi, Punjani, Fleet, https://doi.org/10.1109/TPAMI.2013.231): of two hashes that differ in at most 8 bits, one of
three bands differs in at most two. Two such bands meet where each of them has flipped at most one bit. So each band is entered with none
and with one of its bits flipped; what meets is compared, and each pair comes once. A band and what it would be mirrored are entered
as one, so that a pair of which one is mirrored meets there too.
"""

import functools
from typing import Callable, Iterator, NamedTuple

import numpy as np

MAX_DISTANCE = 8

# The bits that are the opposite ones in a mirrored image: the upper half.
MIRROR = 0xFFFFFFFF_00000000

_BAND_BITS = 21
_BANDS = (1, 22, 43)  # the first bit of each; that before them is the same in all hashes
_VALUES = (1 << _BAND_BITS) - 1
# Entries of a band that are held together, about; and pairs that are compared at a time, as much as a processor's cache holds.
_PART_ENTRIES = 1 << 23
_BLOCK_PAIRS = 1 << 16
# Of an entry as one number: a value of 21 bits stands before these.
_FLIP_BITS, _PLACE_BITS = 5, 32


class SearchPart(NamedTuple):
    """A part of a search, which is as much as is held in memory at a time.

    Attributes:
        band: Its place among the bands.
        part: Which of the values of that band: those whose lowest bits are this.
        num_parts: A power of two, as many as these bits tell apart.
    """

    band: int
    part: int
    num_parts: int


def search_parts(num_hashes: int) -> list[SearchPart]:
    """The parts of a search among so many hashes. Each pair is found in one of them."""
    num_parts = 1 << (num_hashes * (_BAND_BITS + 1) // _PART_ENTRIES).bit_length()
    return [SearchPart(band, part, num_parts) for band in range(len(_BANDS)) for part in range(num_parts)]


def near_pairs(hashes: np.ndarray, distance: int, part: SearchPart) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Finds what is near, in one part of a search.

    Args:
        hashes: uint64 [num_hashes], fewer than 2**32.
        distance: Bits that may differ, `MAX_DISTANCE` at most.
        part: One of `search_parts(num_hashes)`.

    Yields:
        Places in the hashes of the one and of the other, the smaller first, int64 [k] each, of pairs that are near; no pair comes twice, in
        whatever part.

    Raises:
        ValueError: The distance is another one.
    """
    if not 0 <= distance <= MAX_DISTANCE:
        raise ValueError(f"distance={distance}; expected 0 to {MAX_DISTANCE}")
    entries = _make_entries(hashes, part)
    places = entries & np.uint64((1 << _PLACE_BITS) - 1)
    flips = (entries >> np.uint64(_PLACE_BITS) & np.uint64((1 << _FLIP_BITS) - 1)).astype(np.int8)
    keys, may_be_near = _make_keys(hashes[places], flips, distance, part.band)
    for one, other in _compare(entries >> np.uint64(_PLACE_BITS + _FLIP_BITS), keys, may_be_near):
        # Two that differ in one bit or in two meet where either flips, and equal ones in each entry; only one of these ways counts.
        keep = (places[one] < places[other]) & ((flips[one] == 0) | (flips[one] < flips[other]))
        one, other = places[one[keep]], places[other[keep]]
        differing = hashes[one] ^ hashes[other]
        keep = (hash_distance(differing) <= distance) & (_first_band(differing) == part.band)
        if keep.any():
            yield one[keep].astype(np.int64), other[keep].astype(np.int64)


def hash_distance(differing: np.ndarray) -> np.ndarray:
    """Bits that two hashes differ in, as they are or one of them mirrored, from their exclusive or, uint64 [...]: uint8 [...]."""
    counts = np.bitwise_count(differing.astype("<u8", copy=False).view("<u4")).reshape(*differing.shape, 2)
    return counts[..., 0] + np.minimum(counts[..., 1], 32 - counts[..., 1])


def _make_entries(hashes: np.ndarray, part: SearchPart) -> np.ndarray:
    """uint64 [num_entries], ascending: values of a band, the bit that is flipped, from 1 (0: none), and the place of the hash."""
    rest = part.num_parts - 1
    mirror = MIRROR >> _BANDS[part.band] & _VALUES
    # Of a band and the same mirrored that one is entered whose highest bit is not set. To flip that bit too mirrors the others.
    values = (hashes >> np.uint64(_BANDS[part.band])).astype(np.uint32) & np.uint32(_VALUES)
    if mirror:
        values ^= (values >> np.uint32(_BAND_BITS - 1)) * np.uint32(mirror)
    patterns = [0, *(1 << bit for bit in range(_BAND_BITS))]
    if mirror:
        patterns[-1] ^= mirror
    rests = (values & np.uint32(rest)).astype(np.uint16)

    @functools.cache
    def with_rest(wanted: int) -> np.ndarray:
        return np.flatnonzero(rests == wanted).astype(np.uint64)

    found = []
    for flip, pattern in enumerate(patterns):
        places = with_rest((part.part ^ pattern) & rest)
        flipped = (values[places] ^ np.uint32(pattern)).astype(np.uint64)
        found.append(flipped << np.uint64(_PLACE_BITS + _FLIP_BITS) | np.uint64(flip << _PLACE_BITS) | places)
    return np.sort(np.concatenate(found))  # one number each: many times as fast as an order of them


def _make_keys(hashes: np.ndarray, flips: np.ndarray, distance: int, band: int) -> tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]:
    """What is compared of entries that meet, and what says of their exclusive or whether they may be near."""
    if not MIRROR >> _BANDS[band] & _VALUES:  # nobody knows which are mirrored: in the upper half few bits differ, or nearly all
        step = np.uint8(distance)
        return (hashes >> np.uint64(32)).astype(np.uint32), lambda differing: (np.bitwise_count(differing) + step) % 32 <= 2 * step
    is_mirrored = (hashes >> np.uint64(_BANDS[band] + _BAND_BITS - 1) & np.uint64(1)) ^ (flips == _BAND_BITS)
    return hashes ^ is_mirrored * np.uint64(MIRROR), lambda differing: np.bitwise_count(differing) <= distance


def _compare(
    values: np.ndarray, keys: np.ndarray, may_be_near: Callable[[np.ndarray], np.ndarray]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Places of all pairs that have one value and may be near, some thousands of them at a time, from values in ascending order."""
    starts = np.flatnonzero(np.diff(values, prepend=~values[:1]))
    sizes = np.diff(np.append(starts, len(values)))
    for size in (np.flatnonzero(np.bincount(sizes, minlength=2)[2:]) + 2).tolist():
        # Groups of one size lie side by side, a column each.
        of_size = starts[sizes == size]
        step = max(1, _BLOCK_PAIRS // size)
        for first in range(0, len(of_size), step):
            block = of_size[first : first + step]
            columns = keys[block + np.arange(size)[:, None]]
            for row in range(size - 1):
                is_candidate = may_be_near(columns[row] ^ columns[row + 1 :])
                if is_candidate.any():
                    below, group = np.nonzero(is_candidate)
                    yield block[group] + row, block[group] + row + 1 + below


def _first_band(differing: np.ndarray) -> np.ndarray:
    """The first band in which so few bits differ that the pair, which is near, meets there."""
    is_mirrored = np.bitwise_count(differing >> np.uint64(32)) > 16
    differing = differing ^ is_mirrored * np.uint64(MIRROR)
    found = np.full(len(differing), len(_BANDS), np.int8)
    for band in reversed(range(len(_BANDS))):
        in_band = differing >> np.uint64(_BANDS[band]) & np.uint64(_VALUES)
        found[np.bitwise_count(in_band) <= MAX_DISTANCE // len(_BANDS)] = band
    return found
