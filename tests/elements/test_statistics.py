"""Tests that statistics are exact and do not depend on the order of batches."""

import copy
import functools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hypothesis_numpy

from beam_pipelines.elements.dead_letters import DeadLetter, DeadLetterCount
from beam_pipelines.elements.statistics import ImageFacts, ImageStatistics, Range, SplitStatistics, merge_statistics, sum_pixels
from beam_pipelines.elements.tensor_sums import TensorSums
from made_images import noise
from tf_input.stored_kinds import TENSOR_DTYPES

COUNTS = st.integers(0, 2**40)
PIXEL_SUMS = st.builds(sum_pixels, hypothesis_numpy.arrays(np.uint8, (2, 3, 3)))
LABEL_COUNTS = st.dictionaries(st.sampled_from(["weather", "ground"]), st.dictionaries(st.integers(0, 3), st.integers(1, 9)).map(Counter))
SPLITS = st.builds(
    SplitStatistics, COUNTS, COUNTS, st.dictionaries(st.integers(0, 3), st.integers(1, 9)).map(Counter), PIXEL_SUMS, LABEL_COUNTS
)
LETTERS = st.builds(DeadLetter, st.text("abc", max_size=2), st.just("read"), st.just("unreadable"), st.text("xy", max_size=1))


def make_range(values: list[int]) -> Range:
    values_range = Range()
    values_range.add(values)
    return values_range


def count_letters(letters: list[DeadLetter]) -> DeadLetterCount:
    count = DeadLetterCount()
    count.add(letters)
    return count


RANGES = st.lists(st.integers(0, 10**6), max_size=2).map(make_range)
FORMATS = st.dictionaries(st.sampled_from(["jpeg", "png", "gif"]), st.integers(1, 9)).map(Counter)
CHANNELS = st.dictionaries(st.integers(1, 4), st.integers(1, 9)).map(Counter)
STATISTICS = st.builds(
    ImageStatistics,
    st.dictionaries(st.integers(0, 2), SPLITS),
    st.dictionaries(st.sampled_from(["image", "left", "right"]), st.builds(ImageFacts, FORMATS, FORMATS, CHANNELS, RANGES, RANGES, RANGES)),
    st.lists(LETTERS, max_size=7).map(count_letters),
    st.dictionaries(st.sampled_from(["mask_values", "mask_bits"]), RANGES),
    st.dictionaries(st.sampled_from(["num_class_masks", "num_dropped_boxes"]), COUNTS).map(Counter),
)


@pytest.mark.slow
@given(st.lists(STATISTICS, max_size=4), st.randoms(use_true_random=False), st.integers(0, 4))
def test_merge_order_and_grouping_do_not_change_the_statistics(parts, random, bound):
    at_once = merge_statistics(parts)
    shuffled = random.sample(parts, len(parts))
    in_groups = merge_statistics([merge_statistics(shuffled[:bound]), merge_statistics(shuffled[bound:])])
    assert in_groups == at_once
    # Counters treat a count of zero like a missing count, but a JSON file does not.
    if at_once.num_examples:
        assert in_groups.to_json() == at_once.to_json()
    assert {p: dict(s.labels) for p, s in in_groups.splits.items()} == {p: dict(s.labels) for p, s in at_once.splits.items()}


@pytest.mark.slow
@given(st.lists(STATISTICS, min_size=1, max_size=3))
def test_merging_does_not_change_the_parts(parts):
    before = copy.deepcopy(parts)
    merged = merge_statistics(parts)
    merged.merge(parts[-1])
    for split in merged.splits.values():
        split.labels[99] += 1
    assert parts == before


