"""What waits in the spool beside an image, or instead of one, has the same bytes however a run is made, and wherever its source lies."""

import contextlib
import hashlib
import pathlib
from typing import Iterator

import pytest
from apache_beam.io.filesystems import FileSystems

from beam_pipelines.__main__ import main
from beam_pipelines.runners import local
from beam_pipelines.runners.jobs import parse_pipeline_options
from beam_pipelines.storage.object_stores.open_object_store import open_object_store
from engines import digest
from made_sources import CASES
from object_stores import StoreServer, store_server

# Extras beside images in files of their own, in parts of files, and in spools; several parts to list; columns of every kind.
NAMES = [
    "coco, detection and segmentation",
    "table csv, extra columns",
    "table parquet, embedded images",
    "arrays idx gz, class",
    "webdataset gz, class",
    "webdataset, segmentation",
    "tfrecord detection",
]
OPTIONS = ("--name=made", "--num_shards=5")


@pytest.fixture(scope="module", params=NAMES)
def prepared(request, tmp_path_factory) -> tuple[str, pathlib.Path, list[str], dict[str, str]]:
    """A source, the folder that it lies in, options, and the digest of its data set."""
    case = CASES[request.param]
    root = tmp_path_factory.mktemp("source")
    path = case.write(root / "in")
    options = [*case.options, *([] if case.has_splits else ["--splits=train=0.5,test=0.5"]), *OPTIONS]
    assert prepare(str(root / "in"), path, str(root / "out"), *options) == 0
    return path, root / "in", options, digest(root / "out")


def prepare(folder: str, path: str, output: str, *options: str) -> int:
    return main(["prepare", "--input", f"{folder}/{path}".rstrip("/"), "--output", output, *options])


def test_the_worker_alone_gives_the_same_bytes(prepared, tmp_path, monkeypatch):
    path, folder, options, expected = prepared
    monkeypatch.setattr(local, "num_cores", lambda: 0)
    assert prepare(str(folder), path, str(tmp_path / "out"), *options) == 0
    assert digest(tmp_path / "out") == expected


@pytest.mark.slow
def test_two_worker_processes_give_the_same_bytes(prepared, tmp_path):
    path, folder, options, expected = prepared
    flags = ("--direct_num_workers=2", "--direct_running_mode=multi_processing")
    assert prepare(str(folder), path, str(tmp_path / "out"), *options, *flags) == 0
    assert digest(tmp_path / "out") == expected


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, StoreServer]]:
    """Both, once: of two fixtures with parameters, pytest makes one anew for each of the other's."""
    with contextlib.ExitStack() as stack:
        yield {scheme: stack.enter_context(store_server(scheme)) for scheme in ("s3", "gs")}


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_an_object_store_gives_the_same_bytes(prepared, servers, scheme, tmp_path, monkeypatch):
    path, folder, options, expected = prepared
    server = servers[scheme]
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    bucket = server.make_bucket()
    FileSystems.set_options(parse_pipeline_options(server.flags))
    store = open_object_store(bucket)
    for file in folder.rglob("*"):
        if file.is_file():
            store.write(f"{bucket}/in/{file.relative_to(folder)}", file.read_bytes())
    assert prepare(f"{bucket}/in", path, str(tmp_path / "out"), *options, *server.flags) == 0
    assert digest(tmp_path / "out") == expected
    assert prepare(f"{bucket}/in", path, f"{bucket}/out", *options, *server.flags) == 0
    assert {name: hashlib.sha256(store.read(f"{bucket}/out/{name}")).hexdigest() for name in expected} == expected
    assert set(store.top_level(bucket)[0]) == {"in", "out"}
