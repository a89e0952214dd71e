"""Tests that the global shuffle is a permutation of all inputs, and that all shards have the same size."""

import hashlib
import itertools
from collections import Counter
from typing import Mapping, Sequence
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from beam_pipelines.elements import shuffle_keys
from beam_pipelines.elements.plan_files import read_planned_shard
from beam_pipelines.elements.references import ROW, References, BinaryColumn
from beam_pipelines.elements.shuffle_keys import NUM_BUCKETS, KeyCounts, merge_counts
from beam_pipelines.errors import UserError
from beam_pipelines.shuffle import ranks
from beam_pipelines.shuffle.collisions import sort_by_shuffle_key
from beam_pipelines.shuffle.ranks import MAX_SHARD_BYTES, MIN_SHARD_BYTES, PREFERRED_SHARDS, SplitRanks, plan_shuffle
from made_references import make_run, plan_without_beam

SEEDS = st.integers(0, 2**64 - 1)
# Without surrogates, which UTF-8 cannot encode, and without NUL, which file names cannot contain.
KEYS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1).map(str.encode)


def full_shuffle_key(seed: int, key: bytes) -> bytes:
    """Returns the BLAKE2b-128 hash of an example key. The seed is the key of the hash function."""
    return hashlib.blake2b(key, digest_size=16, key=seed.to_bytes(8, "big")).digest()


def expected_order(seed: int, keys: Sequence[bytes]) -> list[bytes]:
    return sorted(keys, key=lambda key: full_shuffle_key(seed, key))


def make_references(keys: Sequence[bytes], seed: int, shift: int = 0) -> References:
    """Returns one reference for each key. `num_bytes` contains the index of the key, to identify the row later.

    `shift` is the number of trailing bits to drop from the shuffle keys, which causes ties.
    """
    rows = np.zeros(len(keys), ROW)
    rows["order"] = [int.from_bytes(full_shuffle_key(seed, key)[:8], "big") >> shift for key in keys]
    rows["num_bytes"] = np.arange(len(keys))
    nothing = BinaryColumn.of([b""] * len(keys))
    return References(rows, ("train",), (), BinaryColumn.of(keys), BinaryColumn.of([b"path/" + key for key in keys]), *[nothing] * 5)


def split_at(references: References, bounds: Sequence[int]) -> list[References]:
    """Splits references into batches at `bounds`. Batches may be empty."""
    edges = [0, *sorted(min(bound, len(references)) for bound in bounds), len(references)]
    return [references.slice(begin, end) for begin, end in itertools.pairwise(edges)]


# Order


@given(st.lists(KEYS, unique=True), SEEDS)
def test_order_is_the_permutation_by_blake2b_128(keys, seed):
    references = make_references(keys, seed)
    ordered, collisions = sort_by_shuffle_key(references, np.arange(len(references)), seed)
    actual = list(ordered.keys)
    assert actual == expected_order(seed, keys)
    assert [keys[position] for position in ordered.rows["num_bytes"]] == actual, "rows must stay with their keys"
    assert [path.removeprefix(b"path/") for path in ordered.paths] == actual, "paths must stay with their keys"
    assert not collisions.num


@given(st.lists(KEYS, unique=True), SEEDS)
def test_shuffle_keys_are_blake2b_128_and_orders_are_the_first_8_bytes(keys, seed):
    digests = [full_shuffle_key(seed, key) for key in keys]
    assert [shuffle_keys.shuffle_key(seed, key) for key in keys] == digests
    assert shuffle_keys.shuffle_orders(seed, keys).tolist() == [int.from_bytes(digest[:8], "big") for digest in digests]


def test_shuffle_key_is_the_same_in_every_version():
    # With another shuffle key, the same command would write another dataset (promise 2).
    assert shuffle_keys.shuffle_key(7, "Löwe/1.jpg".encode()).hex() == "aefcc7ca37bb41b10a0f3eb377e49da3"


def test_buckets_are_the_first_16_bits():
    cases = {0: 0, 2**48 - 1: 0, 2**48: 1, 2**64 - 1: NUM_BUCKETS - 1}
    for order, bucket in cases.items():
        assert shuffle_keys.buckets(np.array([order], np.uint64)).tolist() == [bucket], hex(order)


