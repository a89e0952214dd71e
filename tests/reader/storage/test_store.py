"""Tests that shards are checked once when they are opened, and that the number of open files is limited."""

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
def folder_and_manifest(tmp_path_factory) -> tuple[pathlib.Path, Manifest]:
    folder = tmp_path_factory.mktemp("many")
    shards = tuple(write_shard(folder, f"shard-{number}", [b"%d" % number]) for number in range(NUM_SHARDS))
    fields = {field.name: None for field in dataclasses.fields(Manifest)}
    return folder, Manifest(**{**fields, "splits": {"train": shards}})


def shards_of(manifest: Manifest) -> tuple[ShardInfo, ...]:
    return manifest.splits["train"]


@pytest.fixture
def opened_indexes(monkeypatch) -> list[str]:
    """Returns a list to which the name of each shard is appended when its index is opened."""
    names = []

    class RecordingIndex(ShardIndex):
        def __init__(self, path: str, shard: ShardInfo, *args: object, **kwargs: object) -> None:
            names.append(shard.name)
            super().__init__(path, shard, *args, **kwargs)

    monkeypatch.setattr(store, "ShardIndex", RecordingIndex)
    return names


def open_files_in(folder: pathlib.Path) -> set[str]:
    """Returns the files in a folder that this process has open or memory-mapped."""
    links = {f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")}
    paths = {os.readlink(link) for link in links if os.path.islink(link)}
    paths |= {line.split()[-1] for line in pathlib.Path("/proc/self/maps").read_text().splitlines()}
    return {path for path in paths if path.startswith(f"{folder}/")}


@pytest.mark.slow
def test_files_stay_open_during_training_and_close_with_the_dataset(tmp_path_factory, opened_indexes):
    folder = tmp_path_factory.mktemp("opened_indexes") / "mixed"
    dataset = tf_input.open(shutil.copytree(mixed_images(tmp_path_factory), folder))
    options = {"batch_size": 8, "image_size": 16, "cache_in_memory": 0, "seed": 0}
    train = dataset.batches("train", **options, shuffle="exact")
    shards = {split: {str(folder / shard.name) for shard in infos} for split, infos in dataset.manifest.splits.items()}
    for epoch in range(3):
        batches = iter(train)
        next(batches)
        assert shards["train"] <= open_files_in(folder)
        assert len(list(dataset.batches("validation", **options))) == 3
        # Reading another split keeps the files of the training split open.
        assert shards["train"] <= open_files_in(folder)
        assert len(list(batches)) == 11
        assert sorted(opened_indexes) == sorted(shard.name for infos in dataset.manifest.splits.values() for shard in infos), epoch
    del batches
    gc.collect()
    assert open_files_in(folder) == set()
    del train, dataset
    gc.collect()
    assert open_files_in(folder) == set()


def test_concurrent_reads_open_each_index_once(folder_and_manifest, opened_indexes):
    folder, manifest = folder_and_manifest
    files = Store(folder, open_files(folder), manifest)
    for _ in range(3):
        assert len(files.open_records(shards_of(manifest)[:50], False, 1 << 20).read(np.arange(50).repeat(16))) == 800
    assert sorted(opened_indexes) == sorted(shard.name for shard in shards_of(manifest)[:50])


def test_number_of_open_files_is_limited(folder_and_manifest, monkeypatch, opened_indexes):
    """By default, a process may have 1024 open file descriptors."""
    monkeypatch.setattr(local_files, "_MOST_OPEN_FILES", 128)
    folder, manifest = folder_and_manifest
    store = Store(folder, open_files(folder), manifest)
    before = len(os.listdir("/proc/self/fd"))
    reader = store.open_records(shards_of(manifest), False, 1 << 20)
    for _ in range(2):
        assert reader.read(np.arange(NUM_SHARDS)).tolist() == [b"%d" % number for number in range(NUM_SHARDS)]
    assert len(os.listdir("/proc/self/fd")) - before <= 128
    assert len(opened_indexes) == NUM_SHARDS


def test_remote_shards_are_checked_with_one_request(folder_and_manifest, monkeypatch):
    pytest.importorskip("obstore", reason="needs obstore: pip install 'recordmill[remote]'")
    folder, manifest = folder_and_manifest
    with RangeServer(folder) as server:
        for name, value in server.environment("s3").items():
            monkeypatch.setenv(name, value)
        store = Store(server.root("s3"), open_files(server.root("s3")), manifest)
        for _ in range(3):
            store.check(shards_of(manifest))
        assert len(server.requests) == server.num_lists == 1, "one list request returns up to a thousand objects"
        assert store.counts(shards_of(manifest), True) == [1] * NUM_SHARDS
