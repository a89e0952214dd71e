"""Tests read-ahead, and the number of requests and bytes that reading an epoch from an object store needs."""

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

CHUNK_BYTES = 8 << 20
# Every shard has more than 8 MB. In the second case, a shard has several chunks.
NUM_SHARDS = {"one chunk per shard": 6, "several chunks per shard": 2}


@pytest.fixture(scope="module")
def image_folder(tmp_path_factory) -> pathlib.Path:
    """Writes images of random noise. Each JPEG file has 220 kB."""
    random = np.random.default_rng(0)
    pixels = [encode(random.integers(0, 256, (600, 600, 3), dtype=np.uint8), "JPEG") for _ in range(8)]
    return write_files(tmp_path_factory.mktemp("source"), {f"{'ab'[i % 2]}/{i:03d}.jpg": pixels[i % 8] for i in range(420)})


@pytest.fixture(scope="module")
def dataset_folder(image_folder, tmp_path_factory) -> Callable[[str], pathlib.Path]:
    @functools.cache
    def make(case: str) -> pathlib.Path:
        folder = tmp_path_factory.mktemp("dataset_folder")
        options = ["--num_shards", f"train={NUM_SHARDS[case]}", "--splits", "train=1", "--check=header"]
        assert main(["prepare", "--input", str(image_folder), "--output", str(folder / "out"), *options]) == 0
        return folder / "out"

    return make


@pytest.mark.parametrize("scheme, case", [("gs", "one chunk per shard"), ("s3", "several chunks per shard")])
def test_epoch_requests_each_byte_once_in_large_chunks(dataset_folder, monkeypatch, scheme, case):
    with RangeServer(dataset_folder(case)) as server:
        for name, value in server.environment(scheme).items():
            monkeypatch.setenv(name, value)
        dataset = tf_input.open(server.root(scheme))
        shards = dataset.manifest.splits["train"]
        split_bytes = sum(shard.num_bytes for shard in shards)
        assert split_bytes > 8 * CHUNK_BYTES
        server.reset()
        read = {"batch_size": 32, "inputs": "key", "cache_in_memory": 0, "seed": 0}  # reads whole records without decoding images
        num_images = sum(len(labels) for _, labels in dataset.batches("train", **read))
        assert num_images == 420 and server.num_bytes <= 1.05 * split_bytes
        assert server.count("tfrecord") <= 1.2 * split_bytes / CHUNK_BYTES, server.requests
        assert len(server.requests) <= server.count("tfrecord") + len(shards) + 2, server.requests  # one request for each index
        # A subset reads the selected records and the short gaps between them.
        data = dataset.batches("train", **read, select=tf_input.Fold(10, 0).validation)
        server.reset()
        num_chosen = sum(len(labels) for _, labels in data)
        assert 20 < num_chosen < 70 and server.num_bytes <= 1.7 * num_chosen / 420 * split_bytes
        assert len(server.requests) <= num_chosen + 2 * len(shards), server.requests  # one request for each index and each end of a shard


# Options, number of hosts, how often they read the split in total, and maximum number of requests for each 8 MB.
HOSTS = {
    "two hosts": ({}, 2, 1, 1.2),
    "four hosts": ({}, 4, 1, 1.5),
    "three hosts with shorter chunks": ({}, 3, 1, 20),
    "hosts that do not divide the virtual shards": ({}, 5, 5, 5),
    "split smaller than a window": ({"read_buffer": 2 << 30}, 2, 2, 2.4),
    "unshuffled split": ({"shuffle": False}, 2, 2, 2.4),
}


@pytest.mark.parametrize("case", HOSTS)
def test_hosts_read_each_byte_once_if_they_divide_the_virtual_shards(dataset_folder, monkeypatch, case):
    options, num_hosts, num_reads, most_requests = HOSTS[case]
    with RangeServer(dataset_folder("one chunk per shard")) as server:
        for name, value in server.environment("gs").items():
            monkeypatch.setenv(name, value)
        dataset = tf_input.open(server.root("gs"))
        split_bytes = sum(shard.num_bytes for shard in dataset.manifest.splits["train"])
        read = {"batch_size": 60, "inputs": "key", "cache_in_memory": 0, "seed": 0, **options}
        parts = [dataset.batches("train", hosts=(num_hosts, index), **read) for index in range(num_hosts)]
        server.reset()
        assert [sum(len(labels) for _, labels in part) for part in parts] == [420 // num_hosts] * num_hosts
        assert 0.95 * num_reads <= server.num_bytes / split_bytes <= 1.05 * num_reads
        assert server.count("tfrecord") <= most_requests * split_bytes / CHUNK_BYTES


def test_small_buffer_limits_bytes_read_ahead(dataset_folder, monkeypatch):
    with RangeServer(dataset_folder("one chunk per shard")) as server:
        for name, value in server.environment("gs").items():
            monkeypatch.setenv(name, value)
        dataset = tf_input.open(server.root("gs"))
        split_bytes = sum(shard.num_bytes for shard in dataset.manifest.splits["train"])
        server.reset()
        data = dataset.batches("train", batch_size=8, inputs="key", cache_in_memory=0, seed=0, read_buffer=8 << 20)
        batches = iter(data)
        next(batches)
        assert server.num_bytes <= 32 << 20 < split_bytes
        assert sum(len(labels) for _, labels in batches) == 412 and server.num_bytes <= 1.05 * split_bytes