@given(st.integers(1, 60), SEEDS, st.integers(0, 64), st.randoms(use_true_random=False))
def test_ties_in_the_first_64_bits_are_resolved_by_the_full_key(num_keys, seed, shift, random):
    keys = [f"{index}.jpg".encode() for index in range(num_keys)]
    random.shuffle(keys)
    references = make_references(keys, seed, min(shift, 63))
    if shift == 64:
        references.rows["order"] = 0
    ordered, collisions = sort_by_shuffle_key(references, np.arange(len(references)), seed)
    assert list(ordered.keys) == expected_order(seed, keys)
    assert not collisions.num, "keys with equal first bits are not equal keys"


# Shards


@given(st.integers(1, 10**12), st.integers(1, 5000), st.data())
def test_shard_sizes_differ_by_at_most_one_and_cover_all_ranks(num_inputs, num_shards, data):
    num_shards = min(num_shards, num_inputs)
    plan = SplitRanks("train", num_inputs, num_shards, np.zeros(0, np.int64))
    bounds = [plan.first_rank(index) for index in range(num_shards + 1)]
    assert (bounds[0], bounds[-1]) == (0, num_inputs)
    sizes = {end - begin for begin, end in itertools.pairwise(bounds)}
    assert sizes <= {num_inputs // num_shards, -(-num_inputs // num_shards)}
    first, stop = sorted(data.draw(st.tuples(*[st.integers(0, num_inputs)] * 2)))
    parts = list(plan.cut(first, stop))
    for index, begin, end in parts:
        assert bounds[index] <= begin < end <= bounds[index + 1]
    edges = [first, *(end for _, _, end in parts)]
    assert [begin for _, begin, _ in parts] == edges[:-1] and edges[-1] == stop
    assert [index for index, _, _ in parts] == list(range(parts[0][0], parts[-1][0] + 1)) if parts else first == stop


ORDERS = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=50).map(lambda orders: np.array(orders, np.uint64))


@given(st.lists(st.tuples(st.sampled_from(["train", "test"]), ORDERS), max_size=5))
def test_counts_of_parts_are_added(parts):
    packed = []
    for split, orders in parts:
        counts = KeyCounts()
        counts.add(split, orders)
        packed.append(counts.pack())
    merged = merge_counts(packed)
    for split in {split for split, _ in parts}:
        expected = np.concatenate([orders for item, orders in parts if item == split])
        assert merged[split].tolist() == np.bincount(shuffle_keys.buckets(expected), minlength=NUM_BUCKETS).tolist()
    assert merged.keys() == {split for split, _ in parts}


def test_counts_of_a_small_bundle_are_small():
    counts = KeyCounts()
    counts.add("train", shuffle_keys.shuffle_orders(0, [f"{index}".encode() for index in range(100)]))
    assert sum(map(len, counts.pack().values())) < 1000 < NUM_BUCKETS


