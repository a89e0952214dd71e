"""What waits in the spool beside an image, or instead of one, has the same bytes however a run is made, and wherever its source lies."""

import hashlib
import pathlib
from typing import NamedTuple

import pytest

from beam_pipelines.__main__ import main
from beam_pipelines.runners import local
from beam_pipelines.storage.object_stores.open_object_store import open_object_store
from engines import digest, two_workers
from made_sources import CASES
from object_stores import put, reached, shared_server

# Extras beside images in files of their own, in parts of files, and in spools; several parts to list; columns of every kind. Each goes by one
# engine and one object store of several: the pairs, and not every source by everything.
ENGINES = {
    "coco, detection and segmentation": ("the worker alone", "s3"),
    "table csv, pairs": ("two workers", "gs"),
    "table parquet, embedded pairs": ("the worker alone", "s3"),
    "arrays idx gz, class": ("two workers", "gs"),
    "webdataset gz, pairs": ("the worker alone", "gs"),
    "webdataset, segmentation": ("two workers", "s3"),
    "tfrecord detection": ("the worker alone", "s3"),
}
OPTIONS = ("--name=made", "--num_shards=5")


class Prepared(NamedTuple):
    """A source by its path in a folder, the options that go with it, and the digest of its data set, by light processes."""

    folder: pathlib.Path
    path: str
    options: list[str]
    digest: dict[str, str]


@pytest.fixture(scope="module")
def prepared(name, tmp_path_factory) -> Prepared:
    case = CASES[name]
    root = tmp_path_factory.mktemp("source")
    path = case.write(root / "in")
    options = [*case.options, *([] if case.has_splits else ["--splits=train=0.5,test=0.5"]), *OPTIONS]
    assert prepare(str(root / "in"), path, str(root / "out"), *options) == 0
    return Prepared(root / "in", path, options, digest(root / "out"))


def prepare(folder: str, path: str, output: str, *options: str) -> int:
    return main(["prepare", "--input", f"{folder}/{path}".rstrip("/"), "--output", output, *options])


@pytest.mark.slow
@pytest.mark.parametrize("name", ENGINES, scope="module")
def test_another_engine_gives_the_same_bytes(name, prepared, tmp_path, monkeypatch):
    if ENGINES[name][0] == "the worker alone":
        monkeypatch.setattr(local, "num_cores", lambda: 0)
        flags = []
    else:
        flags = two_workers(monkeypatch, tmp_path)
    assert prepare(str(prepared.folder), prepared.path, str(tmp_path / "out"), *prepared.options, *flags) == 0
    assert digest(tmp_path / "out") == prepared.digest


@pytest.mark.slow
@pytest.mark.parametrize("name", ENGINES, scope="module")
def test_an_object_store_gives_the_same_bytes(name, prepared):
    files = {f"in/{file.relative_to(prepared.folder)}": file.read_bytes() for file in prepared.folder.rglob("*") if file.is_file()}
    with reached(shared_server(ENGINES[name][1])) as server:
        bucket = put(server, files, folder="")
        assert prepare(f"{bucket}/in", prepared.path, f"{bucket}/out", *prepared.options, *server.flags) == 0
        store = open_object_store(bucket)
        found = {name: hashlib.sha256(store.read(f"{bucket}/out/{name}")).hexdigest() for name in prepared.digest}
        assert found == prepared.digest and set(store.top_level(bucket)[0]) == {"in", "out"}
