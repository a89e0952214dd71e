"""Tests that a file is reported if it changes after its version was recorded."""

import os

import pytest

from beam_pipelines.errors import DataError
from beam_pipelines.storage.files import files_at, input_size, open_file
from beam_pipelines.storage.pinned_files import PinnedFiles, check_versions
from beam_pipelines.storage.versions import noting_versions
from object_stores import connected_to, shared_server, upload_files


@pytest.fixture(params=["disk", "s3", "gs"])
def folder(request, tmp_path):
    """Yields a folder that contains a file `a` of ten bytes."""
    if request.param == "disk":
        (tmp_path / "a").write_bytes(b"0123456789")
        yield str(tmp_path)
    else:
        with connected_to(shared_server(request.param)) as server:
            yield upload_files(server, {"a": b"0123456789"})


def rewrite(path: str, data: bytes = b"abcdefghij") -> None:
    files_at(path).write(path, data)


def remove(path: str) -> None:
    files_at(path).remove(path) if "://" in path else os.remove(path)


def record_version(path: str) -> dict[str, str]:
    versions: dict[str, str] = {}
    with noting_versions(versions), open_file(path):
        pass
    return versions


@pytest.mark.parametrize("change", [rewrite, remove, lambda path: rewrite(path, b"012")])
def test_pinned_files_reject_changed_file_by_name(folder, change):
    path = f"{folder}/a"
    versions = record_version(path)
    pinned = PinnedFiles(files_at(path), versions)
    assert pinned.read_range(path, 3, 4) == b"3456" and pinned.read_range(path, 8, 4) == b"89"
    ranges = [(path, 3, 4), (path, 8, 4), (path, 3, 4)]
    of_disk = "://" not in path  # Ranges in object stores are read one by one.
    assert pinned.read_ranges(ranges) == ([b"3456", b"89", b"3456"] if of_disk else None)
    assert pinned.read_ranges([*ranges, (f"{path}b", 0, 1)]) is None  # This file has no known version.
    check_versions(versions)
    change(path)
    looks = [lambda: pinned.read_range(path, 3, 4), lambda: check_versions(versions)]
    for look in (*looks, *[lambda: pinned.read_ranges(ranges)] * of_disk):
        with pytest.raises(DataError, match="/a ") as error:
            look()
        assert error.value.exit_code == 2


def test_names_file_that_changes_during_listing(folder):
    path = f"{folder}/a"
    with noting_versions({}), pytest.raises(DataError, match="/a "):
        assert input_size(path) == 10
        rewrite(path)
        open_file(path).close()


@pytest.mark.parametrize("folder", ["s3", "gs"], indirect=True)
def test_names_object_that_is_replaced_while_read(folder):
    with open_file(f"{folder}/a") as file:
        rewrite(f"{folder}/a")
        with pytest.raises(DataError, match="/a "):
            file.read(1)


def test_versions_are_recorded_only_on_request(folder):
    path = f"{folder}/a"
    input_size(path)
    rewrite(path)
    assert input_size(path) == 10