@given(st.dictionaries(st.sampled_from(["train", "test"]), ORDERS, min_size=1), st.integers(1, 30), st.integers(0, 10**9))
def test_blocks_cover_the_buckets_and_have_similar_sizes(orders, block_references, reference_bytes):
    counts = {split: np.bincount(shuffle_keys.buckets(of_split), minlength=NUM_BUCKETS) for split, of_split in orders.items()}
    with mock.patch.object(ranks, "BLOCK_REFERENCES", block_references):
        plan = plan_shuffle(counts, dict.fromkeys(counts, 1), reference_bytes)
    bounds = plan.block_bounds.tolist()
    assert (bounds[0], bounds[-1]) == (0, NUM_BUCKETS) and bounds == sorted(set(bounds))
    assert plan.order_bounds().tolist() == [bound << 48 for bound in bounds[:-1]]
    total = sum(counts.values())
    assert len(bounds) - 1 <= max(ranks.FEW_BLOCKS, -(-int(total.sum()) // block_references), -(-reference_bytes // ranks.BLOCK_BYTES))
    for begin, end in itertools.pairwise(bounds):
        assert total[begin:end].sum() < 2 * block_references + total[begin:end].max(), "one bucket more is allowed"
    for split, item in plan.splits.items():
        assert item.num_inputs == len(orders[split]) == item.before[-1]
        assert (np.diff(item.before) == counts[split]).all()


def test_number_of_blocks_grows_with_the_references_and_their_bytes():
    counts = {"train": np.full(NUM_BUCKETS, 1000)}  # 65 million
    for reference_bytes, expected in ((0, 125), (13 << 30, 139), (1 << 50, NUM_BUCKETS)):
        assert len(plan_shuffle(counts, {"train": 1}, reference_bytes).block_bounds) - 1 == expected, reference_bytes


@pytest.mark.slow(2)
@settings(max_examples=60, deadline=None)
@given(
    num_keys=st.integers(1, 300),
    seed=SEEDS,
    shards=st.integers(1, 300),
    block_references=st.sampled_from([1, 2, 10, 70, 1 << 19]),
    shift=st.sampled_from([0, 0, 2, 14, 16, 32, 58, 61]),
    bounds=st.lists(st.integers(0, 300), max_size=6),
    random=st.randoms(use_true_random=False),
)
def test_routing_by_blocks_gives_the_exact_global_order(
    tmp_path_factory, num_keys, seed, shards, block_references, shift, bounds, random
):
    keys = [f"class {index % 7}/{index}.jpg".encode() for index in range(num_keys)]
    random.shuffle(keys)
    num_shards = min(shards, num_keys)
    batches = [batch for batch in split_at(make_references(keys, seed, shift), bounds) if len(batch)]
    made = make_run(tmp_path_factory.mktemp("run"), seed=seed)
    with (
        mock.patch("beam_pipelines.elements.references.CHUNK_REFERENCES", 7),
        mock.patch("beam_pipelines.elements.reference_runs.CHUNK_REFERENCES", 7),
    ):
        planned, _, _ = plan_without_beam(batches, {"train": num_shards}, made, block_references=block_references)
        written = [read_planned_shard(made.run, shard) for shard in planned]
    assert [key for shard in written for key in shard.keys] == expected_order(seed, keys)
    assert {len(shard) for shard in written} <= {num_keys // num_shards, -(-num_keys // num_shards)}
    assert [shard.address.shard_index for shard in planned] == list(range(num_shards))
    for shard in written:
        assert [keys[position] for position in shard.rows["num_bytes"]] == list(shard.keys)


def test_many_batches_and_shards_give_the_exact_global_order(tmp_path):
    # Most buckets have at most one key, there are more shards than blocks, and shards end inside a block.
    keys = [f"{index}.jpg".encode() for index in range(20_000)]
    batches = split_at(make_references(keys, seed=3), range(1_111, 20_000, 1_111))
    made = make_run(tmp_path, seed=3)
    planned, _, plan = plan_without_beam(batches, {"train": 777}, made, block_references=400)
    written = [read_planned_shard(made.run, shard) for shard in planned]
    assert len(plan.block_bounds) - 1 == 50
    assert [key for shard in written for key in shard.keys] == expected_order(3, keys)
    assert {len(shard) for shard in written} == {25, 26}


# Number of shards


SPLIT_SIZES = st.dictionaries(st.sampled_from(["train", "validation", "test", "extra"]), st.integers(1, 10**6), min_size=1)


@given(SPLIT_SIZES, st.data())
def test_shards_are_distributed_in_proportion(num_examples, data):
    total = sum(num_examples.values())
    num_shards = data.draw(st.integers(len(num_examples), min(total, 5000)))
    shares = ranks.share_out(num_shards, num_examples)
    assert list(shares) == list(num_examples)
    assert sum(shares.values()) == num_shards
    for split, share in shares.items():
        assert 1 <= share <= num_examples[split], split
    if all(num_shards * count >= total for count in num_examples.values()):  # every split has at least one shard anyway
        for split, share in shares.items():
            assert abs(share - num_shards * num_examples[split] / total) < 1, split


def test_distribution_of_shards_to_splits():
    cases = [
        ("even", 10, {"train": 50, "validation": 50}, {"train": 5, "validation": 5}),
        ("nine to one", 16, {"train": 900, "validation": 100}, {"train": 14, "validation": 2}),
        ("a small split gets one", 16, {"train": 9_990, "validation": 10}, {"train": 15, "validation": 1}),
        ("one each", 3, {"train": 998, "validation": 1, "test": 1}, {"train": 1, "validation": 1, "test": 1}),
        ("one per example", 7, {"train": 4, "validation": 3}, {"train": 4, "validation": 3}),
    ]
    for case, num_shards, num_examples, expected in cases:
        assert ranks.share_out(num_shards, num_examples) == expected, case


def test_invalid_number_of_shards_is_rejected():
    by_name: Mapping[str, int] = {"train": 2, "validation": 11}
    cases = [
        ("fewer than splits", 1, ["--num_shards=1", "train, validation", "30"]),
        ("more than examples", 31, ["--num_shards=31", "30"]),
        ("more than the examples of a split", by_name, ["--num_shards=train=2,validation=11", "10", "'validation'"]),
        ("missing split", {"train": 2}, ["--num_shards=train=2", "each of train, validation"]),
        ("unknown split", {"train": 2, "validation": 1, "test": 1}, ["test=1", "train, validation"]),
        ("misspelled split", {"train": 2, "valid": 1}, ["valid=1", "train, validation"]),
    ]
    for case, num_shards, parts in cases:
        with pytest.raises(UserError) as caught:
            ranks.choose_num_shards(
                num_shards, None, {"train": 20, "validation": 10}, {"train": 9, "validation": 9}
            )
        for part in parts:
            assert part in str(caught.value), case


def test_shards_by_name_are_in_the_order_of_the_splits():
    chosen = ranks.choose_num_shards({"validation": 10, "train": 20}, None, {"train": 20, "validation": 10}, {"train": 1, "validation": 1})
    assert list(chosen.items()) == [("train", 20), ("validation", 10)]


@given(SPLIT_SIZES, st.integers(1, 10**12), st.one_of(st.none(), st.integers(1, 10**10)))
def test_shards_by_size_stay_within_their_bounds(num_examples, num_bytes, shard_bytes):
    sizes = {split: num_bytes for split in num_examples}
    chosen = ranks.choose_num_shards(None, shard_bytes, num_examples, sizes)
    assert list(chosen) == list(num_examples)
    for split, num_shards in chosen.items():
        assert 1 <= num_shards <= num_examples[split]
        if num_shards < num_examples[split]:
            assert num_bytes / num_shards <= (shard_bytes or MAX_SHARD_BYTES)
        if num_shards > 1:  # one shard fewer would be too large
            smallest = shard_bytes or (MIN_SHARD_BYTES if num_shards <= PREFERRED_SHARDS else MAX_SHARD_BYTES)
            assert num_bytes / (num_shards - 1) > smallest


def test_small_datasets_have_few_shards():
    cases = [
        ("100 KB", 100_000, None, 1),
        ("5 MiB", 5 << 20, None, 5),
        ("1 GiB", 1 << 30, None, 16),
        ("4 GiB", 4 << 30, None, 32),
        ("1 GiB in 100 MB", 1 << 30, 100 * 10**6, 11),
        ("only empty images", 0, None, 1),
    ]
    for case, num_bytes, shard_bytes, expected in cases:
        assert ranks.choose_num_shards(None, shard_bytes, {"train": 10**6}, {"train": num_bytes}) == {"train": expected}, case


# Uniformity. The seeds are fixed, so that the tests are deterministic. Random seeds would fail once in a thousand runs.


def ordered_labels(seed: int, num_keys: int) -> tuple[int, ...]:
    references = make_references([f"cat/{index}.jpg".encode() for index in range(num_keys)], seed)
    return tuple(sort_by_shuffle_key(references, np.arange(len(references)), seed)[0].rows["num_bytes"].tolist())


def assert_uniform(counts: Counter, num_outcomes: int) -> None:
    observed = [*counts.values()] + [0] * (num_outcomes - len(counts))
    statistic, _ = stats.chisquare(observed)
    low, high = stats.chi2.ppf([0.001, 0.999], num_outcomes - 1)
    assert low < statistic < high, observed


def test_every_permutation_is_equally_likely():
    counts = Counter(ordered_labels(seed, 4) for seed in range(4_800))
    assert len(counts) == 24
    assert_uniform(counts, 24)


def test_every_position_is_equally_likely_for_every_key():
    orders = [ordered_labels(seed, 12) for seed in range(2_400)]
    for label in range(12):
        assert_uniform(Counter(order.index(label) for order in orders), 12)


def test_orders_of_different_seeds_are_uncorrelated():
    num_keys = 2_000
    first, again, other = (np.argsort(ordered_labels(seed, num_keys)) for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    for case, ordering in (("the input", np.arange(num_keys)), ("another seed", other)):
        assert abs(np.corrcoef(first, ordering)[0, 1]) < 4 / num_keys**0.5, case
