"""Near hashes: exactly those pairs that a look at all of them finds, each once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_pipelines.images import near_hashes
from beam_pipelines.images.near_hashes import SearchPart, band_entries, near_pairs, search_parts


def all_pairs(hashes: np.ndarray, others: np.ndarray, distance: int) -> set[tuple[int, int]]:
    near = np.bitwise_count(hashes[:, None] ^ others) <= distance
    return {(one, other) for one, other in zip(*np.nonzero(near)) if others is not hashes or one < other}


def found_pairs(hashes: np.ndarray, others: np.ndarray, distance: int) -> list[tuple[int, int]]:
    found = []
    for part in search_parts(len(hashes) + len(others)):
        left = band_entries(hashes, part)
        right = left if others is hashes else band_entries(others, part)
        found += [pair for one, other in near_pairs(left, right, distance) for pair in zip(one.tolist(), other.tolist())]
    return found


@pytest.mark.slow(1)
@given(st.integers(0, 2**32), st.integers(0, 8), st.integers(2, 60), st.sampled_from([1 << 24, 64]))
def test_all_near_pairs_are_found_and_each_once(seed: int, distance: int, num: int, part_entries: int) -> None:
    random = np.random.default_rng(seed)
    centres = random.integers(0, 2**64, 3, dtype=np.uint64)
    flips = np.array([sum(1 << int(bit) for bit in random.choice(64, random.integers(0, 12), replace=False)) for _ in range(num)], np.uint64)
    hashes = np.unique(centres[random.integers(0, 3, num)] ^ flips)
    old, near_hashes._PART_ENTRIES = near_hashes._PART_ENTRIES, part_entries
    try:
        found = found_pairs(hashes, hashes, distance)
        assert len(found) == len(set(found)) and set(found) == all_pairs(hashes, hashes, distance)
        others = hashes[::2].copy()
        found = found_pairs(hashes, others, distance)
        assert len(found) == len(set(found)) and set(found) == all_pairs(hashes, others, distance)
    finally:
        near_hashes._PART_ENTRIES = old


def test_a_distance_that_would_miss_pairs_is_refused() -> None:
    entries = band_entries(np.zeros(1, np.uint64), SearchPart(0, 0, 1))
    with pytest.raises(ValueError, match="0 to 8"):
        list(near_pairs(entries, entries, 9))
