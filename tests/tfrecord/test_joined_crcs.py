"""Tests that the CRC of joined bytes can be computed from the CRCs of the parts."""

import google_crc32c
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipelines.tfrecord.joined_crcs import inner_crcs, joined_crc, moved

_PARTS = st.lists(st.binary(max_size=300), max_size=8)


def _crcs(parts: list[bytes]) -> np.ndarray:
    return np.array([google_crc32c.value(part) for part in parts], np.uint32)


def _sizes(parts: list[bytes]) -> np.ndarray:
    return np.array([len(part) for part in parts], np.int64)


@settings(deadline=None)
@given(_PARTS)
def test_joined_crc_of_consecutive_parts(parts: list[bytes]) -> None:
    assert joined_crc(_crcs(parts), _sizes(parts)) == google_crc32c.value(b"".join(parts))


@settings(deadline=None)
@given(st.lists(st.tuples(*[st.binary(max_size=300)] * 3), max_size=8))
def test_inner_crcs_of_chunks(chunks: list[tuple[bytes, bytes, bytes]]) -> None:
    before, inner, behind = (list(parts) for parts in zip(*chunks)) if chunks else ([], [], [])
    actual = inner_crcs(_crcs([b"".join(chunk) for chunk in chunks]), _crcs(before), _sizes(inner), _crcs(behind), _sizes(behind))
    assert actual.tolist() == _crcs(inner).tolist()


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(-(2**50), 2**50)), max_size=8), st.integers(-(2**50), 2**50))
def test_moved_is_invertible_and_additive(moves: list[tuple[int, int]], num_bytes: int) -> None:
    crcs, steps = np.array([crc for crc, _ in moves], np.uint32), np.array([step for _, step in moves], np.int64)
    existing = moved(crcs, steps)
    assert moved(existing, -steps).tolist() == crcs.tolist()
    assert moved(existing, num_bytes).tolist() == moved(crcs, steps + num_bytes).tolist()


def test_joined_crc_of_megabytes() -> None:
    parts = [np.random.default_rng(seed).bytes(size) for seed, size in enumerate((5_000_011, 0, 1, 3_333_333))]
    assert joined_crc(_crcs(parts), _sizes(parts)) == google_crc32c.value(b"".join(parts))
