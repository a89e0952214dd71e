"""The files of a data set, opened: shards that are checked once, indexes that stay open with it, and few files at a time."""

import dataclasses
import gc
import os
import pathlib
import shutil

import numpy as np
import pytest

import tf_input
from made_shards import write_shard
from prepared import mixed_images
from range_server import RangeServer
from tf_input.dataset_format import Manifest, ShardInfo
from tf_input.storage import local_files, store
from tf_input.storage.open_files import open_files
from tf_input.storage.index import ShardIndex
from tf_input.storage.store import Store

NUM_SHARDS = 300


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[pathlib.Path, Manifest]:
    folder = tmp_path_factory.mktemp("many")
    shards = tuple(write_shard(folder, f"shard-{number}", [b"%d" % number]) for number in range(NUM_SHARDS))
    fields = {field.name: None for field in dataclasses.fields(Manifest)}
    return folder, Manifest(**{**fields, "splits": {"train": shards}})


def shards_of(manifest: Manifest) -> tuple[ShardInfo, ...]:
    return manifest.splits["train"]


@pytest.fixture
def opened(monkeypatch) -> list[str]:
    """The shards whose indexes were opened."""
    actual = []

    class Counted(ShardIndex):
        def __init__(self, path: str, shard: ShardInfo, *given: object, **named: object) -> None:
            actual.append(shard.name)
            super().__init__(path, shard, *given, **named)

    monkeypatch.setattr(store, "ShardIndex", Counted)
    return actual


def files_in(folder: pathlib.Path) -> set[str]:
    """Those that this process has open, or mapped."""
    actual = {f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")}
    paths = {os.readlink(link) for link in actual if os.path.islink(link)}
    paths |= {line.split()[-1] for line in pathlib.Path("/proc/self/maps").read_text().splitlines()}
    return {path for path in paths if path.startswith(f"{folder}/")}


@pytest.mark.slow
def test_what_training_has_open_stays_open_and_goes_with_the_dataset(tmp_path_factory, opened):
    folder = tmp_path_factory.mktemp("opened") / "mixed"
    dataset = tf_input.open(shutil.copytree(mixed_images(tmp_path_factory), folder))
    options = {"batch_size": 8, "image_size": 16, "memory_budget": 0, "seed": 0}
    train = dataset.batches("train", **options, shuffle="exact")
    shards = {split: {str(folder / shard.name) for shard in of_split} for split, of_split in dataset.manifest.splits.items()}
    for epoch in range(3):
        batches = iter(train)
        next(batches)
        assert shards["train"] <= files_in(folder)
        assert len(list(dataset.batches("validation", **options))) == 3
        assert shards["train"] <= files_in(folder), "training reads on"
        assert len(list(batches)) == 11
        assert sorted(opened) == sorted(shard.name for shard in dataset.manifest.splits["train"]), epoch
    del batches
    gc.collect()
    assert files_in(folder) == set()
    del train, dataset
    gc.collect()
    assert files_in(folder) == set()


def test_of_many_threads_one_opens_an_index(made, opened):
    folder, manifest = made
    files = Store(folder, open_files(folder), manifest)
    for _ in range(3):
        assert len(files.open_records(shards_of(manifest)[:50], "raise", 1 << 20).read(np.arange(50).repeat(16))) == 800
    assert sorted(opened) == sorted(shard.name for shard in shards_of(manifest)[:50])


def test_few_files_are_open_at_a_time(made, monkeypatch, opened):
    """Each takes a file descriptor, of which a process may have 1024."""
    monkeypatch.setattr(local_files, "_MOST_OPEN_FILES", 128)
    folder, manifest = made
    store = Store(folder, open_files(folder), manifest)
    before = len(os.listdir("/proc/self/fd"))
    reader = store.open_records(shards_of(manifest), "raise", 1 << 20)
    for _ in range(2):
        assert reader.read(np.arange(NUM_SHARDS)).tolist() == [b"%d" % number for number in range(NUM_SHARDS)]
    assert len(os.listdir("/proc/self/fd")) - before <= 128
    assert len(opened) == NUM_SHARDS


def test_shards_of_a_store_are_looked_at_once(made, monkeypatch):
    pytest.importorskip("obstore", reason="needs obstore: pip install 'recordmill[remote]'")
    folder, manifest = made
    with RangeServer(folder) as server:
        for name, value in server.environment("s3").items():
            monkeypatch.setenv(name, value)
        store = Store(server.root("s3"), open_files(server.root("s3")), manifest)
        for _ in range(3):
            store.check(shards_of(manifest))
        assert len(server.requests) == server.num_lists == 1, "a thousand objects a request, and 600 files"
        assert store.counts(shards_of(manifest), "skip") == [1] * NUM_SHARDS
