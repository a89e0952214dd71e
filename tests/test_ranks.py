"""The arithmetic of the global shuffle: a true permutation (promise 1), in shards of equal size, and nothing goes astray."""

import hashlib
import itertools
from collections import Counter, defaultdict
from typing import Callable, Mapping, Sequence
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from beam_pipelines import ranks
from beam_pipelines.config import PrepareConfig
from beam_pipelines.errors import RunError, UserError
from beam_pipelines.ranks import MAX_SHARD_BYTES, MIN_SHARD_BYTES, NUM_BUCKETS, PREFERRED_SHARDS, SplitPlan
from beam_pipelines.references import ROW, References
from beam_pipelines.shuffle import add_histograms, cut_shards, group_by_block, pack_histograms, plan_shards

SEEDS = st.integers(0, 2**64 - 1)
# Neither half of a surrogate pair, which UTF-8 has no bytes for, nor NUL, which no file name holds.
KEYS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1).map(str.encode)


def full_shuffle_key(seed: int, key: bytes) -> bytes:
    """BLAKE2b-128(key=seed, example key), as DESIGN.md promises it."""
    return hashlib.blake2b(key, digest_size=16, key=seed.to_bytes(8, "big")).digest()


def promised_order(seed: int, keys: Sequence[bytes]) -> list[bytes]:
    return sorted(keys, key=lambda key: full_shuffle_key(seed, key))


def make_references(keys: Sequence[bytes], seed: int, shift: int = 0) -> References:
    """References whose `label` is the key's position and whose path is told from the key.

    A `shift` drops the last bits of the orders: what is left sorts alike, but ties, and in few buckets.
    """
    rows = np.zeros(len(keys), ROW)
    rows["order"] = [int.from_bytes(full_shuffle_key(seed, key)[:8], "big") >> shift for key in keys]
    rows["label"] = np.arange(len(keys))
    return References(rows, list(keys), [b"path/" + key for key in keys])


def cut(references: References, bounds: Sequence[int]) -> list[References]:
    """Batches that begin and end at `bounds`; some may be empty."""
    edges = [0, *sorted(min(bound, len(references)) for bound in bounds), len(references)]
    return [references.take(np.arange(begin, end)) for begin, end in itertools.pairwise(edges)]


def shuffle_without_beam(
    batches: Sequence[References],
    seed: int,
    num_shards: int,
    meddle: Callable[[int, list[bytes]], list[bytes]] = lambda block, pieces: pieces[::-1],
) -> list[References]:
    """What GlobalShuffle does to one split, shard by shard; `meddle` is the runner's hand in a block's pieces."""
    histograms = [
        pack_histograms({0: np.bincount(ranks.buckets(batch.rows["order"]), minlength=NUM_BUCKETS)})
        for batch in batches
        if len(batch)
    ]
    plans = plan_shards(add_histograms(histograms), {"train": num_shards})
    pieces: dict[int, list[bytes]] = defaultdict(list)
    for batch in batches:
        for block, members in group_by_block(plans[0], batch.rows["order"]):
            pieces[block].append(batch.take(members).pack())
    shards: dict[int, References] = {}
    for block, arrived in pieces.items():
        for (split, index, count), ordered in cut_shards(((0, block), meddle(block, arrived)), seed, plans):
            assert (split, count, index in shards) == ("train", num_shards, False)
            shards[index] = References.unpack(ordered)
    assert sorted(shards) == list(range(num_shards))
    return [shards[index] for index in range(num_shards)]


# The order


@given(st.lists(KEYS, unique=True), SEEDS)
def test_the_order_is_a_permutation_by_the_full_blake2b_128(keys, seed):
    references = make_references(keys, seed)
    ordered = ranks.sort_by_shuffle_key(references, seed)
    assert ordered.keys == promised_order(seed, keys)
    assert [keys[label] for label in ordered.rows["label"]] == ordered.keys, "rows moved away from their keys"
    assert [path.removeprefix(b"path/") for path in ordered.paths] == ordered.keys, "paths moved away from their keys"


@given(st.lists(KEYS, unique=True), SEEDS)
def test_shuffle_keys_are_blake2b_128_and_orders_their_first_8_bytes(keys, seed):
    digests = [full_shuffle_key(seed, key) for key in keys]
    assert [ranks.shuffle_key(seed, key) for key in keys] == digests
    assert ranks.shuffle_orders(seed, keys).tolist() == [int.from_bytes(digest[:8], "big") for digest in digests]


