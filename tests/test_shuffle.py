"""GlobalShuffle on the local runner, beside what Beam itself offers."""

import random

import apache_beam as beam
import numpy as np
import pytest

from beam_pipelines.jobs import make_runner, parse_pipeline_options
from beam_pipelines.quality import LabelSequence, expected_run_length
from beam_pipelines.ranks import shuffle_key, shuffle_orders
from beam_pipelines.references import ROW, References
from beam_pipelines.shuffle import GlobalShuffle

NUM_LABELS = 10
KEYS = [f"{label}/{index:04d}" for label in range(NUM_LABELS) for index in range(300)]  # class by class


def label_of(key: str) -> int:
    return int(key.split("/")[0])


def pack(keys: list[str], split: int = 0) -> bytes:
    encoded = [key.encode() for key in keys]
    rows = np.zeros(len(keys), ROW)
    rows["order"] = shuffle_orders(0, encoded)
    rows["label"] = [label_of(key) for key in keys]
    rows["split"] = split
    return References(rows, encoded, [b""] * len(keys)).pack()


def run(make_output) -> list:
    """The elements of a PCollection, in the order in which the local runner hands them on."""
    options = parse_pipeline_options([])
    with beam.Pipeline(runner=make_runner(options), options=options) as pipeline:
        make_output(pipeline) | "Collect" >> beam.ParDo(_Collect())
    return _Collect.elements


class _Collect(beam.DoFn):
    """Keeps what it sees: the local runner's one worker runs in this process."""

    elements: list = []

    def start_bundle(self) -> None:
        _Collect.elements = []

    def process(self, element) -> None:
        _Collect.elements.append(element)


def global_shuffle(batches: list[bytes], num_shards: dict[str, int]):
    def make_output(root: beam.Pipeline) -> beam.PCollection:
        plan = root | "Plan" >> beam.Create([num_shards])
        return root | beam.Create(batches) | GlobalShuffle(0, beam.pvalue.AsSingleton(plan))

    shards = {address: References.unpack(packed).keys for address, packed in run(make_output)}
    return {address: [key.decode() for key in shards[address]] for address in sorted(shards)}


def test_references_come_in_exact_rank_order_in_equal_shards():
    batches = [pack(KEYS[start : start + 100]) for start in range(0, len(KEYS), 100)]
    shards = global_shuffle(batches, {"train": 7})
    assert list(shards) == [("train", index, 7) for index in range(7)]
    assert sum(shards.values(), []) == sorted(KEYS, key=lambda key: shuffle_key(0, key.encode()))
    assert {len(keys) for keys in shards.values()} <= {428, 429}


def test_the_order_of_the_listing_and_the_size_of_batches_change_nothing():
    expected = global_shuffle([pack(KEYS)], {"train": 5})
    shuffled = random.Random(1).sample(KEYS, len(KEYS))
    assert global_shuffle([pack(shuffled[start : start + 33]) for start in range(0, len(KEYS), 33)], {"train": 5}) == expected


def test_splits_are_ranked_apart():
    evens, odds = KEYS[::2], KEYS[1::2]
    shards = global_shuffle([pack(evens, 0), pack(odds, 1)], {"train": 3, "test": 2})
    assert sorted(sum((keys for (split, _, _), keys in shards.items() if split == "train"), [])) == sorted(evens)
    assert sorted(sum((keys for (split, _, _), keys in shards.items() if split == "test"), [])) == sorted(odds)


def test_one_example_and_many_shards_a_block(monkeypatch):
    assert global_shuffle([pack(["0/0"])], {"train": 1}) == {("train", 0, 1): ["0/0"]}
    monkeypatch.setattr("beam_pipelines.ranks.MAX_BLOCKS", 3)
    shards = global_shuffle([pack(KEYS[:500]), pack(KEYS[500:])], {"train": 100})
    assert sum(shards.values(), []) == sorted(KEYS, key=lambda key: shuffle_key(0, key.encode()))


def mean_run_length(keys: list[str]) -> float:
    return len(keys) / LabelSequence.of(np.array([label_of(key) for key in keys])).num_runs


EXPECTED_RUN = expected_run_length([300] * NUM_LABELS)


def is_shuffled(keys: list[str]) -> bool:
    """Within a tenth of what a true permutation gives."""
    assert sorted(keys) == sorted(KEYS)
    return abs(mean_run_length(keys) / EXPECTED_RUN - 1) < 0.1


def test_the_global_shuffle_ends_runs_of_same_label_records():
    assert is_shuffled(sum(global_shuffle([pack(KEYS)], {"train": 4}).values(), []))


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


@pytest.mark.parametrize("beams_own", [beam_reshuffle, beam_random_keys])
def test_beams_own_shuffles_fail_the_same_test(beams_own):
    """Why this project has a shuffle of its own. If Beam learns to shuffle, this says so."""
    assert not is_shuffled(run(beams_own)), mean_run_length(run(beams_own))
