"""Splits: stable (promise 6), of the asked shares, and unrelated to the shuffle."""

import os
import pathlib
from collections import Counter
from fractions import Fraction
from unittest import mock

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from beam_pipelines.light_processes import share
from beam_pipelines.ranks import shuffle_orders
from beam_pipelines.input_reader import ReadContext
from beam_pipelines.read_images import read_batch
from beam_pipelines.references import LabeledImage, References, pack_images
from beam_pipelines.splits import SplitByGroup
from listings import make_schema
from made_images import write_files

NINE_TO_ONE = {"train": Fraction("0.9"), "validation": Fraction("0.1")}
KEYS = [f"class {index % 10}/{index}.jpg".encode() for index in range(20_000)]


def read_splits(root: pathlib.Path, keys: list[str], seed: int) -> dict[bytes, int]:
    """Key -> split, by the whole way through a run's first half."""
    context = ReadContext(str(root), "none", seed, tuple(NINE_TO_ONE), NINE_TO_ONE, make_schema("c"), len(keys), os.devnull)
    batch = read_batch(share(context), pack_images([LabeledImage(key, key, "c", None) for key in keys]))
    references = References.unpack(batch.references)
    return dict(zip(references.keys, references.rows["split"].tolist(), strict=True))


def test_a_split_depends_on_its_key_alone_not_on_other_examples_nor_the_seed(tmp_path):
    keys = [f"c/{index}.jpg" for index in range(200)]
    root = write_files(tmp_path, dict.fromkeys(keys, b"not looked at"))
    everything = read_splits(root, keys, seed=0)
    assert len(everything) == 200 and set(everything.values()) == {0, 1}
    cases = [
        ("a part of them", keys[50:120], 0),
        ("one alone", keys[7:8], 0),
        ("another order", keys[::-1], 0),
        ("another seed", keys, 2**64 - 1),
    ]
    for case, some, seed in cases:
        found = read_splits(root, some, seed)
        assert found == {key.encode(): everything[key.encode()] for key in some}, case


def test_splits_are_the_same_in_every_version():
    # A data set that grows is prepared again, with whatever version there is then.
    split = SplitByGroup(NINE_TO_ONE)
    validation = [index for index in range(100) if split(f"cat/{index}.jpg".encode())]
    assert validation == [1, 6, 11, 25, 29, 36, 44, 86]


def test_a_larger_share_only_takes_examples_in():
    small, large = SplitByGroup(NINE_TO_ONE), SplitByGroup({"train": Fraction("0.95"), "validation": Fraction("0.05")})
    moved = Counter((small(key), large(key)) for key in KEYS)
    assert moved[0, 1] == 0
    assert moved[1, 0] > 0


def test_shares_are_right_within_what_chance_allows():
    cases = [
        ("the default", {"train": "0.9", "validation": "0.1"}),
        ("three", {"train": "0.8", "validation": "0.1", "test": "0.1"}),
        ("thirds", {"a": "1/3", "b": "1/3", "c": "1/3"}),
        ("a small one", {"train": "0.99", "validation": "0.01"}),
        ("one", {"train": "1"}),
    ]
    for case, texts in cases:
        fractions = {split: Fraction(text) for split, text in texts.items()}
        counts = Counter(map(SplitByGroup(fractions), KEYS))
        assert counts.total() == len(KEYS), case
        for position, fraction in enumerate(fractions.values()):
            expected = float(fraction * len(KEYS))
            deviation = (expected * (1 - float(fraction))) ** 0.5
            assert abs(counts[position] - expected) <= 4 * deviation, (case, position)


@given(st.binary(), st.lists(st.integers(1, 10**9), min_size=1, max_size=6))
def test_every_key_has_a_split(key, weights):
    fractions = {f"split{index}": Fraction(weight, sum(weights)) for index, weight in enumerate(weights)}
    assert 0 <= SplitByGroup(fractions)(key) < len(weights)


def test_the_bounds_between_splits_are_exact():
    thirds = SplitByGroup({split: Fraction(1, 3) for split in "abc"})
    cases = {0: 0, 2**64 // 3 - 1: 0, 2**64 // 3: 1, 2**65 // 3 - 1: 1, 2**65 // 3: 2, 2**64 - 1: 2}
    for value, position in cases.items():
        with mock.patch("beam_pipelines.splits.hashlib.blake2b") as blake2b:
            blake2b.return_value.digest.return_value = value.to_bytes(8, "big")
            assert thirds(b"key") == position, value


def test_a_split_says_nothing_about_the_place_in_the_shuffle():
    # With the shuffle's own hash, validation would be the last tenth of the ranks.
    split = np.array(list(map(SplitByGroup(NINE_TO_ONE), KEYS)))
    for seed in (0, 1, 2**64 - 1):
        ranks = np.argsort(np.argsort(shuffle_orders(seed, KEYS)))
        assert abs(np.corrcoef(split, ranks)[0, 1]) < 4 / len(KEYS) ** 0.5, seed
