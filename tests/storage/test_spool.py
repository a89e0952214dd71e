"""Tests that the spool returns the written bytes unchanged, even in a second process, and leaves no file open."""

import concurrent.futures
import contextlib
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import threading
from typing import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipelines.errors import RunError
from beam_pipelines.storage import local_files
from beam_pipelines.storage.files import files_at
from beam_pipelines.storage.spool import SpoolReader, SpoolWriter, read_exactly
from tf_input.storage.local_files import LocalFiles


def num_open_files(directory: object) -> int:
    """Returns the number of open files of this process in a directory, including deleted files."""
    targets = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # The descriptor that `listdir` used is closed.
            targets.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return sum(target.startswith(str(directory)) for target in targets)


def write_spool(directory: object, data: bytes) -> int:
    with SpoolWriter(str(directory)) as writer:
        assert writer.append(data) == 0
    return writer.spool


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.one_of(st.binary(), st.integers(1_000, 3_000_000).map(bytes)), max_size=10),
    st.randoms(use_true_random=False),
)
def test_bytes_are_read_back_unchanged_in_any_order(tmp_path_factory, chunks, random):
    directory = str(tmp_path_factory.mktemp("spool"))
    pointers = []
    with SpoolWriter(directory) as first, SpoolWriter(directory) as second:
        for chunk in chunks:
            writer = random.choice([first, second])
            pointers.append((writer.spool, writer.append(chunk), len(chunk)))
    with SpoolReader(directory) as reader:
        for index in random.sample(range(len(chunks)), len(chunks)):
            assert reader.read(*pointers[index]) == chunks[index]
    shutil.rmtree(directory)


def test_every_writer_has_its_own_file_and_id(tmp_path, monkeypatch):
    spools = {write_spool(tmp_path, b"1") for _ in range(100)}
    assert len(spools) == len(os.listdir(tmp_path)) == 100 and max(spools) < 2**64, "a row stores the id in 64 bits"
    monkeypatch.setattr(os, "urandom", bytes)
    assert SpoolWriter(str(tmp_path)).spool not in (0, 1)


def test_writer_creates_spool_directory_but_not_its_parent(tmp_path):
    write_spool(tmp_path / "spool", b"1")
    assert len(os.listdir(tmp_path / "spool")) == 1
    with pytest.raises(RunError, match="the spool could not be written: No such file"):
        write_spool(tmp_path / "removed" / "spool", b"1")


def test_another_process_can_read_the_spool(tmp_path):
    with SpoolWriter(str(tmp_path)) as writer:
        writer.append(b"before")
        offset = writer.append(b"a small image")
    script = f"import os, sys; os.write(1, os.pread(os.open(sys.argv[1], os.O_RDONLY), 13, {offset}))"
    path = tmp_path / os.listdir(tmp_path)[0]
    assert subprocess.run([sys.executable, "-c", script, path], capture_output=True).stdout == b"a small image"


def test_read_past_the_end_is_short_and_read_exactly_fails(tmp_path):
    spool = write_spool(tmp_path, b"0123456789")
    with SpoolReader(str(tmp_path)) as reader:
        assert reader.read(spool, 8, 5) == b"89" and read_exactly(reader, spool, 2, 3) == b"234"
        with pytest.raises(FileNotFoundError):
            reader.read(spool ^ 2, 0, 1)
        with pytest.raises(RunError, match="2 of 5 bytes at offset 8"):
            read_exactly(reader, spool, 8, 5)
        with pytest.raises(RunError, match="the spool .*: No such file"):
            read_exactly(reader, spool ^ 2, 0, 1)


def test_reader_opens_each_file_once_and_closes_all(tmp_path, monkeypatch):
    spools = [write_spool(tmp_path, b"%02d" % number) for number in range(23)]
    assert num_open_files(tmp_path) == 0, "an open file keeps its disk space after removal"
    monkeypatch.setattr(local_files, "MAX_OPEN", 5)
    reader = SpoolReader(str(tmp_path))
    for num_used in (3, 23):
        for _ in range(2):
            assert [reader.read(spool, 0, 2) for spool in spools[:num_used]] == [b"%02d" % number for number in range(num_used)]
            assert num_open_files(tmp_path) == min(num_used, 5)
    reader.close()
    assert num_open_files(tmp_path) == 0
    with pytest.raises(ValueError, match="reader is closed"):
        reader.read(spools[0], 0, 1)
    assert num_open_files(tmp_path) == 0


