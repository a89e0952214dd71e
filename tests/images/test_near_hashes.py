"""Tests that the fast search for near-duplicate hashes finds the same pairs as an exhaustive search."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_pipelines.images import near_hashes
from beam_pipelines.images.visual_groups import _stays_near, find_edges, join_edges
from beam_pipelines.images.near_hashes import FLIPPED_BITS, SearchPart, near_pairs, search_parts


def find_all_pairs(hashes: list[int], distance: int) -> set[tuple[int, int]]:
    differing = {(item, other): hashes[item] ^ hashes[other] for other in range(len(hashes)) for item in range(other)}
    return {pair for pair, bits in differing.items() if min(bits.bit_count(), (bits ^ FLIPPED_BITS).bit_count()) <= distance}


def find_pairs(hashes: np.ndarray, distance: int) -> list[tuple[int, int]]:
    actual = [pairs for part in search_parts(len(hashes)) for pairs in near_pairs(hashes, distance, part)]
    return [pair for item, other in actual for pair in zip(item.tolist(), other.tolist())]


@pytest.mark.slow(1)
@given(st.integers(0, 2**32), st.integers(0, 8), st.integers(2, 60), st.sampled_from([1 << 24, 7]))
def test_all_near_pairs_are_found_once(seed: int, distance: int, num: int, part_hashes: int) -> None:
    random = np.random.default_rng(seed)
    centres = random.integers(0, 2**64, 3, dtype=np.uint64)
    flips = np.array([sum(1 << int(bit) for bit in random.choice(64, random.integers(0, 12), replace=False)) for _ in range(num)], np.uint64)
    flipped = np.where(random.integers(0, 2, num, bool), np.uint64(FLIPPED_BITS), np.uint64(0))
    hashes = (centres[random.integers(0, 3, num)] ^ flips ^ flipped) & np.uint64(2**64 - 2)
    old = near_hashes._PART_HASHES, near_hashes._BLOCK_HASHES
    near_hashes._PART_HASHES, near_hashes._BLOCK_HASHES = part_hashes, 5 if part_hashes == 7 else old[1]
    try:
        actual = find_pairs(hashes, distance)
    finally:
        near_hashes._PART_HASHES, near_hashes._BLOCK_HASHES = old
    assert len(actual) == len(set(actual)) and set(actual) == find_all_pairs(hashes.tolist(), distance)


def test_hashes_with_an_equal_first_word_are_compared() -> None:
    """Video frames from a fixed camera have many hashes that start with the same 64 bits."""
    random = np.random.default_rng(0)
    words = np.array([0, 2, 6, FLIPPED_BITS, FLIPPED_BITS | 2, 0x5A5A5A5A5A5A5A5A], np.uint64)
    centres, bits = random.integers(0, 2**64, (2, 3), dtype=np.uint64), random.integers(0, 2, (200, 3, 64), bool) & (random.random((200, 3, 64)) < 0.2)
    fine = centres[random.integers(0, 2, 200)] ^ np.packbits(bits, axis=2, bitorder="little").view("<u8")[..., 0]
    hashes = np.unique(np.column_stack([words[random.integers(0, 6, 200)], fine]), axis=0)
    actual, _ = join_edges(find_edges(hashes, 2, part) for part in search_parts(len(hashes)))
    item, other = np.triu_indices(len(hashes), 1)
    near = find_all_pairs(hashes[:, 0].tolist(), 2)
    stays = _stays_near(hashes[item] ^ hashes[other])
    expected = [pair for pair, keep in zip(zip(item.tolist(), other.tolist()), stays.tolist()) if keep and pair in near]
    assert list(map(tuple, actual.tolist())) == expected and 100 < len(expected) < len(near)


def test_too_large_distance_is_rejected() -> None:
    with pytest.raises(ValueError, match="9.* 0 to 8"):
        list(near_pairs(np.zeros(1, np.uint64), 9, SearchPart(0, 0, 1, 14)))
