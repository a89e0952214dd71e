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
from beam_pipelines.storage.files import files_at
from beam_pipelines.storage.spool import ObjectSpoolWriter, SpoolReader, SpoolWriter, open_spool, read_exactly
from tf_input.storage.local_files import LocalFiles


def num_open_files(directory: object) -> int:
    """Returns the number of open files of this process in a directory, including deleted files."""
    targets = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            targets.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        except FileNotFoundError:  # The descriptor that `listdir` used is closed.
            pass
    return sum(target.startswith(str(directory)) for target in targets)


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.one_of(st.binary(), st.integers(1_000, 3_000_000).map(bytes)), max_size=10),
    st.randoms(use_true_random=False),
)
def test_bytes_are_read_back_unchanged_in_any_order(tmp_path_factory, chunks, random):
    directory = str(tmp_path_factory.mktemp("spool"))
    writers = [SpoolWriter(directory), SpoolWriter(directory)]
    pointers = []
    for chunk in chunks:
        writer = random.choice(writers)
        pointers.append((writer.spool, writer.append(chunk), len(chunk)))
    for writer in writers:
        writer.flush()
    reader = SpoolReader(directory)
    for index in random.sample(range(len(chunks)), len(chunks)):
        assert reader.read(*pointers[index]) == chunks[index]
    reader.close()
    shutil.rmtree(directory)


def test_every_writer_has_its_own_file_and_id(tmp_path):
    writers = [SpoolWriter(str(tmp_path)) for _ in range(100)]
    assert len({writer.spool for writer in writers}) == len(os.listdir(tmp_path)) == 100
    for writer in writers:
        assert writer.spool < 2**64, "a row stores the id in 64 bits"


def test_spool_id_is_never_zero(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "urandom", bytes)
    assert SpoolWriter(str(tmp_path)).spool != 0


def test_writer_creates_spool_directory_but_not_its_parent(tmp_path):
    SpoolWriter(str(tmp_path / "spool"))
    assert len(os.listdir(tmp_path / "spool")) == 1
    with pytest.raises(FileNotFoundError):
        SpoolWriter(str(tmp_path / "removed" / "spool"))


def test_another_process_can_read_flushed_bytes(tmp_path):
    writer = SpoolWriter(str(tmp_path))
    writer.append(b"before")
    offset = writer.append(b"a small image")
    writer.flush()
    script = f"import os, sys; os.write(1, os.pread(os.open(sys.argv[1], os.O_RDONLY), 13, {offset}))"
    path = tmp_path / os.listdir(tmp_path)[0]
    assert subprocess.run([sys.executable, "-c", script, path], capture_output=True).stdout == b"a small image"


def test_read_past_the_end_is_short_and_missing_file_raises(tmp_path):
    writer = SpoolWriter(str(tmp_path))
    writer.append(b"0123456789")
    writer.flush()
    reader = SpoolReader(str(tmp_path))
    assert reader.read(writer.spool, 8, 5) == b"89"
    with pytest.raises(FileNotFoundError):
        reader.read(writer.spool ^ 2, 0, 1)
    reader.close()


def test_reader_opens_each_file_once_and_closes_all(tmp_path):
    writers = [SpoolWriter(str(tmp_path)) for _ in range(3)]
    for writer in writers:
        writer.append(b"abc")
        writer.flush()
    before = num_open_files(tmp_path)
    reader = SpoolReader(str(tmp_path))
    for _ in range(5):
        for writer in writers:
            assert reader.read(writer.spool, 1, 2) == b"bc"
    assert num_open_files(tmp_path) == before + 3
    reader.close()
    assert num_open_files(tmp_path) == before
    with pytest.raises(ValueError, match="reader is closed"):
        reader.read(writers[0].spool, 0, 1)
    assert num_open_files(tmp_path) == before


def test_spool_can_be_recreated_in_the_same_process(tmp_path):
    # A notebook may prepare the same output again after the spool of the first run was removed.
    directory = str(tmp_path / "spool")
    for run in range(3):
        with open_spool(directory) as writer:
            offset = writer.append(b"an image")
        with contextlib.closing(SpoolReader(directory)) as reader:
            assert reader.read(writer.spool, offset, 8) == b"an image", run
        assert num_open_files(tmp_path) == 0, "an open file keeps its disk space after removal"
        shutil.rmtree(directory)


def test_concurrent_threads_have_separate_spools(tmp_path):
    # With --direct_running_mode=multi_threading, bundles run in threads of one process.
    directory, num_threads = str(tmp_path / "spool"), 4
    barrier = threading.Barrier(num_threads)

    def spool_some(thread: int) -> list[tuple[int, int, bytes]]:
        with open_spool(directory) as writer:
            barrier.wait()
            images = [f"thread {thread} image {index:03d}".encode() for index in range(50)]
            return [(writer.spool, writer.append(image), image) for image in images]

    with concurrent.futures.ThreadPoolExecutor(num_threads) as threads:
        actual = [pointer for pointers in threads.map(spool_some, range(num_threads)) for pointer in pointers]
    with contextlib.closing(SpoolReader(directory)) as reader:
        assert all(reader.read(spool, offset, len(image)) == image for spool, offset, image in actual)
    assert len({spool for spool, _, _ in actual}) == num_threads


