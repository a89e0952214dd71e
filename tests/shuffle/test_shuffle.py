"""Tests Beam's own shuffles, and GlobalShuffle on the local runner and on runners that lose or repeat elements."""

import itertools
import random
from fractions import Fraction
from typing import Callable, Iterable
from unittest import mock

import apache_beam as beam
import numpy as np
import pytest

from beam_pipelines.elements.input_record import InputRecord
from beam_pipelines.elements.listed import Listed
from beam_pipelines.elements.plan_files import read_plan, read_planned_shard
from beam_pipelines.elements.quality import LabelSequence, expected_run_length
from beam_pipelines.elements.reference_runs import write_run
from beam_pipelines.elements.shuffle_keys import shuffle_key
from beam_pipelines.errors import RunError, UserError, find_user_facing
from beam_pipelines.runners.jobs import choose_engine, parse_pipeline_options
from beam_pipelines.shuffle import global_shuffle as shuffle
from beam_pipelines.shuffle.global_shuffle import GlobalShuffle
from beam_pipelines.shuffle.ranks import ShuffleSpec
from listings import make_listing
from made_references import MadeRun, counts_of_parts, make_run, make_references, plan_without_beam

NUM_LABELS = 10
KEYS = [f"{label}/{index:04d}" for label in range(NUM_LABELS) for index in range(300)]  # class by class
ALL_IN_ONE = {"train": Fraction(1)}


def label_of(key: str) -> int:
    return int(key.split("/")[0])


def images(keys: Iterable[str], split: str | None = None) -> list[InputRecord]:
    return [InputRecord(key, key, key.split("/")[0], split, 100) for key in keys]


def run(make_output: Callable[[beam.Pipeline], beam.PCollection]) -> list:
    """Returns the elements of a PCollection in the order of the local runner."""
    options = parse_pipeline_options([])
    with beam.Pipeline(runner=choose_engine(options).make_runner(), options=options) as pipeline:
        make_output(pipeline) | "Collect" >> beam.ParDo(_Collect())
    return _Collect.elements


class _Collect(beam.DoFn):
    """Collects all elements in a list. The local runner has a single worker, which runs in this process."""

    elements: list = []

    def start_bundle(self) -> None:
        _Collect.elements = []

    def process(self, element) -> None:
        _Collect.elements.append(element)


def global_shuffle(batches: list[list[InputRecord]], num_shards: dict[str, int], made: MadeRun) -> dict[tuple[str, int], list[str]]:
    """Runs the shuffle on the local runner. Returns the keys of each planned shard, by split and index."""
    references = [make_references(batch, made) for batch in batches]
    runs = [write_run([batch], made.run.spool_directory) for batch in references]
    is_given = batches[0][0].split is not None
    listing = make_listing(
        splits=tuple(num_shards), fractions=None if is_given else made.options.splits, num_inputs=sum(map(len, batches)), num_bytes=100
    )

    def make_output(root: beam.Pipeline) -> beam.PCollection:
        listed = Listed(
            root | "Runs" >> beam.Create(runs),
            root | "Counts" >> beam.Create(counts_of_parts(references)),
            root | "Listing" >> beam.Create([listing]),
            root | "DeadLetters" >> beam.Create([]),
        )
        return listed.runs | GlobalShuffle(made.spec(ShuffleSpec), listed, lambda references, listing: [])

    with mock.patch.object(shuffle, "check_sample", lambda sample, listing, counts, spec, measure: num_shards):
        planned = run(make_output)
    plan = read_plan(made.run)
    assert sorted(planned) == sorted((str(shard.address), shard) for shard in plan.shards())
    return {shard.address[:2]: [key.decode() for key in read_planned_shard(made.run, shard).keys] for shard in plan.shards()}


def expected_order(keys: Iterable[str], seed: int = 0) -> list[str]:
    return sorted(keys, key=lambda key: shuffle_key(seed, key.encode()))


