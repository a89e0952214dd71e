"""Tests that files on disks, in object stores and on web servers are read and written in the same way."""

import contextlib
import os
import pathlib
from typing import Iterator

import pytest

from beam_pipelines.storage.files import files_at, open_file, read_start, write_chunks
from beam_pipelines.storage.object_stores import upload
from made_images import write_files
from object_stores import connected_to, shared_server
from range_server import RangeServer

CHUNK_BYTES = 5 << 20  # The smallest chunk that stores accept.
DIGITS = b"0123456789"
NAMES = ("digits", "folder/1", "with space", "ü/ñ", "per%20cent", "#hash&x=1+2")
RANGES = [(0, 10), (3, 4), (9, 1), (8, 5), (10, 1), (50, 5), (4, 0)]
STORES = ("s3", "gs", "az")


@contextlib.contextmanager
def new_folder(kind: str, tmp_path: pathlib.Path) -> Iterator[str]:
    """Yields an empty folder on a disk, in a store or on a web server."""
    with contextlib.ExitStack() as stack:
        if kind in STORES:
            yield stack.enter_context(connected_to(shared_server(kind))).make_bucket()
        elif kind == "http":
            yield stack.enter_context(RangeServer(tmp_path)).root("http")
        else:
            yield str(tmp_path)


@pytest.fixture(params=["disk", *STORES])
def folder(request, tmp_path, monkeypatch) -> Iterator[str]:
    monkeypatch.setattr(upload, "CHUNK_BYTES", CHUNK_BYTES)
    with new_folder(request.param, tmp_path) as folder:
        yield folder


@pytest.mark.parametrize("kind", ["disk", *STORES, "http"])
def test_reads_files_with_any_name(kind, tmp_path):
    files = {"empty": b"", **{name: DIGITS for name in NAMES}}
    with new_folder(kind, tmp_path) as folder:
        root, name_of = (folder, lambda name: name) if kind != "http" else (folder, lambda name: name.replace("%", "%25").replace("#", "%23"))
        for name, data in files.items():
            write_files(tmp_path, {name: data}) if kind in ("disk", "http") else files_at(root).write(f"{root}/{name}", data)
        store = files_at(root)
        for name, data in files.items():
            path = f"{root}/{name_of(name)}"
            assert (store.read(path), store.size(path), store.stat(path).size, store.exists(path)) == (data, len(data), len(data), True), name
            for offset, num_bytes in RANGES:
                assert store.read_range(path, offset, num_bytes) == data[offset : offset + num_bytes], (name, offset)
            with open_file(path) as file:
                file.seek(3)
                assert file.read() == data[3:] and read_start(root, name_of(name), 4) == data[:4], name
        if kind != "http":
            assert dict(store.list(root)) == {name: len(data) for name, data in files.items()}
            store.remove_all(root)
        for name in ("fold", "folder", "missing"):
            assert not store.exists(f"{root}/{name}"), name
            with pytest.raises(OSError):
                store.read(f"{root}/{name}")


@pytest.mark.slow(0.2)
@pytest.mark.parametrize("num_bytes", [0, 1, CHUNK_BYTES, CHUNK_BYTES + 1, 2 * CHUNK_BYTES, 3 * CHUNK_BYTES + 12345])
def test_new_file_appears_when_the_with_block_ends(folder, num_bytes):
    data = os.urandom(1 << 20) * (num_bytes // (1 << 20) + 1)
    step = (17 if num_bytes > 3 * CHUNK_BYTES else 3) << 20  # One write may span many chunks.
    path, files = f"{folder}/shard", files_at(folder)
    with files.create(path) as file:
        for start in range(0, num_bytes, step):
            chunk = memoryview(data)[start : min(start + step, num_bytes)]
            assert file.write(chunk) == len(chunk)
        assert not files.exists(path)
    assert files.read(path) == data[:num_bytes]
    assert write_chunks(path, [b"new", b"", b" contents"]) == 12 and files.read(path) == b"new contents"


@pytest.mark.slow(0.2)
@pytest.mark.parametrize("num_bytes", [10, CHUNK_BYTES + 10])
@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_failed_with_block_changes_nothing(folder, num_bytes, error):
    files = files_at(folder)
    files.write(f"{folder}/kept", b"kept")
    for name in ("new", "kept"):
        with pytest.raises(error), files.create(f"{folder}/{name}") as file:
            file.write(b"\1" * num_bytes)
            raise error
    assert files.read(f"{folder}/kept") == b"kept" and not files.exists(f"{folder}/new")


def test_conditional_write_replaces_only_the_known_version(folder):
    path, files = f"{folder}/a lease", files_at(folder)
    with pytest.raises(FileNotFoundError):
        files.read_versioned(path)
    assert files.write_if(path, b"unknown version", "1234") is None and not files.exists(path)
    first = files.write_if(path, b"first", None)
    assert first and files.read_versioned(path) == (b"first", first)
    assert files.write_if(path, b"late", None) is None
    second = files.write_if(path, b"second", first)
    assert second and second != first
    assert files.write_if(path, b"late", first) is None
    assert files.read_versioned(path) == (b"second", second)
    files.write(path, b"unconditional")
    assert files.write_if(path, b"late", second) is None and files.read(path) == b"unconditional"
