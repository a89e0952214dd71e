"""What an epoch asks of a store, in bytes and in requests, and what of it is held."""

import functools
import pathlib
from typing import Callable

import numpy as np
import pytest

import tf_input
from beam_pipelines.__main__ import main
from made_images import encode, write_files
from range_server import RangeServer

pytestmark = pytest.mark.slow
pytest.importorskip("obstore", reason="needs obstore: pip install 'recordmill[remote]'")

UNIT = 8 << 20
# Each long enough for runs of more than 8 MB: shards that are one run, and shards that are cut into some.
NUM_SHARDS = {"runs that are shards": 6, "shards of some runs": 2}


@pytest.fixture(scope="module")
def photographs(tmp_path_factory) -> pathlib.Path:
    """220 kB each of noise, which no JPEG makes smaller."""
    random = np.random.default_rng(0)
    pixels = [encode(random.integers(0, 256, (600, 600, 3), dtype=np.uint8), "JPEG") for _ in range(8)]
    # What follows the end of an image is passed on as it is, and tells them apart.
    return write_files(tmp_path_factory.mktemp("source"), {f"{'ab'[i % 2]}/{i:03d}.jpg": pixels[i % 8] for i in range(420)})


@pytest.fixture(scope="module")
def made(photographs, tmp_path_factory) -> Callable[[str], pathlib.Path]:
    @functools.cache
    def make(case: str) -> pathlib.Path:
        folder = tmp_path_factory.mktemp("made")
        options = ["--num_shards", f"train={NUM_SHARDS[case]}", "--splits", "train=1", "--check=header"]
        assert main(["prepare", "--input", str(photographs), "--output", str(folder / "out"), *options]) == 0
        return folder / "out"

    return make


@pytest.mark.parametrize("scheme, case", [("gs", "runs that are shards"), ("s3", "shards of some runs")])
def test_of_an_epoch_each_byte_is_asked_for_once_in_long_runs(made, monkeypatch, scheme, case):
    with RangeServer(made(case)) as server:
        for name, value in server.environment(scheme).items():
            monkeypatch.setenv(name, value)
        dataset = tf_input.open(server.root(scheme))
        shards = dataset.manifest.splits["train"]
        split_bytes = sum(shard.num_bytes for shard in shards)
        assert split_bytes > 8 * UNIT
        server.reset()
        read = {"batch_size": 32, "inputs": "key", "memory_budget": 0, "seed": 0}  # records are read whole, and none is decoded
        num_images = sum(len(labels) for _, labels in dataset.batches("train", **read))
        assert num_images == 420 and server.num_bytes <= 1.05 * split_bytes
        assert len(server.requests) <= 1.2 * split_bytes / UNIT, server.requests
        # Of a part of it, what is chosen, with what lies between two that are near.
        data = dataset.batches("train", **read, subset=0.1)
        server.reset()
        num_chosen = sum(len(labels) for _, labels in data)
        assert 20 < num_chosen < 70 and server.num_bytes <= 1.7 * num_chosen / 420 * split_bytes
        assert len(server.requests) <= num_chosen + 2 * len(shards), server.requests  # an index of each, and a look at its end


# Options, hosts, how often they ask for the split together, and for each 8 MB of it.
HOSTS = {
    "two": ({}, 2, 1, 1.2),
    "four": ({}, 4, 1, 1.5),
    "three, whose stretches are shorter": ({}, 3, 1, 20),
    "some that do not divide the lanes": ({}, 5, 5, 5),
    "a split within the first window": ({"read_buffer": 2 << 30}, 2, 2, 2.4),
    "a split that is not shuffled": ({"shuffle": False}, 2, 2, 2.4),
}


@pytest.mark.parametrize("case", HOSTS)
def test_hosts_together_ask_for_each_byte_once_where_they_divide_the_lanes_of_more_than_one_window(made, monkeypatch, case):
    options, num_hosts, times, most_requests = HOSTS[case]
    with RangeServer(made("runs that are shards")) as server:
        for name, value in server.environment("gs").items():
            monkeypatch.setenv(name, value)
        dataset = tf_input.open(server.root("gs"))
        split_bytes = sum(shard.num_bytes for shard in dataset.manifest.splits["train"])
        read = {"batch_size": 60, "inputs": "key", "memory_budget": 0, "seed": 0, **options}
        parts = [dataset.batches("train", hosts=(num_hosts, index), **read) for index in range(num_hosts)]
        server.reset()
        assert [sum(len(labels) for _, labels in part) for part in parts] == [420 // num_hosts] * num_hosts
        assert 0.95 * times <= server.num_bytes / split_bytes <= 1.05 * times
        assert server.count("tfrecord") <= most_requests * split_bytes / UNIT


def test_a_small_buffer_holds_no_more(made, monkeypatch):
    with RangeServer(made("runs that are shards")) as server:
        for name, value in server.environment("gs").items():
            monkeypatch.setenv(name, value)
        dataset = tf_input.open(server.root("gs"))
        split_bytes = sum(shard.num_bytes for shard in dataset.manifest.splits["train"])
        server.reset()
        data = dataset.batches("train", batch_size=8, inputs="key", memory_budget=0, seed=0, read_buffer=8 << 20)
        batches = iter(data)
        next(batches)
        cached = server.num_bytes  # once the first batch is there, as much as is read ahead; what is decoded ahead is of one window
        assert cached <= 32 << 20 < split_bytes
        assert sum(len(labels) for _, labels in batches) == 412 and server.num_bytes <= 1.05 * split_bytes
