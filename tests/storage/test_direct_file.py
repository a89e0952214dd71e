"""Tests files that are read with `O_DIRECT`, which bypasses the page cache."""

import errno
import fcntl
import os
import pathlib
import threading
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipelines.storage import direct_file
from beam_pipelines.storage.direct_file import open_direct

MIB = 1 << 20
SIZES = [0, 1, 4095, 4096, 4097, MIB - 1, MIB, MIB + 1, 2 * MIB, 3 * MIB + 5000]


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[int, pathlib.Path]:
    folder = tmp_path_factory.mktemp("files")
    paths = {size: folder / str(size) for size in SIZES}
    for size, path in paths.items():
        path.write_bytes(os.urandom(size))
    return paths


@pytest.mark.parametrize("size", SIZES)
def test_reads_all_bytes(files, size):
    with open_direct(str(files[size])) as file:
        assert file.read() == files[size].read_bytes()
        assert file.read(1) == b""


@settings(max_examples=50)
@given(
    size=st.sampled_from(SIZES),
    block=st.sampled_from([1 << 16, MIB]),
    moves=st.lists(st.tuples(st.integers(0, 4 * MIB), st.integers(0, 2 * MIB)), max_size=6),
    whence=st.sampled_from([0, 1, 2]),
)
def test_seek_and_read_equal_those_of_a_plain_file(files, size, block, moves, whence):
    with mock.patch.object(direct_file, "_BLOCK_BYTES", block), open(files[size], "rb") as plain, open_direct(str(files[size])) as direct:
        for offset, num_bytes in moves:
            where = -min(offset, size) if whence == os.SEEK_END else offset
            assert direct.seek(where, whence) == plain.seek(where, whence)
            assert direct.read(num_bytes) == plain.read(num_bytes)


def test_reads_bytes_that_were_just_written(tmp_path):
    path = tmp_path / "file"
    for content in (b"a" * 5000, b"b" * 5000):
        path.write_bytes(content)
        with open_direct(str(path)) as file:
            assert file.read() == content


@pytest.mark.skipif(not hasattr(os, "O_DIRECT"), reason="this system has no O_DIRECT")
def test_uses_o_direct_on_disk(files):
    try:
        os.close(os.open(files[MIB], os.O_RDONLY | os.O_DIRECT))
    except OSError:
        pytest.skip("the file system of the temporary directory can't read past the cache")
    with open_direct(str(files[MIB])) as file:
        assert file.read(1) and _is_direct(file.fileno())


def _is_direct(descriptor: int) -> bool:
    return bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT)


@pytest.mark.skipif(not os.path.exists("/proc/version"), reason="this system has no /proc")
def test_reads_file_system_without_o_direct():
    with open_direct("/proc/version") as file:
        assert file.read() == pathlib.Path("/proc/version").read_bytes()


@pytest.mark.skipif(not hasattr(os, "O_DIRECT"), reason="this system has no O_DIRECT")
@pytest.mark.parametrize("refused", [None, errno.EINVAL, errno.EOPNOTSUPP])
def test_reads_all_bytes_after_short_or_rejected_direct_reads(files, monkeypatch, refused):
    preadv, path = os.preadv, files[3 * MIB + 5000]

    def limited_preadv(descriptor, buffers, offset):
        if _is_direct(descriptor) and refused and offset:
            raise OSError(refused, os.strerror(refused))
        return preadv(descriptor, [buffers[0][:1_000_001]], offset)

    monkeypatch.setattr(direct_file, "_BLOCK_BYTES", MIB)
    monkeypatch.setattr(os, "preadv", limited_preadv)
    with open_direct(str(path)) as file:
        assert file.read() == path.read_bytes()


def test_disk_error_is_raised_and_file_is_closed(files, monkeypatch):
    monkeypatch.setattr(os, "preadv", lambda *unused: (_ for _ in ()).throw(OSError(errno.EIO, os.strerror(errno.EIO))))
    before = len(os.listdir("/dev/fd"))
    with open_direct(str(files[MIB])) as file:
        if hasattr(os, "O_DIRECT"):
            for _ in range(2):
                with pytest.raises(OSError, match="Input/output"):
                    file.read()
    assert len(os.listdir("/dev/fd")) == before


@pytest.mark.skipif(not hasattr(os, "O_DIRECT"), reason="this system has no O_DIRECT")
def test_other_blocks_can_be_read_after_disk_error(files, monkeypatch):
    """After an error, a block that was read in advance must not be returned in place of the requested block."""
    preadv, path, is_failing = os.preadv, files[3 * MIB + 5000], True
    block = 1 << 16

    def failing_preadv(descriptor, buffers, offset):
        if is_failing and offset == 20 * block:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return preadv(descriptor, buffers, offset)

    monkeypatch.setattr(direct_file, "_BLOCK_BYTES", block)
    monkeypatch.setattr(os, "preadv", failing_preadv)
    data = path.read_bytes()
    with open_direct(str(path)) as file:
        assert file.read(19 * block) == data[: 19 * block]
        for _ in range(2):
            with pytest.raises(OSError, match="Input/output"):
                file.seek(20 * block + 5)
                file.read(1)
        for number in (19, 18, 21, 22, 0, 40):
            file.seek(number * block + 5)
            assert file.read(block - 5) == data[number * block + 5 : (number + 1) * block], number
        is_failing = False
        file.seek(20 * block)
        assert file.read() == data[20 * block :]


def test_reads_file_if_no_thread_can_be_started(files):
    before = len(os.listdir("/dev/fd"))
    threading.stack_size(1 << 50)  # The stack is larger than the address space, so that no thread can be started.
    try:
        with open_direct(str(files[MIB + 1])) as file:
            assert file.read() == files[MIB + 1].read_bytes()
    finally:
        threading.stack_size(0)
    assert len(os.listdir("/dev/fd")) == before


def test_reads_file_that_is_truncated_while_open(tmp_path, monkeypatch):
    monkeypatch.setattr(direct_file, "_BLOCK_BYTES", 1 << 16)
    path, data = tmp_path / "file", os.urandom(3 * MIB)
    path.write_bytes(data)
    with open_direct(str(path)) as file:
        start = file.read(1)
        os.truncate(path, MIB + 5)
        assert start + file.read() == data[: MIB + 5]


def test_closing_twice_does_not_close_another_file(files):
    raw = open_direct(str(files[MIB])).detach()
    raw.close()
    other = os.open(files[1], os.O_RDONLY)  # This file reuses the descriptor number of the closed file.
    raw.close()
    assert os.read(other, 1) == files[1].read_bytes()
    os.close(other)


def test_raises_for_missing_file_and_for_directory(tmp_path):
    with pytest.raises(FileNotFoundError):
        open_direct(str(tmp_path / "none"))
    with pytest.raises(IsADirectoryError):
        open_direct(str(tmp_path))
