"""Tests that intact shards are rejected if the shards do not match the manifest."""

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

# All records have the same length, so that the index of one dataset also fits the shards of another dataset.
COUNT = 40


def records(letter: bytes) -> list[bytes]:
    return [b"%s%03d" % (letter, number) for number in range(COUNT)]


def write_dataset(folder: pathlib.Path, splits: dict[str, list[bytes]]) -> Manifest:
    folder.mkdir()
    shards = {split: (write_shard(folder, f"{split}-0", values),) for split, values in splits.items()}
    fields = {field.name: None for field in dataclasses.fields(Manifest)}
    return Manifest(**{**fields, "splits": shards})


def read(store: Store, shards: tuple[ShardInfo, ...], skip_corrupt: bool = False) -> list[bytes]:
    return store.open_records(shards, skip_corrupt, 1 << 20).read(np.arange(COUNT)).tolist()


@pytest.fixture
def folder_and_manifest(tmp_path: pathlib.Path) -> tuple[pathlib.Path, Manifest]:
    return tmp_path / "dataset", write_dataset(tmp_path / "dataset", {"train": records(b"a"), "test": records(b"b")})


def swap(folder: pathlib.Path, *names: str) -> None:
    for name in names:
        first, second = folder / f"train-0{name}", folder / f"test-0{name}"
        first.rename(folder / "x")
        second.rename(first)
        (folder / "x").rename(second)


SWAPPED_FILES = {"shards": [""], "indexes": [".idx"], "both": ["", ".idx"]}


@pytest.mark.parametrize("skip_corrupt", [False, True])
@pytest.mark.parametrize("case", SWAPPED_FILES)
def test_swapped_shards_or_indexes_raise_an_error(folder_and_manifest, case, skip_corrupt):
    folder, manifest = folder_and_manifest
    swap(folder, *SWAPPED_FILES[case])
    with pytest.raises(ValueError, match=r"train-0( .*manifest.json|\.idx: .* train-0)"):
        read(Store(folder, open_files(folder), manifest), manifest.splits["train"], skip_corrupt)


# Records of the new dataset, and whether reading can continue.
REPLACEMENTS = {
    "different": (records(b"c"), False),
    "same first record": ([*records(b"a")[:1], *records(b"c")[1:]], False),
    "same first and last records": ([*records(b"a")[:1], *records(b"c")[1:-1], *records(b"a")[-1:]], False),
    "identical": (records(b"a"), True),
}


@pytest.mark.parametrize("in_place", [False, True], ids=["renamed", "overwritten"])
@pytest.mark.parametrize("case", REPLACEMENTS)
def test_dataset_replaced_while_reading_raises_an_error(folder_and_manifest, tmp_path, case, in_place):
    folder, manifest = folder_and_manifest
    new_records, is_same = REPLACEMENTS[case]
    store = Store(folder, open_files(folder), manifest)
    assert read(store, manifest.splits["train"]) == records(b"a")
    write_dataset(tmp_path / "new", {"train": new_records, "test": records(b"b")})
    if in_place:
        for path in (tmp_path / "new").iterdir():
            (folder / path.name).write_bytes(path.read_bytes())
            os.utime(folder / path.name, ns=(1, 1))
    else:
        shutil.rmtree(folder)
        (tmp_path / "new").rename(folder)
    store.files.release()  # closes the files, as between two epochs
    reader = store.open_records(manifest.splits["train"], True, 1 << 20)
    if is_same:
        assert reader.read(np.arange(COUNT)).tolist() == records(b"a")
        return
    with pytest.raises(ReplacedShardError, match=f"shard {folder}/train-0 "):
        reader.read(np.arange(COUNT))


@pytest.mark.parametrize("record", [0, 7, COUNT - 1])
@pytest.mark.parametrize("byte", [0, 8, 12, -1], ids=["length", "length checksum", "data", "data checksum"])
def test_corrupt_record_is_not_mistaken_for_another_shard(folder_and_manifest, record, byte):
    """A corrupt first or last record can be skipped, although these records are compared with the manifest."""
    folder, manifest = folder_and_manifest
    size = 16 + len(records(b"a")[0])
    flip(folder / "train-0", 8 * (record * size + (byte if byte >= 0 else size - 1)))
    actual = read(Store(folder, open_files(folder), manifest), manifest.splits["train"], True)
    assert [value for value in actual if value is not None] == [value for number, value in enumerate(records(b"a")) if number != record]
    with pytest.raises(ValueError, match=f"train-0: record {record}, "):
        read(Store(folder, open_files(folder), manifest), manifest.splits["train"])


def test_truncated_shard_is_read_up_to_its_end(folder_and_manifest):
    folder, manifest = folder_and_manifest
    os.truncate(folder / "train-0", 16 + 4 + 5)
    assert Store(folder, open_files(folder), manifest).open_records(manifest.splits["train"], True, 1).read(np.arange(1)).tolist() == [b"a000"]


@pytest.mark.parametrize("numbers", [np.arange(COUNT), np.arange(5, 9)], ids=["all records", "middle records"])
def test_replaced_remote_shard_raises_an_error_while_reading(folder_and_manifest, monkeypatch, numbers):
    pytest.importorskip("obstore", reason="needs obstore: pip install 'recordmill[remote]'")
    folder, manifest = folder_and_manifest
    with RangeServer(folder) as server:
        for name, value in server.environment("s3").items():
            monkeypatch.setenv(name, value)
        store = Store(server.root("s3"), open_files(server.root("s3")), manifest)
        reader = store.open_records(manifest.splits["train"], False, 1 << 20)
        assert reader.read(numbers).tolist() == [records(b"a")[number] for number in numbers]
        swap(folder, "")
        store.files.release()  # closes the files, as between two epochs
        with pytest.raises(ReplacedShardError, match="train-0"):
            reader.read(numbers)


@pytest.mark.slow
def test_training_fails_if_its_dataset_is_prepared_again(tmp_path):
    from beam_pipelines.__main__ import main

    for name, first in (("old", 0), ("new", 64)):
        images = np.arange(first, first + 64, dtype=np.uint8)[:, None, None, None] * np.ones((1, 8, 8, 3), np.uint8)
        np.savez(tmp_path / f"{name}.npz", images=images, labels=np.arange(64) % 2)
    prepare = ["prepare", "--output", str(tmp_path / "out"), "--splits=train=0.5,test=0.5", "--num_shards=4", "--input"]
    assert main([*prepare, str(tmp_path / "old.npz")]) == 0
    train = tf_input.open(tmp_path / "out").batches("train", batch_size=4, cache_in_memory=0, seed=0)
    num_batches = sum(1 for _ in train)
    assert num_batches > 4
    assert main([*prepare, str(tmp_path / "new.npz"), "--overwrite"]) == 0
    with pytest.raises(Exception, match="manifest.json"):
        for _ in train:
            pass