def test_merging_adds_counts():
    first = ImageStatistics({0: SplitStatistics(2, 10, Counter({1: 2})), 1: SplitStatistics(1, 1, Counter({0: 1}))}, {"image": ImageFacts(Counter(png=3))})
    of_second = {"image": ImageFacts(Counter(jpeg=2), Counter(cmyk=1)), "right": ImageFacts(Counter(bmp=2))}
    second = ImageStatistics({0: SplitStatistics(2, 5, Counter({1: 1, 2: 1}))}, of_second)
    merged = merge_statistics([first, second])
    assert merged.num_examples == 5
    assert merged.splits[0].num_bytes == 15
    assert merged.splits[0].labels == {1: 3, 2: 1}
    assert merged.splits[1].num_examples == 1
    assert merged.to_json()["images"]["formats"] == {"jpeg": 2, "png": 3}
    assert merged.to_json()["images"]["reencoded"] == {"cmyk": 1}
    assert merged.to_json()["other_images"]["right"]["formats"] == {"bmp": 2}


def test_json_lists_formats_in_a_fixed_order():
    parts = [ImageStatistics(images={"image": ImageFacts(Counter({name: 1}))}) for name in ("webp", "jpeg", "png")]
    assert list(merge_statistics(parts).to_json()["images"]["formats"]) == ["jpeg", "png", "webp"]


def test_empty_statistics_have_no_values():
    nothing = {"num_images": 0, "formats": None, "reencoded": {}, "channels": None, "height": None, "width": None, "bytes": None}
    assert merge_statistics([]).to_json() == {"images": nothing}
    assert TensorSums().pixels_to_json(3) is None


# Pixels

PICTURES = [
    ("tiny", noise(0, 1, 1)),
    ("small", noise(1, 28, 32)),
    ("largest image with all pixels counted", noise(2, 128, 128)),
    ("slightly larger", noise(3, 128, 129)),
    ("a photograph", noise(4, 199, 301)),
    ("a strip", noise(5, 1, 20_000)),
    ("black", np.zeros((9, 9, 3), np.uint8)),
    ("white", np.full((100, 100, 3), 255, np.uint8)),
]


def counted_pixels(picture: np.ndarray) -> np.ndarray:
    """Returns the pixels that the statistics count, as a float64 array of shape [num_pixels, 3]."""
    step = 1 if picture.shape[0] * picture.shape[1] <= 16_384 else 4
    return picture[::step, ::step].reshape(-1, 3).astype(np.float64)


def test_pixel_mean_and_variance_match_numpy():
    merged, reverse = TensorSums(), TensorSums()
    for case, picture in PICTURES:
        sums, expected = sum_pixels(picture), counted_pixels(picture)
        actual = sums.pixels_to_json(3)
        assert (actual["num_images"], actual["num_pixels"]) == (1, len(expected)), case
        assert actual["mean"] == pytest.approx(expected.mean(axis=0), rel=1e-12), case
        assert actual["variance"] == pytest.approx(expected.var(axis=0), rel=1e-9, abs=1e-12), case
        merged.merge(sums)
    for _, picture in reversed(PICTURES):
        reverse.merge(sum_pixels(picture))
    pixels = np.concatenate([counted_pixels(picture) for _, picture in PICTURES])
    assert merged == reverse and merged.pixels_to_json(3)["mean"] == pytest.approx(pixels.mean(axis=0), rel=1e-12)
    assert merged.pixels_to_json(3)["variance"] == pytest.approx(pixels.var(axis=0), rel=1e-9)


# Ranges


@given(st.lists(st.lists(st.integers(-(2**40), 2**40)), max_size=5))
def test_range_does_not_depend_on_batches(batches):
    merged = functools.reduce(lambda total, values: total.merge(make_range(values)) or total, batches, Range())
    values = [value for batch in batches for value in batch]
    if values:
        expected = {"min": min(values), "max": max(values), "mean": sum(values) / len(values)}
        assert merged.to_json(len(values)) == expected
    else:
        assert merged == Range()
        assert merged.to_json(0) is None


# Dead letters


@given(st.lists(LETTERS, max_size=12), st.integers(0, 12))
def test_first_dead_letters_are_the_smallest(letters, bound):
    count = count_letters(letters[:bound])
    count.merge(count_letters(letters[bound:]))
    assert (count.num, count.first) == (len(letters), [letter._replace(thumbnail="") for letter in sorted(letters)[:5]])


