"""Finds pairs of similar 64-bit image hashes without comparing all pairs. One image may be flipped.

The algorithm is multi-index hashing (Norouzi, Punjani, Fleet, https://doi.org/10.1109/TPAMI.2013.231). Hashes are
divided into three bands of bits. If two hashes differ in at most 8 bits, they differ in at most two bits of at least
one band. Therefore, the search is repeated for each band, and compares only hashes that differ in at most two bits of
the band. Each pair is found once. To find flipped images, each band is normalized to a value that is equal for an image
and its mirror image.
"""

import itertools
from typing import Callable, Iterable, Iterator, NamedTuple

import numpy as np

MAX_DISTANCE = 8

# The upper half of the bits, which a horizontal flip of the image inverts.
FLIPPED_BITS = 0xFFFFFFFF_00000000

_BAND_BITS = 21
_BANDS = (1, 22, 43)  # The first bit of each band. Bit 0 is equal in all hashes.
# For few hashes, fewer bits and smaller tables suffice. With 14 or more bits, two changed bits never look like a flip.
_MIN_BITS, _SPARE_BITS = 14, 3

# The number of hashes in a part of a search, and in a lookup block, which fits into the processor's cache.
_PART_HASHES = 1 << 21
_BLOCK_HASHES = 1 << 16
_FEW_HASHES = 1 << 12


class SearchPart(NamedTuple):
    """A part of the search for similar hashes, for one process.

    Attributes:
        band: The index of the band.
        part: The index of the part. It contains the hashes whose band value modulo `num_parts` equals this index.
        num_parts: The number of parts.
        bits: The number of bits of the band to use, starting at the highest bit.
    """

    band: int
    part: int
    num_parts: int
    bits: int


class Band(NamedTuple):
    """Hashes, sorted by a band.

    Attributes:
        values: The band's value in each hash, in ascending order, int64 [num_hashes].
        indices: The original index of each hash, in ascending order for equal values, int64 [num_hashes].
        flip: A bit mask of the bits in the band whose values change if the image is flipped.
        is_flipped: Whether each hash is replaced by the hash of the flipped image, in which the highest bit is not set,
            bool [num_hashes].
    """

    values: np.ndarray
    indices: np.ndarray
    flip: int
    is_flipped: np.ndarray