def test_references_are_in_exact_rank_order_in_equal_shards(tmp_path):
    batches = [images(KEYS[start : start + 100]) for start in range(0, len(KEYS), 100)]
    shards = global_shuffle(batches, {"train": 7}, make_run(tmp_path, splits=ALL_IN_ONE))
    assert list(shards) == [("train", index) for index in range(7)]
    assert sum(shards.values(), []) == expected_order(KEYS)
    assert {len(keys) for keys in shards.values()} <= {428, 429}


@pytest.mark.slow
def test_listing_order_and_batch_size_do_not_change_the_plan(tmp_path, monkeypatch):
    made = make_run(tmp_path / "first", splits=ALL_IN_ONE)
    expected = global_shuffle([images(KEYS)], {"train": 5}, made)
    shuffled = random.Random(1).sample(KEYS, len(KEYS))
    for block_references in (1 << 19, 100):
        monkeypatch.setattr("beam_pipelines.shuffle.ranks.BLOCK_REFERENCES", block_references)
        made = make_run(tmp_path / f"{block_references}", splits=ALL_IN_ONE)
        batches = [images(shuffled[start : start + 33]) for start in range(0, len(KEYS), 33)]
        assert global_shuffle(batches, {"train": 5}, made) == expected, block_references


def test_splits_are_ranked_separately(tmp_path):
    evens, odds = KEYS[::2], KEYS[1::2]
    batches = [images(evens, "train"), images(odds, "test")]
    shards = global_shuffle(batches, {"train": 3, "test": 2}, make_run(tmp_path))
    for split, expected in (("train", evens), ("test", odds)):
        assert sum((keys for (item, _), keys in shards.items() if item == split), []) == expected_order(expected), split


def test_single_example_and_many_shards_per_block(tmp_path, monkeypatch):
    alone = global_shuffle([images(["0/0"])], {"train": 1}, make_run(tmp_path / "alone", splits=ALL_IN_ONE))
    assert alone == {("train", 0): ["0/0"]}
    monkeypatch.setattr("beam_pipelines.shuffle.ranks.BLOCK_REFERENCES", 1000)
    made = make_run(tmp_path / "many", splits=ALL_IN_ONE)
    shards = global_shuffle([images(KEYS[:500]), images(KEYS[500:])], {"train": 100}, made)
    assert sum(shards.values(), []) == expected_order(KEYS)


def test_another_seed_changes_the_order_but_not_the_splits(tmp_path):
    actual = {}
    for seed in (0, 7):
        shards = global_shuffle([images(KEYS)], {"train": 1, "validation": 1}, make_run(tmp_path / f"{seed}", seed=seed))
        actual[seed] = shards
        assert all(keys == expected_order(keys, seed) for keys in shards.values()), seed
    assert {location: set(keys) for location, keys in actual[0].items()} == {slot: set(keys) for slot, keys in actual[7].items()}
    assert actual[0] != actual[7]


def test_repeated_keys_fail_the_run_without_a_plan(tmp_path):
    made = make_run(tmp_path, splits=ALL_IN_ONE)
    with pytest.raises(Exception) as caught:
        global_shuffle([images(KEYS[:9]), images(KEYS[5:11])], {"train": 2}, made)
    error = find_user_facing(caught.value)
    assert isinstance(error, UserError) and "once: 4." in str(error)
    assert all(repr(key) in str(error) for key in KEYS[5:9])
    assert read_plan(made.run) is None


# Lost and repeated elements

BLOCK_MEDDLERS = {
    "lost chunks": lambda chunks: chunks[1:],
    "repeated chunks": lambda chunks: [*chunks, chunks[0]],
    "lost and repeated chunks": lambda chunks: [*chunks[1:], chunks[-1]],
}
SHARD_MEDDLERS = {
    "lost part of a block": lambda chunks: chunks[1:],
    "repeated part of a block": lambda chunks: [*chunks, chunks[-1]],
}