def test_dead_letters_are_described_in_one_line_each():
    letters = [DeadLetter(f"cat/{index}.jpg", "check", "bad_image", "0 bytes") for index in range(7)]
    lines = [f"\n  - cat/{index}.jpg: 0 bytes (check)" for index in range(5)]
    cases = [("none", 0, ""), ("two", 2, "".join(lines[:2])), ("seven", 7, "".join(lines) + "\n  - and 2 more")]
    for case, num, expected in cases:
        assert count_letters(letters[:num]).describe() == expected, case


def test_control_characters_in_paths_are_escaped():
    # Worker processes pass on only the last line of a message, and a terminal interprets control characters.
    for case, path in (("a line end", "cat/a\nb.jpg"), ("a return", "cat/a\rb.jpg"), ("an escape", "cat/a\x1b[2Jb.jpg")):
        described = count_letters([DeadLetter(path, "check", "bad_image", "0 bytes")]).describe()
        assert described.removeprefix("\n  - ").isprintable(), case


# Tensors


def any_bits(dtype: str, num: int, seed: int) -> np.ndarray:
    """Returns random numbers of all magnitudes, including NaN and infinity."""
    data = np.random.default_rng(seed).integers(0, 2 if dtype == "bool" else 256, num * np.dtype(dtype).itemsize, np.uint8)
    return np.frombuffer(data.tobytes(), dtype)


def sums_of(parts: list[np.ndarray], num_channels: int = 1) -> TensorSums:
    sums = TensorSums()
    for part in parts:
        sums.merge(TensorSums.of(part.tobytes(), part.dtype.name, num_channels))
    return sums


@pytest.mark.parametrize("dtype", TENSOR_DTYPES)
def test_tensor_sums_are_exact_in_any_order(dtype):
    parts = [any_bits(dtype, num, seed) for seed, num in enumerate((1, 2, 3, 64, 1000, 7))]
    at_once = sums_of(parts)
    in_groups = sums_of(parts[4:])
    in_groups.merge(sums_of([]))
    in_groups.merge(sums_of(parts[3::-1]))
    assert in_groups == at_once and in_groups.to_json() == at_once.to_json()
    numbers = np.concatenate(parts)
    finite = numbers[np.isfinite(numbers)]
    actual = at_once.to_json()
    assert (actual["num_examples"], actual["num_values"], actual["num_not_finite"]) == (6, len(finite), len(numbers) - len(finite))
    assert (actual["min"], actual["max"]) == (finite.min(), finite.max())
    wide = finite.astype(np.longdouble)
    assert actual["mean"] == pytest.approx(float(wide.mean()), rel=1e-12)
    if dtype != "float64":  # squares of float64 values can overflow
        assert actual["std"] == pytest.approx(float(wide.std()), rel=1e-9)


def test_tensor_pixel_statistics_exclude_non_finite_pixels():
    pixels = np.random.default_rng(0).normal(size=(50, 5)).astype(np.float32)
    pixels[3, 1], pixels[9, 4] = np.nan, -np.inf
    sums = sums_of([pixels], 5)
    finite = np.delete(pixels, [3, 9], axis=0).astype(np.float64)
    actual = sums.pixels_to_json(5)
    assert (actual["num_images"], actual["num_pixels"], sums.num_not_finite) == (1, 48, 2)
    np.testing.assert_allclose(actual["mean"], finite.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(actual["variance"], finite.var(axis=0), rtol=1e-9)
    nothing = sums_of([np.full(3, np.nan, np.float16)])
    assert nothing.pixels_to_json(1) is None and sums_of([np.zeros(4096, np.uint8)], 2048).pixels_to_json(2048) is None
    assert nothing.to_json() == {"num_examples": 1, "num_values": 0, "num_not_finite": 3, "min": None, "max": None, "mean": None, "std": None}


@pytest.mark.parametrize("dtype", ["int64", "float64"])
def test_deviation_of_large_similar_values_is_accurate(dtype):
    seconds = 1_700_000_000_000 + np.arange(1000, dtype=dtype) % 20
    actual = sums_of([seconds[:300], seconds[300:]]).to_json()
    assert (actual["mean"], actual["std"]) == (1_700_000_000_009.5, pytest.approx(float(np.std(np.arange(20)))))
