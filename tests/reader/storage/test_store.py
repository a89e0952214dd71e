"""The files of a data set, opened: shards that are checked once, and few indexes at a time."""

import dataclasses
import os
import pathlib

import numpy as np
import pytest

from made_shards import write_shard
from range_server import RangeServer
from tf_input.dataset_format import Manifest, ShardInfo
from tf_input.storage import local_files
from tf_input.storage.open_files import open_files
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


def test_few_indexes_are_open_at_a_time(made, monkeypatch):
    """Each takes a file descriptor, of which a process may have 1024."""
    monkeypatch.setattr(local_files, "_MOST_OPEN_FILES", 128)
    folder, manifest = made
    store = Store(folder, open_files(folder), manifest)
    before = len(os.listdir("/proc/self/fd"))
    reader = store.open_records(shards_of(manifest), "raise", 1 << 20)
    for _ in range(2):
        assert reader.read(np.arange(NUM_SHARDS)).tolist() == [b"%d" % number for number in range(NUM_SHARDS)]
    assert len(os.listdir("/proc/self/fd")) - before <= 2 * 128
    assert store.index(shards_of(manifest)[-1]) is store.index(shards_of(manifest)[-1]), "opened once"


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