def test_the_shuffle_key_is_the_same_in_every_version():
    # With another one, the same command would write another data set (promise 2).
    assert ranks.shuffle_key(7, "Löwe/1.jpg".encode()).hex() == "aefcc7ca37bb41b10a0f3eb377e49da3"


def test_buckets_are_the_first_bits():
    cases = {0: 0, 2**48 - 1: 0, 2**48: 1, 2**64 - 1: NUM_BUCKETS - 1}
    for order, bucket in cases.items():
        assert ranks.buckets(np.array([order], np.uint64)).tolist() == [bucket], hex(order)


@given(st.integers(1, 60), SEEDS, st.integers(0, 64), st.randoms(use_true_random=False))
def test_equal_first_64_bits_are_told_apart_by_the_rest(num_keys, seed, shift, random):
    keys = [f"{index}.jpg".encode() for index in range(num_keys)]
    random.shuffle(keys)
    references = make_references(keys, seed, min(shift, 63))
    if shift == 64:
        references.rows["order"] = 0
    assert ranks.sort_by_shuffle_key(references, seed).keys == promised_order(seed, keys)


# Shards


@given(st.integers(1, 10**12), st.integers(1, 5000), st.integers(1, 2000))
def test_shards_are_equal_give_or_take_one_and_tile_the_ranks(num_examples, num_shards, max_blocks):
    num_shards = min(num_shards, num_examples)
    plan = SplitPlan("train", num_examples, num_shards, np.zeros(0, np.int64))
    bounds = [plan.first_rank(index) for index in range(num_shards + 1)]
    assert (bounds[0], bounds[-1]) == (0, num_examples)
    assert {end - begin for begin, end in itertools.pairwise(bounds)} <= {
        num_examples // num_shards,
        -(-num_examples // num_shards),
    }
    with mock.patch.object(ranks, "MAX_BLOCKS", max_blocks):
        assert plan.num_blocks == min(num_shards, max_blocks)
        blocks = [plan.block_shards(block) for block in range(plan.num_blocks)]
        assert [shard for block in blocks for shard in block] == list(range(num_shards))
        assert plan.block_bounds().tolist() == [bounds[block.start] for block in blocks] + [num_examples]


@settings(max_examples=150, deadline=None)
@given(
    num_keys=st.integers(1, 300),
    seed=SEEDS,
    shards=st.integers(1, 300),
    max_blocks=st.sampled_from([1, 2, 3, 7, 1024]),
    shift=st.sampled_from([0, 0, 2, 14, 16, 32, 58, 61]),
    bounds=st.lists(st.integers(0, 300), max_size=6),
    random=st.randoms(use_true_random=False),
)
def test_routing_by_buckets_gives_the_exact_global_order(num_keys, seed, shards, max_blocks, shift, bounds, random):
    keys = [f"class {index % 7}/{index}.jpg".encode() for index in range(num_keys)]
    random.shuffle(keys)
    num_shards = min(shards, num_keys)
    batches = cut(make_references(keys, seed, shift), bounds)
    with mock.patch.object(ranks, "MAX_BLOCKS", max_blocks):
        written = shuffle_without_beam(batches, seed, num_shards)
    assert [key for shard in written for key in shard.keys] == promised_order(seed, keys)
    assert {len(shard) for shard in written} <= {num_keys // num_shards, -(-num_keys // num_shards)}
    for shard in written:
        assert [keys[label] for label in shard.rows["label"]] == shard.keys


def test_many_keys_of_many_batches_and_shards_come_out_in_the_exact_global_order():
    # Enough keys that most buckets hold one, many more shards than blocks, and shards that end within a bucket.
    keys = [f"{index}.jpg".encode() for index in range(20_000)]
    batches = cut(make_references(keys, seed=3), range(0, 20_000, 1_111))
    with mock.patch.object(ranks, "MAX_BLOCKS", 50):
        written = shuffle_without_beam(batches, 3, 777)
    assert [key for shard in written for key in shard.keys] == promised_order(3, keys)
    assert {len(shard) for shard in written} == {25, 26}


def test_a_key_is_sent_to_one_block_unless_its_bucket_is_cut():
    keys = [f"{index}.jpg".encode() for index in range(5_000)]
    orders = make_references(keys, seed=0).rows["order"]
    plan = ranks.plan_split("train", np.bincount(ranks.buckets(orders), minlength=NUM_BUCKETS), 40)
    num_sent = sum(len(members) for _, members in group_by_block(plan, orders))
    most_in_a_bucket = np.bincount(ranks.buckets(orders)).max()
    assert len(keys) <= num_sent <= len(keys) + (plan.num_blocks - 1) * most_in_a_bucket


# What goes wrong on the way


def drop_one(block: int, pieces: list[bytes]) -> list[bytes]:
    first = References.unpack(pieces[0])
    return [first.take(np.arange(1, len(first))).pack(), *pieces[1:]]


def drop_largest(block: int, pieces: list[bytes]) -> list[bytes]:
    return drop_end(pieces, slice(0, -1))


def drop_smallest(block: int, pieces: list[bytes]) -> list[bytes]:
    return drop_end(pieces, slice(1, None))


def drop_end(pieces: list[bytes], kept: slice) -> list[bytes]:
    references = References.concatenate([References.unpack(piece) for piece in pieces])
    return [references.take(np.argsort(references.rows["order"], kind="stable")[kept]).pack()]


def repeat_one(block: int, pieces: list[bytes]) -> list[bytes]:
    first = References.unpack(pieces[0])
    return [*pieces, first.take(np.arange(1)).pack()]


def repeat_a_piece(block: int, pieces: list[bytes]) -> list[bytes]:
    return [*pieces, pieces[0]]


def lose_one_and_repeat_another(block: int, pieces: list[bytes]) -> list[bytes]:
    first = References.unpack(pieces[0])
    return [first.take(np.array([1, 1, *range(2, len(first))])).pack(), *pieces[1:]]


MEDDLERS = (
    drop_one,
    drop_largest,
    drop_smallest,
    lambda block, pieces: pieces[1:],
    repeat_one,
    repeat_a_piece,
    lose_one_and_repeat_another,
)
MEDDLER_NAMES = (
    "a reference is lost",
    "the last reference is lost",
    "the first reference is lost",
    "a piece is lost",
    "a reference is repeated",
    "a piece is repeated",
    "one is lost and another repeated",
)


@pytest.mark.parametrize("shift", [0, 16], ids=["many buckets", "one bucket"])
@pytest.mark.parametrize("meddle", MEDDLERS, ids=MEDDLER_NAMES)
def test_a_runner_that_loses_or_repeats_references_fails_the_run(meddle, shift):
    keys = [f"{index}.jpg".encode() for index in range(100)]
    batches = cut(make_references(keys, 1, shift), [30, 60])
    for meddled_block in range(4):
        with pytest.raises(RunError, match="lost or repeated"):
            shuffle_without_beam(batches, 1, 4, lambda block, p: meddle(block, p) if block == meddled_block else p)


# How many shards


SPLIT_SIZES = st.dictionaries(st.sampled_from(["train", "validation", "test", "extra"]), st.integers(1, 10**6), min_size=1)


@given(SPLIT_SIZES, st.data())
def test_shards_are_shared_out_in_proportion(num_examples, data):
    total = sum(num_examples.values())
    num_shards = data.draw(st.integers(len(num_examples), min(total, 5000)))
    shares = ranks.share_out(num_shards, num_examples)
    assert list(shares) == list(num_examples)
    assert sum(shares.values()) == num_shards
    for split, share in shares.items():
        assert 1 <= share <= num_examples[split], split
    if all(num_shards * count >= total for count in num_examples.values()):  # none has to be raised to one
        for split, share in shares.items():
            assert abs(share - num_shards * num_examples[split] / total) < 1, split


def test_shards_are_shared_out_as_one_would_by_hand():
    cases = [
        ("even", 10, {"train": 50, "validation": 50}, {"train": 5, "validation": 5}),
        ("nine to one", 16, {"train": 900, "validation": 100}, {"train": 14, "validation": 2}),
        ("a small split gets one", 16, {"train": 9_990, "validation": 10}, {"train": 15, "validation": 1}),
        ("one each", 3, {"train": 998, "validation": 1, "test": 1}, {"train": 1, "validation": 1, "test": 1}),
        ("one an example", 7, {"train": 4, "validation": 3}, {"train": 4, "validation": 3}),
    ]
    for case, num_shards, num_examples, expected in cases:
        assert ranks.share_out(num_shards, num_examples) == expected, case


def make_config(**options: object) -> PrepareConfig:
    return PrepareConfig(input="in", output="out", name="flowers", **options)


def test_a_number_of_shards_that_cannot_be_is_refused():
    by_name: Mapping[str, int] = {"train": 2, "validation": 11}
    cases = [
        ("fewer than splits", 1, ["--num_shards=1", "2 (one a split: train, validation)", "30 (one an example)"]),
        ("more than examples", 31, ["--num_shards=31", "30 (one an example)"]),
        ("more than a split's examples", by_name, ["--num_shards=train=2,validation=11", "at most 10", "'validation'"]),
        ("a split without a number", {"train": 2}, ["--num_shards=train=2", "each of the splits train, validation"]),
        ("a split that is not there", {"train": 2, "validation": 1, "test": 1}, ["test=1", "train, validation"]),
        ("another name", {"train": 2, "valid": 1}, ["valid=1", "train, validation"]),
    ]
    for case, num_shards, parts in cases:
        with pytest.raises(UserError) as caught:
            ranks.choose_num_shards(
                make_config(num_shards=num_shards), {"train": 20, "validation": 10}, {"train": 9, "validation": 9}
            )
        for part in parts:
            assert part in str(caught.value), case


def test_shards_by_name_come_in_the_order_of_the_splits():
    config = make_config(num_shards={"validation": 10, "train": 20})
    chosen = ranks.choose_num_shards(config, {"train": 20, "validation": 10}, {"train": 1, "validation": 1})
    assert list(chosen.items()) == [("train", 20), ("validation", 10)]


@given(SPLIT_SIZES, st.integers(1, 10**12), st.one_of(st.none(), st.integers(1, 10**10)))
def test_shards_by_size_keep_to_their_bounds(num_examples, num_bytes, shard_bytes):
    sizes = {split: num_bytes for split in num_examples}
    chosen = ranks.choose_num_shards(make_config(shard_bytes=shard_bytes), num_examples, sizes)
    assert list(chosen) == list(num_examples)
    for split, num_shards in chosen.items():
        assert 1 <= num_shards <= num_examples[split]
        if num_shards < num_examples[split]:
            assert num_bytes / num_shards <= (shard_bytes or MAX_SHARD_BYTES)
        if num_shards > 1:  # not more of them than it takes
            smallest = shard_bytes or (MIN_SHARD_BYTES if num_shards <= PREFERRED_SHARDS else MAX_SHARD_BYTES)
            assert num_bytes / (num_shards - 1) > smallest


def test_shards_by_size_are_a_few_for_a_small_data_set():
    cases = [
        ("100 KB", 100_000, None, 1),
        ("5 MiB", 5 << 20, None, 5),
        ("1 GiB", 1 << 30, None, 16),
        ("4 GiB", 4 << 30, None, 32),
        ("1 GiB in 100 MB", 1 << 30, 100 * 10**6, 11),
        ("nothing but empty images", 0, None, 1),
    ]
    for case, num_bytes, shard_bytes, expected in cases:
        config = make_config(shard_bytes=shard_bytes)
        assert ranks.choose_num_shards(config, {"train": 10**6}, {"train": num_bytes}) == {"train": expected}, case


# Uniformity. The seeds are fixed, so the outcome is too; the bounds are those that chance would break once in a thousand times.


def ordered_labels(seed: int, num_keys: int) -> tuple[int, ...]:
    references = make_references([f"cat/{index}.jpg".encode() for index in range(num_keys)], seed)
    return tuple(ranks.sort_by_shuffle_key(references, seed).rows["label"].tolist())


def assert_uniform(counts: Counter, num_outcomes: int) -> None:
    observed = [*counts.values()] + [0] * (num_outcomes - len(counts))
    statistic, _ = stats.chisquare(observed)
    low, high = stats.chi2.ppf([0.001, 0.999], num_outcomes - 1)
    assert low < statistic < high, observed


def test_every_permutation_is_equally_likely():
    counts = Counter(ordered_labels(seed, 4) for seed in range(4_800))
    assert len(counts) == 24
    assert_uniform(counts, 24)


def test_every_place_is_equally_likely_for_every_key():
    orders = [ordered_labels(seed, 12) for seed in range(2_400)]
    for label in range(12):
        assert_uniform(Counter(order.index(label) for order in orders), 12)


def test_another_seed_gives_an_unrelated_order_and_the_same_seed_the_same():
    num_keys = 2_000
    first, again, other = (np.argsort(ordered_labels(seed, num_keys)) for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    for case, ordering in (("the input", np.arange(num_keys)), ("another seed", other)):
        assert abs(np.corrcoef(first, ordering)[0, 1]) < 4 / num_keys**0.5, case