def test_no_file_stays_open_if_the_with_block_fails(tmp_path):
    with pytest.raises(ZeroDivisionError), open_spool(str(tmp_path)) as writer:
        writer.append(b"an image")
        1 / 0
    assert num_open_files(tmp_path) == 0


def test_full_disk_ends_the_run(tmp_path):
    with pytest.raises(RunError, match="the spool could not be written: No space left on device"), open_spool(str(tmp_path)) as writer:
        writer._file.close()
        writer._file = open("/dev/full", "wb", buffering=1 << 20)
        writer.append(b"an image")  # The error is raised when the bytes leave the buffer.


def test_read_exactly_fails_on_short_read_or_missing_file(tmp_path):
    with open_spool(str(tmp_path)) as writer:
        writer.append(b"0123456789")
    with contextlib.closing(SpoolReader(str(tmp_path))) as reader:
        assert read_exactly(reader, writer.spool, 2, 3) == b"234"
        with pytest.raises(RunError, match="2 of 5 bytes at offset 8"):
            read_exactly(reader, writer.spool, 8, 5)
        with pytest.raises(RunError, match="the spool .*: No such file"):
            read_exactly(reader, writer.spool ^ 2, 0, 1)


def test_reader_limits_the_number_of_open_files(tmp_path, monkeypatch):
    monkeypatch.setattr("beam_pipelines.storage.spool.MAX_OPEN", 5)
    writers = [SpoolWriter(str(tmp_path)) for _ in range(23)]
    for number, writer in enumerate(writers):
        writer.append(b"%02d" % number)
        writer.flush()
        writer.close()
    reader = SpoolReader(str(tmp_path))
    for _ in range(2):
        assert [reader.read(writer.spool, 0, 2) for writer in writers] == [b"%02d" % number for number in range(23)]
        assert num_open_files(tmp_path) <= 5
    reader.close()


def test_reader_closed_during_read_returns_no_bytes_of_another_file(tmp_path, monkeypatch):
    """The file descriptor must not be reused for a second file before the read ends."""
    with open_spool(str(tmp_path / "spool")) as writer:
        writer.append(b"mine")
    (tmp_path / "other").write_bytes(b"THEIRS")
    reading, closed, pread = threading.Event(), threading.Event(), os.pread

    def wait_for_close(descriptor: int, num_bytes: int, offset: int) -> bytes:
        reading.set()
        assert closed.wait(60)
        return pread(descriptor, num_bytes, offset)

    reader = SpoolReader(str(tmp_path / "spool"))
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        monkeypatch.setattr(os, "pread", wait_for_close)
        actual = thread.submit(reader.read, writer.spool, 0, 4)
        assert reading.wait(60)
        reader.close()
        others = [os.open(tmp_path / "other", os.O_RDONLY) for _ in range(9)]
        closed.set()
        assert actual.result(60) == b"mine"
    monkeypatch.undo()
    for descriptor in others:
        os.close(descriptor)
    with pytest.raises(ValueError, match="reader is closed"):
        reader.read(writer.spool, 0, 4)


def test_closed_reader_has_no_open_files(tmp_path):
    with open_spool(str(tmp_path)) as writer:
        writer.append(b"mine")
    reader = SpoolReader(str(tmp_path))
    assert reader.read(writer.spool, 1, 2) == b"in" and num_open_files(tmp_path) == 1
    reader.close()
    assert num_open_files(tmp_path) == 0


@contextlib.contextmanager
def limited_file_size(num_bytes: int) -> Iterator[None]:
    """Limits the file size, so that writing fails as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_write_errors_are_reported_by_append_flush_and_close(tmp_path):
    reported = pytest.raises(RunError, match="the spool could not be written: File too large")
    large, small = SpoolWriter(str(tmp_path)), SpoolWriter(str(tmp_path))
    assert small.append(b"buffered in memory") == 0
    with limited_file_size(5):
        with reported:
            large.append(bytes(3 << 20))
        for late in (small.flush, small.close):
            with reported:
                late()
    large.close()
    missing = pytest.raises(RunError, match="the spool could not be written: No such file")
    with ObjectSpoolWriter(str(tmp_path / "removed")) as writer, missing:
        writer.append(b"mine")


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
    with open_spool(str(tmp_path)) as writer:
        writer.append(data)
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda descriptor, num_bytes, offset: pread(descriptor, min(num_bytes, max_bytes), offset))
    files, path = files_at(str(tmp_path)), str(tmp_path / "file")
    assert files.read(path) == data and files.read(str(tmp_path / "empty")) == b""
    assert files.read_range(path, 5, 8000) == data[5:8005] and files.read_range(path, 8990, 100) == data[8990:]
    with contextlib.closing(SpoolReader(str(tmp_path))) as reader:
        assert reader.read(writer.spool, 3, 8000) == data[3:8003]
    preadv, buffer = os.preadv, memoryview(bytearray(8000))
    monkeypatch.setattr(os, "preadv", lambda descriptor, buffers, offset: preadv(descriptor, [buffers[0][:max_bytes]], offset))
    assert LocalFiles().read_into(path, 5, buffer) == 8000 and buffer == data[5:8005]
    assert LocalFiles().read_into(path, 8990, buffer) == len(data) - 8990 and buffer[: len(data) - 8990] == data[8990:]
    assert LocalFiles().read_range(path, 5, 8000) == data[5:8005] and LocalFiles().read_range(path, 8990, 100) == data[8990:]
