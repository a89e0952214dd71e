"""Perceptual hashes: near for what was recompressed, resized, recoloured, cut a little or mirrored; far for other pictures."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_pipelines.errors import Refusal
from beam_pipelines.images.perceptual_hash import perceptual_hash


@given(st.integers(0, 2**32), st.integers(1, 70), st.integers(1, 70), st.sampled_from([None, 1, 3, 4]))
def test_a_mirrored_image_has_the_mirrored_hash(seed: int, height: int, width: int, channels: int | None) -> None:
    shape = (height, width) if channels is None else (height, width, channels)
    pixels = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    one, other = perceptual_hash(pixels), perceptual_hash(pixels[:, ::-1])
    assert (one.value, one.mirrored) == (other.mirrored, other.value)


@given(st.integers(0, 2**32), st.sampled_from([2, 3, 5]))
def test_a_larger_copy_has_the_same_hash(seed: int, times: int) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (32, 48, 3), dtype=np.uint8)
    larger = pixels.repeat(times, axis=0).repeat(times, axis=1)
    assert (perceptual_hash(pixels).value ^ perceptual_hash(larger).value).bit_count() <= 2


def test_what_shows_nothing_is_flat_and_what_shows_something_is_not() -> None:
    blank = np.full((50, 40, 3), 250, np.uint8)
    assert perceptual_hash(blank).is_flat and perceptual_hash(np.zeros((9, 9), np.uint8)).is_flat
    blank[10:30, 5:25] = 0
    assert not perceptual_hash(blank).is_flat
    with pytest.raises(Refusal, match="expected a pixel"):
        perceptual_hash(np.zeros((0, 4, 3), np.uint8))
