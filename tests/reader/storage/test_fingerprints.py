"""Shards that are valid but not those that the manifest names: swapped, replaced during a training, or of another dataset."""

import dataclasses
import os
import pathlib
import shutil

import numpy as np
import pytest

import tf_input
from made_shards import flip, write_shard
from range_server import RangeServer
from tf_input.dataset_format import Manifest, ShardInfo
from tf_input.storage.fingerprints import ReplacedShardError
from tf_input.storage.open_files import open_files
from tf_input.storage.store import Store

# Records of one length, as fixed-size images have: the index of one dataset fits every other.
COUNT = 40


def records(letter: bytes) -> list[bytes]:
    return [b"%s%03d" % (letter, number) for number in range(COUNT)]


def make(folder: pathlib.Path, splits: dict[str, list[bytes]]) -> Manifest:
    folder.mkdir()
    shards = {split: (write_shard(folder, f"{split}-0", of_split),) for split, of_split in splits.items()}
    fields = {field.name: None for field in dataclasses.fields(Manifest)}
    return Manifest(**{**fields, "splits": shards})


def read(store: Store, shards: tuple[ShardInfo, ...], on_error: str = "raise") -> list[bytes]:
    return store.open_records(shards, on_error, 1 << 20).read(np.arange(COUNT)).tolist()


@pytest.fixture
def made(tmp_path: pathlib.Path) -> tuple[pathlib.Path, Manifest]:
    return tmp_path / "made", make(tmp_path / "made", {"train": records(b"a"), "test": records(b"b")})


def swap(folder: pathlib.Path, *names: str) -> None:
    for name in names:
        item, other = folder / f"train-0{name}", folder / f"test-0{name}"
        item.rename(folder / "x")
        other.rename(item)
        (folder / "x").rename(other)


SWAPS = {"shards": [""], "indexes": [".idx"], "both": ["", ".idx"]}


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("case", SWAPS)
def test_shards_or_indexes_that_were_swapped_are_an_error(made, case, on_error):
    folder, manifest = made
    swap(folder, *SWAPS[case])
    with pytest.raises(ValueError, match=r"train-0( is not the one that manifest.json names|\.idx: the index does not belong to shard train-0)"):
        read(Store(folder, open_files(folder), manifest), manifest.splits["train"], on_error)


# The dataset that takes the place of another one: its records, and whether the reader can go on with it.
REPLACED = {
    "others": (records(b"c"), False),
    "others but the first": ([*records(b"a")[:1], *records(b"c")[1:]], False),
    "others but the first and the last": ([*records(b"a")[:1], *records(b"c")[1:-1], *records(b"a")[-1:]], False),
    "the same": (records(b"a"), True),
}


@pytest.mark.parametrize("in_place", [False, True], ids=["by a rename", "byte by byte"])
@pytest.mark.parametrize("case", REPLACED)
def test_a_dataset_that_is_replaced_while_it_is_read_is_an_error(made, tmp_path, case, in_place):
    folder, manifest = made
    others, is_same = REPLACED[case]
    store = Store(folder, open_files(folder), manifest)
    assert read(store, manifest.splits["train"]) == records(b"a")
    make(tmp_path / "new", {"train": others, "test": records(b"b")})
    if in_place:
        for path in (tmp_path / "new").iterdir():
            (folder / path.name).write_bytes(path.read_bytes())
            os.utime(folder / path.name, ns=(1, 1))
    else:
        shutil.rmtree(folder)
        (tmp_path / "new").rename(folder)
    store.files.release()  # as between two epochs
    reader = store.open_records(manifest.splits["train"], "skip", 1 << 20)
    if is_same:
        assert reader.read(np.arange(COUNT)).tolist() == records(b"a")
        return
    with pytest.raises(ReplacedShardError, match=f"shard {folder}/train-0 (is not the one|changed while)"):
        reader.read(np.arange(COUNT))


@pytest.mark.parametrize("record", [0, 7, COUNT - 1])
@pytest.mark.parametrize("byte", [0, 8, 12, -1], ids=["length", "its checksum", "data", "their checksum"])
def test_a_corrupt_record_is_no_other_shard(made, record, byte):
    """Even at the ends of the shard, whose checksums are compared: it is skipped, or named."""
    folder, manifest = made
    size = 16 + len(records(b"a")[0])
    flip(folder / "train-0", 8 * (record * size + (byte if byte >= 0 else size - 1)))
    actual = read(Store(folder, open_files(folder), manifest), manifest.splits["train"], "skip")
    assert [item for item in actual if item is not None] == [entry for number, entry in enumerate(records(b"a")) if number != record]
    with pytest.raises(ValueError, match=f"train-0: record {record}, "):
        read(Store(folder, open_files(folder), manifest), manifest.splits["train"])


def test_a_shard_that_is_cut_short_is_read_as_far_as_it_goes(made):
    folder, manifest = made
    os.truncate(folder / "train-0", 16 + 4 + 5)
    assert Store(folder, open_files(folder), manifest).open_records(manifest.splits["train"], "skip", 1).read(np.arange(1)).tolist() == [b"a000"]


@pytest.mark.parametrize("numbers", [np.arange(COUNT), np.arange(5, 9)], ids=["all", "some in the middle"])
def test_shards_of_a_store_are_compared_as_they_are_read(made, monkeypatch, numbers):
    pytest.importorskip("obstore", reason="needs obstore: pip install 'recordmill[remote]'")
    folder, manifest = made
    with RangeServer(folder) as server:
        for name, value in server.environment("s3").items():
            monkeypatch.setenv(name, value)
        store = Store(server.root("s3"), open_files(server.root("s3")), manifest)
        reader = store.open_records(manifest.splits["train"], "raise", 1 << 20)
        assert reader.read(numbers).tolist() == [records(b"a")[number] for number in numbers]
        swap(folder, "")
        store.files.release()  # as between two epochs
        with pytest.raises(ReplacedShardError, match="train-0 is not the one"):
            reader.read(numbers)


@pytest.mark.slow
def test_a_training_whose_dataset_is_prepared_anew_fails(tmp_path):
    from beam_pipelines.__main__ import main

    for name, first in (("old", 0), ("new", 64)):
        images = np.arange(first, first + 64, dtype=np.uint8)[:, None, None, None] * np.ones((1, 8, 8, 3), np.uint8)
        np.savez(tmp_path / f"{name}.npz", images=images, labels=np.arange(64) % 2)
    prepare = ["prepare", "--output", str(tmp_path / "out"), "--splits=train=0.5,test=0.5", "--num_shards=4", "--input"]
    assert main([*prepare, str(tmp_path / "old.npz")]) == 0
    train = tf_input.open(tmp_path / "out").batches("train", batch_size=4, memory_budget=0, seed=0)
    num_batches = sum(1 for _ in train)
    assert num_batches > 4
    assert main([*prepare, str(tmp_path / "new.npz"), "--overwrite"]) == 0
    with pytest.raises(Exception, match="is not the one that manifest.json names"):
        for _ in train:
            pass