def shuffle_with(made: MadeRun, **meddlers: Callable) -> list:
    sizes = (11, 30, 57)  # batches have different numbers of references in each block
    edges = [0, *itertools.accumulate(sizes)]
    keys = random.Random(0).sample(KEYS, edges[-1])
    batches = [make_references(images(keys[begin:end]), made) for begin, end in itertools.pairwise(edges)]
    return plan_without_beam(batches, {"train": 4}, made, block_references=30, **meddlers)[0]


@pytest.mark.parametrize("meddle", BLOCK_MEDDLERS.values(), ids=BLOCK_MEDDLERS)
def test_lost_or_repeated_chunks_of_a_block_fail_the_run(tmp_path, meddle):
    made = make_run(tmp_path, splits=ALL_IN_ONE)
    assert len(shuffle_with(made)) == 4
    for meddled in range(4):
        with pytest.raises(RunError, match="references with ranks .* lost or repeated"):
            shuffle_with(made, change_block=lambda block, chunks: meddle(chunks) if block == meddled else chunks)
            pytest.fail(f"block {meddled}")


@pytest.mark.parametrize("meddle", SHARD_MEDDLERS.values(), ids=SHARD_MEDDLERS)
def test_lost_or_repeated_parts_of_a_shard_fail_the_run(tmp_path, meddle):
    made = make_run(tmp_path, splits=ALL_IN_ONE)
    for meddled in range(4):
        with pytest.raises(RunError, match="references arrived.* lost or repeated"):
            shuffle_with(made, change_shard=lambda address, chunks: meddle(chunks) if address[1] == meddled else chunks)
            pytest.fail(f"shard {meddled}")


def test_lost_blocks_or_shards_fail_the_run(tmp_path):
    made = make_run(tmp_path, splits=ALL_IN_ONE)
    lost = make_references(images(KEYS[:100]), made)
    with pytest.raises(RunError, match="lost or repeated"):
        plan_without_beam([lost], {"train": 4}, made, lambda block, chunks: [] if block == 1 else chunks, block_references=40)
    planned, collisions, plan = plan_without_beam([lost], {"train": 4}, made)
    for arrived in (planned[:3], [*planned, planned[0]]):
        with pytest.raises(RunError, match=f"{len(arrived)} of 4 shards .* lost or repeated"):
            shuffle.finish(b"", arrived, [collisions], [], plan, make_listing(), made.spec(ShuffleSpec), "1")
    assert read_plan(made.run) is None


def mean_run_length(keys: list[str]) -> float:
    return len(keys) / LabelSequence.of(np.array([label_of(key) for key in keys])).num_runs


EXPECTED_RUN = expected_run_length([300] * NUM_LABELS)


def is_shuffled(keys: list[str]) -> bool:
    """Returns whether the mean length of sequences of equal labels is within 10 % of that in a random permutation."""
    assert sorted(keys) == sorted(KEYS)
    return abs(mean_run_length(keys) / EXPECTED_RUN - 1) < 0.1


def test_global_shuffle_breaks_runs_of_equal_labels(tmp_path):
    shards = global_shuffle([images(KEYS)], {"train": 4}, make_run(tmp_path, splits=ALL_IN_ONE))
    assert is_shuffled(sum(shards.values(), []))


def beam_reshuffle(root: beam.Pipeline) -> beam.PCollection:
    return root | beam.Create(KEYS, reshuffle=False) | beam.Reshuffle()


def beam_random_keys(root: beam.Pipeline) -> beam.PCollection:
    return (
        root
        | beam.Create(KEYS, reshuffle=False)
        | beam.WithKeys(lambda key: random.getrandbits(32))
        | beam.GroupByKey()
        | beam.FlatMap(lambda element: element[1])
    )


@pytest.mark.parametrize("beam_shuffle", [beam_reshuffle, beam_random_keys])
def test_shuffles_of_beam_are_not_random_permutations(beam_shuffle):
    """Recordmill has its own shuffle because Beam's shuffles are not random. This test fails if Beam changes."""
    assert not is_shuffled(run(beam_shuffle)), mean_run_length(run(beam_shuffle))
