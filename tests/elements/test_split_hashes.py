"""Tests that splits are stable, have the requested fractions, and do not depend on the shuffle."""

import hashlib
import pathlib
from collections import Counter
from fractions import Fraction
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_pipelines.elements.input_record import InputRecord
from beam_pipelines.elements.shuffle_keys import shuffle_orders
from beam_pipelines.elements.split_hashes import SplitByGroup, hash_bounds
from made_references import make_run, make_references

NINE_TO_ONE = {"train": Fraction("0.9"), "validation": Fraction("0.1")}
KEYS = [f"class {index % 10}/{index}.jpg".encode() for index in range(20_000)]


def listed_splits(directory: pathlib.Path, keys: list[str], seed: int = 0, groups: dict[str, str] = {}) -> dict[str, str]:
    """Returns a mapping from each key to the split that the listing stage assigns."""
    made = make_run(directory, seed=seed)
    references = make_references([InputRecord(key, key, "c", None, group=groups.get(key, "")) for key in keys], made)
    names = [references.splits[location] for location in references.rows["split"]]
    return dict(zip((key.decode() for key in references.keys), names, strict=True))


def test_split_depends_only_on_the_key(tmp_path):
    keys = [f"c/{index}.jpg" for index in range(200)]
    everything = listed_splits(tmp_path, keys)
    assert len(everything) == 200 and set(everything.values()) == {"train", "validation"}
    cases = [
        ("subset", keys[50:120], 0),
        ("single key", keys[7:8], 0),
        ("another order", keys[::-1], 0),
        ("another seed", keys, 2**64 - 1),
    ]
    for case, some, seed in cases:
        assert listed_splits(tmp_path, some, seed) == {key: everything[key] for key in some}, case


def test_fractions_with_another_sum_than_one_are_rejected():
    with pytest.raises(ValueError, match="instead of 1"):
        hash_bounds({"train": Fraction("0.5"), "test": Fraction("0.4")})


def test_groups_stay_in_one_split_and_hash_like_keys(tmp_path):
    keys = [f"c/{index}.jpg" for index in range(400)]
    groups = {key: f"patient {index % 40}" for index, key in enumerate(keys) if index % 3}
    actual = listed_splits(tmp_path, keys, groups=groups)
    by_group: dict[str, set[str]] = {}
    for key, group in groups.items():
        by_group.setdefault(group, set()).add(actual[key])
    assert all(len(splits) == 1 for splits in by_group.values()) and len(set.union(*by_group.values())) == 2
    alone = listed_splits(tmp_path, keys)
    assert {key: actual[key] for key in keys if key not in groups} == {key: alone[key] for key in keys if key not in groups}
    as_keys = listed_splits(tmp_path, sorted(set(groups.values())))
    assert by_group == {group: {split} for group, split in as_keys.items()}


def test_split_of_the_source_is_kept(tmp_path):
    names = ("test", "train", "a fold")
    images = [InputRecord(f"{index}", f"{index}", "c", names[index % 3]) for index in range(30)]
    references = make_references(images, make_run(tmp_path))
    assert [references.splits[location] for location in references.rows["split"]] == [image.split for image in images]


def test_splits_are_the_same_in_every_version():
    # A growing dataset must keep its splits when it is prepared by a later version.
    locations = SplitByGroup(NINE_TO_ONE)([f"cat/{index}.jpg".encode() for index in range(100)])
    assert np.flatnonzero(locations).tolist() == [1, 6, 11, 25, 29, 36, 44, 86]


def test_larger_fraction_only_adds_examples():
    small, large = SplitByGroup(NINE_TO_ONE), SplitByGroup({"train": Fraction("0.95"), "validation": Fraction("0.05")})
    moved = Counter(zip(small(KEYS).tolist(), large(KEYS).tolist()))
    assert moved[0, 1] == 0
    assert moved[1, 0] > 0


def test_split_sizes_are_near_the_fractions():
    cases = [
        ("the default", {"train": "0.9", "validation": "0.1"}),
        ("three", {"train": "0.8", "validation": "0.1", "test": "0.1"}),
        ("thirds", {"a": "1/3", "b": "1/3", "c": "1/3"}),
        ("a small one", {"train": "0.99", "validation": "0.01"}),
        ("one", {"train": "1"}),
    ]
    for case, texts in cases:
        fractions = {split: Fraction(text) for split, text in texts.items()}
        counts = Counter(SplitByGroup(fractions)(KEYS).tolist())
        assert counts.total() == len(KEYS), case
        for position, fraction in enumerate(fractions.values()):
            expected = float(fraction * len(KEYS))
            deviation = (expected * (1 - float(fraction))) ** 0.5
            assert abs(counts[position] - expected) <= 4 * deviation, (case, position)


@given(st.lists(st.binary(), max_size=20), st.lists(st.integers(1, 10**9), min_size=1, max_size=6))
def test_split_is_determined_by_the_hash_of_the_key(keys, weights):
    fractions = {f"split{index}": Fraction(weight, sum(weights)) for index, weight in enumerate(weights)}
    locations = SplitByGroup(fractions)(keys)
    assert locations.shape == (len(keys),)
    for key, location in zip(keys, locations.tolist()):
        hashed = Fraction(int.from_bytes(hashlib.blake2b(key, digest_size=8, person=b"recordmill split").digest(), "big"), 2**64)
        begin, end = (Fraction(sum(weights[:stop]), sum(weights)) for stop in (location, location + 1))
        assert begin - Fraction(1, 2**64) <= hashed < end, key


@pytest.mark.parametrize("num_splits", [1, 3])
def test_bounds_between_splits_are_exact(num_splits):
    split = SplitByGroup({name: Fraction(1, num_splits) for name in "abc"[:num_splits]})
    thirds = {0: 0, 2**64 // 3 - 1: 0, 2**64 // 3: 1, 2**65 // 3 - 1: 1, 2**65 // 3: 2, 2**64 - 1: 2}
    for value, location in thirds.items():
        with mock.patch("beam_pipelines.elements.split_hashes.digests", return_value=value.to_bytes(8, "big")):
            assert split([b"key"]).tolist() == [location if num_splits == 3 else 0], value


def test_split_and_shuffle_order_are_uncorrelated():
    # With the hash of the shuffle, the split validation would be the last tenth of the ranks.
    split = SplitByGroup(NINE_TO_ONE)(KEYS)
    for seed in (0, 1, 2**64 - 1):
        ranks = np.argsort(np.argsort(shuffle_orders(seed, KEYS)))
        assert abs(np.corrcoef(split, ranks)[0, 1]) < 4 / len(KEYS) ** 0.5, seed
