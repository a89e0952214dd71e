"""Tests that a dataset does not depend on the number of workers or on whether its source is in an object store."""

import hashlib

import pytest

from beam_pipelines.__main__ import main
from beam_pipelines.runners import local
from beam_pipelines.storage.files import files_at
from engines import digest, two_workers
from made_sources import CASES, MadeCase, made_case
from object_stores import connected_to, shared_server, upload_files

# These sources use additional files, byte ranges, spools, several parts, and columns of every kind. Each source is
# tested with one engine and one object store, because testing all combinations would take too long.
ENGINES = {
    "coco, detection and segmentation": ("one worker", "s3"),
    "yolo, detection": ("two workers", "s3"),
    "labelme, detection and segmentation": ("one worker", "gs"),
    "cvat, detection and segmentation": ("two workers", "s3"),
    "kitti, detection": ("one worker", "gs"),
    "table csv, a row for each box": ("one worker", "s3"),
    "table csv, pairs": ("two workers", "gs"),
    "table parquet, embedded pairs": ("one worker", "s3"),
    "arrays idx gz, class": ("two workers", "gs"),
    "arrays npz, raw": ("one worker", "s3"),
    "fixed_length, class": ("one worker", "gs"),
    "webdataset gz, pairs": ("one worker", "gs"),
    "webdataset, segmentation": ("two workers", "s3"),
    "tfrecord detection": ("one worker", "s3"),
}


@pytest.fixture
def made(name, tmp_path_factory) -> MadeCase:
    return made_case(tmp_path_factory, name)


def prepare(source: str, output: str, *options: str) -> int:
    return main(["prepare", "--input", source, "--output", output, *options])


@pytest.mark.slow
@pytest.mark.parametrize("name", ENGINES)
def test_other_engine_writes_the_same_bytes(name, made, tmp_path, monkeypatch):
    if ENGINES[name][0] == "one worker":
        monkeypatch.setattr(local, "num_cores", lambda: 0)
        flags = []
    else:
        flags = two_workers(monkeypatch, tmp_path)
    assert prepare(str(made.source), str(tmp_path / "out"), *CASES[name].command, *flags) == 0
    assert digest(tmp_path / "out") == digest(made.output)


@pytest.mark.slow
@pytest.mark.parametrize("name", ENGINES)
def test_source_in_object_store_gives_the_same_bytes(name, made):
    files = {f"in/{file.relative_to(made.folder)}": file.read_bytes() for file in made.folder.rglob("*") if file.is_file()}
    with connected_to(shared_server(ENGINES[name][1])) as server:
        bucket = upload_files(server, files, folder="")
        source = f"{bucket}/in/{made.source.relative_to(made.folder)}".removesuffix("/.")
        assert prepare(source, f"{bucket}/out", *CASES[name].command, *server.flags) == 0
        store, expected = files_at(bucket), digest(made.output)
        actual = {name: hashlib.sha256(store.read(f"{bucket}/out/{name}")).hexdigest() for name in expected}
        assert actual == expected and set(store.top_level(bucket)[0]) == {"in", "out"}