def test_concurrent_threads_have_separate_spools(tmp_path):
    # With --direct_running_mode=multi_threading, bundles run in threads of one process.
    directory, num_threads = str(tmp_path / "spool"), 4
    barrier = threading.Barrier(num_threads)

    def spool_some(thread: int) -> list[tuple[int, int, bytes]]:
        with SpoolWriter(directory) as writer:
            barrier.wait()
            images = [f"thread {thread} image {index:03d}".encode() for index in range(50)]
            return [(writer.spool, writer.append(image), image) for image in images]

    with concurrent.futures.ThreadPoolExecutor(num_threads) as threads:
        actual = [pointer for pointers in threads.map(spool_some, range(num_threads)) for pointer in pointers]
    with SpoolReader(directory) as reader:
        assert all(reader.read(spool, offset, len(image)) == image for spool, offset, image in actual)
    assert len({spool for spool, _, _ in actual}) == num_threads


def test_failed_with_block_leaves_no_file(tmp_path):
    with pytest.raises(ZeroDivisionError), SpoolWriter(str(tmp_path)) as writer:
        writer.append(b"an image")
        1 / 0
    assert num_open_files(tmp_path) == 0 and not os.listdir(tmp_path)


def test_reader_closed_during_read_returns_no_bytes_of_another_file(tmp_path, monkeypatch):
    """The file descriptor must not be reused for a second file before the read ends."""
    spool = write_spool(tmp_path / "spool", b"mine")
    (tmp_path / "other").write_bytes(b"THEIRS")
    reading, closed, pread = threading.Event(), threading.Event(), os.pread

    def wait_for_close(descriptor: int, num_bytes: int, offset: int) -> bytes:
        reading.set()
        assert closed.wait(60)
        return pread(descriptor, num_bytes, offset)

    reader = SpoolReader(str(tmp_path / "spool"))
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        monkeypatch.setattr(os, "pread", wait_for_close)
        actual = thread.submit(reader.read, spool, 0, 4)
        assert reading.wait(60)
        reader.close()
        others = [os.open(tmp_path / "other", os.O_RDONLY) for _ in range(9)]
        closed.set()
        assert actual.result(60) == b"mine"
    for descriptor in others:
        os.close(descriptor)


@contextlib.contextmanager
def limited_file_size(num_bytes: int) -> Iterator[None]:
    """Limits the size of files, so that writing fails as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("num_bytes", [10, 3 << 20], ids=["buffered", "large"])
def test_full_disk_ends_the_run(tmp_path, num_bytes):
    reported = pytest.raises(RunError, match="the spool could not be written: File too large")
    with limited_file_size(5), reported, SpoolWriter(str(tmp_path)) as writer:
        writer.append(bytes(num_bytes))
    assert num_open_files(tmp_path) == 0 and not os.listdir(tmp_path)


def test_file_without_reported_size_is_read_to_its_end(tmp_path):
    (tmp_path / "small").write_bytes(b"x")
    (tmp_path / "large").write_bytes(bytes(1 << 20))
    for before in ("small", "large"):
        files_at(str(tmp_path)).read(str(tmp_path / before))
        assert files_at("/proc").read("/proc/self/mounts") == LocalFiles().read("/proc/self/mounts") == pathlib.Path("/proc/self/mounts").read_bytes()


@pytest.mark.parametrize("max_bytes", [1, 7, 4096])
def test_short_reads_are_completed(tmp_path, monkeypatch, max_bytes):
    """FUSE and signals can cause short reads. The test covers every unbuffered reader."""
    data = os.urandom(9000)
    (tmp_path / "file").write_bytes(data)
    (tmp_path / "empty").write_bytes(b"")
    spool = write_spool(tmp_path, data)
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda descriptor, num_bytes, offset: pread(descriptor, min(num_bytes, max_bytes), offset))
    files, path = files_at(str(tmp_path)), str(tmp_path / "file")
    assert files.read(path) == data and files.read(str(tmp_path / "empty")) == b""
    assert files.read_range(path, 5, 8000) == data[5:8005] and files.read_range(path, 8990, 100) == data[8990:]
    with SpoolReader(str(tmp_path)) as reader:
        assert reader.read(spool, 3, 8000) == data[3:8003]
    preadv, buffer = os.preadv, memoryview(bytearray(8000))
    monkeypatch.setattr(os, "preadv", lambda descriptor, buffers, offset: preadv(descriptor, [buffers[0][:max_bytes]], offset))
    assert LocalFiles().read_into(path, 5, buffer) == 8000 and buffer == data[5:8005]
    assert LocalFiles().read_into(path, 8990, buffer) == len(data) - 8990 and buffer[: len(data) - 8990] == data[8990:]
    assert LocalFiles().read_range(path, 5, 8000) == data[5:8005] and LocalFiles().read_range(path, 8990, 100) == data[8990:]