def search_parts(num_hashes: int) -> list[SearchPart]:
    """Divides a search among hashes into parts for several processes. Each pair is found by exactly one part."""
    num_parts = -(-num_hashes // _PART_HASHES) or 1
    bits = min(_BAND_BITS, max(_MIN_BITS, num_hashes.bit_length() + _SPARE_BITS))
    return [SearchPart(band, part, num_parts, bits) for band in range(len(_BANDS)) for part in range(num_parts)]


def order_by_band(hashes: np.ndarray, part: SearchPart) -> Band:
    """Sorts hashes, uint64 [num_hashes], by the band of `part`. There must be fewer than 2**32 hashes."""
    first = _BANDS[part.band] + _BAND_BITS - part.bits
    flip = FLIPPED_BITS >> first & (1 << part.bits) - 1
    values = (hashes >> np.uint64(first)).astype(np.uint32) & np.uint32((1 << part.bits) - 1)
    is_flipped = (values >> np.uint32(part.bits - 1)).astype(bool) & bool(flip)
    values ^= is_flipped * np.uint32(flip)
    # Values and indices that are packed into one number sort many times as fast as an argsort.
    ordered = np.sort(values.astype(np.uint64) << np.uint64(32) | np.arange(len(hashes), dtype=np.uint64))
    indices = (ordered & np.uint64(0xFFFFFFFF)).astype(np.int64)
    return Band((ordered >> np.uint64(32)).astype(np.int64), indices, flip, is_flipped[indices])


def near_pairs(hashes: np.ndarray, distance: int, part: SearchPart) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the pairs of similar hashes that a part of the search finds.

    Args:
        hashes: Fewer than 2**32 hashes, uint64 [num_hashes].
        distance: The maximum number of differing bits, at most `MAX_DISTANCE`.
        part: The part of the search, from `search_parts(num_hashes)`.

    Yields:
        Blocks of pairs, as two arrays of indices, int64 [num_pairs]. The first array contains the smaller index of each
        pair. Each pair is yielded once, by one part only.

    Raises:
        ValueError: The distance is negative or too large.
    """
    if not 0 <= distance <= MAX_DISTANCE:
        raise ValueError(f"distance={distance} is not from 0 to {MAX_DISTANCE}")
    band = order_by_band(hashes, part)
    for in_band, others_in_band in _in_blocks(_find_candidates(band, hashes[band.indices], distance, part)):
        ones, others = band.indices[in_band], band.indices[others_in_band]
        differing = hashes[ones] ^ hashes[others]
        keep = (hash_distance(differing) <= distance) & (_first_band(differing) == part.band)
        if keep.any():
            ones, others = ones[keep], others[keep]
            yield np.minimum(ones, others), np.maximum(ones, others)


def _in_blocks(pairs: Iterable[tuple[np.ndarray, np.ndarray]]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Concatenates blocks of pairs into larger blocks."""
    waiting, num = [], 0
    for pair in pairs:
        waiting.append(pair)
        num += len(pair[0])
        if num >= _BLOCK_HASHES:
            yield tuple(map(np.concatenate, zip(*waiting)))
            waiting, num = [], 0
    if waiting:
        yield tuple(map(np.concatenate, zip(*waiting)))


def hash_distance(differing: np.ndarray) -> np.ndarray:
    """Returns the number of differing bits of two hashes, uint8 [...]. Either image may be flipped.

    Args:
        differing: The exclusive or of the two hashes, uint64 [...].
    """
    counts = np.bitwise_count(differing.astype("<u8", copy=False).view("<u4")).reshape(*differing.shape, 2)
    return counts[..., 0] + np.minimum(counts[..., 1], 32 - counts[..., 1])


def _find_candidates(band: Band, hashes: np.ndarray, distance: int, part: SearchPart) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the indices of hashes that may be similar. `hashes` must be sorted by the band."""
    keys, flip_key, may_be_near = _make_keys(band, hashes, distance)
    values = band.values
    starts = np.zeros((1 << part.bits) + 1, np.intp)
    np.cumsum(np.bincount(values, minlength=1 << part.bits), out=starts[1:])
    is_there = starts[1:] > starts[:-1]
    begun = np.flatnonzero(values % part.num_parts == part.part) if part.num_parts > 1 else np.arange(len(values))
    for first in range(0, len(begun), _BLOCK_HASHES):
        block = begun[first : first + _BLOCK_HASHES]
        yield from _compare(block, block + 1, starts.take(values[block] + 1), keys[block], keys, may_be_near)
        for is_flipped, ones, others in _find_existing_values(block, values, is_there, part.bits, band.flip):
            keys_of_ones = keys.take(ones)
            yield from _compare(
                ones,
                starts.take(others),
                starts.take(others + 1),
                keys_of_ones ^ flip_key if is_flipped else keys_of_ones,
                keys,
                may_be_near,
            )


def _find_existing_values(
    block: np.ndarray, values: np.ndarray, is_there: np.ndarray, bits: int, flip: int
) -> Iterator[tuple[bool, np.ndarray, np.ndarray]]:
    """Finds pairs of hashes that differ in one or two bits of the band.

    Yields:
        Whether one of the two images is flipped, the indices of hashes in the block, and the values of the band in
        their similar hashes.
    """
    waiting: dict[bool, list[tuple[np.ndarray, np.ndarray]]] = {False: [], True: []}
    num = {False: 0, True: 0}
    for highest, masks in _masks(bits, flip):
        # In the greater of two values, the highest differing bit is set.
        ones = block[values[block] >> highest & 1 == 0]
        of_ones = values[ones]
        others, is_met = np.empty_like(of_ones), np.empty(len(ones), bool)
        for mask, is_flipped in masks:
            np.bitwise_xor(of_ones, mask, out=others)
            met = np.flatnonzero(is_there.take(others, out=is_met, mode="clip"))
            waiting[is_flipped].append((ones.take(met), others.take(met)))
            num[is_flipped] += len(met)
            if num[is_flipped] >= _BLOCK_HASHES:
                yield is_flipped, *map(np.concatenate, zip(*waiting[is_flipped]))
                waiting[is_flipped], num[is_flipped] = [], 0
    for is_flipped, rest in waiting.items():
        if rest:
            yield is_flipped, *map(np.concatenate, zip(*rest))


def _masks(bits: int, flip: int) -> Iterator[tuple[int, list[tuple[int, bool]]]]:
    """Yields the differences that the bands of two similar hashes can have, as masks of one or two bits, grouped by the
    highest bit. Each mask has a flag that tells whether one of the two images is flipped."""
    flips = [1 << bit for bit in range(bits)]
    flips[-1] ^= flip  # The highest bit is always 0, so flipping it stands for a flipped value.
    of_highest: dict[int, list[tuple[int, bool]]] = {}
    for number, flip in enumerate(flips):
        for mask in (flip, *(flip ^ other for other in flips[:number])):
            of_highest.setdefault(mask.bit_length() - 1, []).append((mask, bool(flip) and number == bits - 1))
    yield from of_highest.items()


def _make_keys(band: Band, hashes: np.ndarray, distance: int) -> tuple[np.ndarray, np.unsignedinteger, Callable[[np.ndarray], np.ndarray]]:
    """Returns a comparison key for each hash, the bits of the key that a flip of the image inverts, and a function that
    decides from the XOR of two keys whether the hashes may be similar."""
    if not band.flip:  # The band does not show flips. In the upper half, either few bits or nearly all bits differ.
        step = np.uint8(distance)
        return (
            (hashes >> np.uint64(32)).astype(np.uint32),
            np.uint32(0),
            lambda differing: (np.bitwise_count(differing) + step & 31) <= 2 * step,
        )
    return (
        hashes ^ band.is_flipped * np.uint64(FLIPPED_BITS),
        np.uint64(FLIPPED_BITS),
        lambda differing: np.bitwise_count(differing) <= distance,
    )


def _compare(
    ones: np.ndarray,
    others: np.ndarray,
    ends: np.ndarray,
    keys_of_ones: np.ndarray,
    keys: np.ndarray,
    may_be_near: Callable[[np.ndarray], np.ndarray],
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Compares each hash in `ones` with the hashes that have indices from `others` to `ends - 1`. Yields pairs that may
    be similar."""
    while len(ones) > _FEW_HASHES:  # Compare all hashes with the first hash of their ranges, then with the second one, and so on.
        is_resumable = others < ends
        if np.count_nonzero(is_resumable) < 0.75 * len(is_resumable):
            left = np.flatnonzero(is_resumable)
            ones, others, ends, keys_of_ones, is_resumable = (
                ones.take(left),
                others.take(left),
                ends.take(left),
                keys_of_ones.take(left),
                True,
            )
        is_near = may_be_near(keys.take(others, mode="clip") ^ keys_of_ones) & is_resumable
        if is_near.any():
            yield ones[is_near], others[is_near]
        others = others + 1
    behind = np.cumsum(np.maximum(ends - others, 0))  # The remaining pairs.
    firsts = np.flatnonzero(np.diff(behind // _BLOCK_HASHES, prepend=-1)).tolist()
    for first, stop in itertools.pairwise([*firsts, len(behind)]):
        nums = np.diff(behind[first:stop], prepend=behind[first - 1] if first else 0)
        pairs = np.repeat(np.arange(first, stop), nums)
        met = np.arange(len(pairs)) + np.repeat(others[first:stop] + nums - np.cumsum(nums), nums)
        is_near = may_be_near(keys.take(met) ^ keys_of_ones.take(pairs))
        if is_near.any():
            yield ones[pairs[is_near]], met[is_near]


def _first_band(differing: np.ndarray) -> np.ndarray:
    """Returns the first band in which each pair of hashes differs in at most two bits, given the XOR of the hashes."""
    is_flipped = np.bitwise_count(differing >> np.uint64(32)) > 16
    differing = differing ^ is_flipped * np.uint64(FLIPPED_BITS)
    bands = np.full(len(differing), len(_BANDS), np.int8)
    for band in reversed(range(len(_BANDS))):
        in_band = differing >> np.uint64(_BANDS[band]) & np.uint64((1 << _BAND_BITS) - 1)
        bands[np.bitwise_count(in_band) <= MAX_DISTANCE // len(_BANDS)] = band
    return bands
