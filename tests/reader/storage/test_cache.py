"""Tests the local disk cache of remote files. The cache has a maximum size and can be shared by several processes."""

import contextlib
import logging
import os
import pathlib
import pickle
import resource
import shutil
import signal
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Iterator

import numpy as np
import pytest

from range_server import RangeServer
from tf_input.storage.cache import BLOCK_BYTES, CachedFiles
from tf_input.storage.open_files import open_files

pytest.importorskip("obstore", reason="needs obstore: pip install 'recordmill[remote]'")

ROOT = pathlib.Path(__file__).resolve().parents[3]
NUM_BLOCKS = 3.5
LARGE = np.random.default_rng(0).bytes(int(NUM_BLOCKS * BLOCK_BYTES))
SMALL = b"small" * 100


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Iterator[RangeServer]:
    folder = tmp_path_factory.mktemp("served")
    (folder / "data" / "index").mkdir(parents=True)
    for name, data in (("large", LARGE), ("index/small", SMALL), ("empty", b"")):
        (folder / "data" / name).write_bytes(data)
    with RangeServer(folder) as server:
        yield server


@pytest.fixture
def server(served) -> RangeServer:
    served.reset()
    served.delay_s = 0.0
    return served


def open_cached(server: RangeServer, cache: pathlib.Path, limit: int | None = None, name: str = "flowers-1") -> CachedFiles:
    return CachedFiles(open_files(server.url), f"{server.url}/bucket/data", cache / name, limit)


def url_of(server: RangeServer, name: str = "large") -> str:
    return f"{server.url}/bucket/data/{name}"


def cached_files(cache: pathlib.Path) -> list[str]:
    """Returns the files in the cache except marker files."""
    return sorted(path.relative_to(cache).as_posix() for path in cache.rglob("*") if path.is_file() and not path.name.startswith("."))


def blocks(name: str, *numbers: int) -> list[str]:
    return [f"flowers-1/{name}/{number:06d}.block" for number in numbers]


def test_read_blocks_are_cached_and_reused(server, tmp_path):
    files = open_cached(server, tmp_path)
    assert cached_files(tmp_path) == [] and not server.requests, "opening fetches no block"
    assert files.read_range(url_of(server), 100, 1000) == LARGE[100:1100]
    assert cached_files(tmp_path) == blocks("large", 0) and server.num_bytes == BLOCK_BYTES
    assert files.read(url_of(server)) == LARGE and files.read(url_of(server, "index/small")) == SMALL
    assert files.read(url_of(server, "empty")) == b""
    assert cached_files(tmp_path) == blocks("index/small", 0) + blocks("large", 0, 1, 2, 3)
    num_requests = len(server.requests)
    assert server.num_bytes == len(LARGE) + len(SMALL)
    again = pickle.loads(pickle.dumps(open_cached(server, tmp_path)))
    assert again.read(url_of(server)) == LARGE and again.read(url_of(server, "index/small")) == SMALL
    assert len(server.requests) == num_requests


def test_each_chunk_is_one_request_and_no_byte_is_fetched_twice(server, tmp_path):
    """Chunks can have any size and are read in any order, as in an epoch."""
    files, size = open_cached(server, tmp_path), 2 * BLOCK_BYTES - 12_345
    begins = list(range(0, len(LARGE), size))
    for begin in reversed(begins):
        assert files.read_range(url_of(server), begin, size) == LARGE[begin : begin + size]
    assert server.num_bytes == len(LARGE) and len(server.requests) == len(begins)


def test_cached_blocks_are_not_requested_again(server, tmp_path):
    files = open_cached(server, tmp_path)
    files.read_range(url_of(server), BLOCK_BYTES, 10)
    server.reset()
    assert files.read_range(url_of(server), 7, len(LARGE)) == LARGE[7:]
    assert [first for _, _, first in server.requests] == [0, 2 * BLOCK_BYTES]
    assert server.num_bytes == len(LARGE) - BLOCK_BYTES


def test_concurrent_threads_fetch_each_block_once(server, tmp_path):
    server.delay_s = 0.05  # makes the requests overlap
    files = open_cached(server, tmp_path)
    step = BLOCK_BYTES // 3 + 1
    begins = [begin for begin in range(0, len(LARGE), step) for _ in range(2)]
    with ThreadPoolExecutor(16) as threads:
        actual = list(threads.map(lambda begin: files.read_range(url_of(server), begin, 2 * step), begins))
    assert actual == [LARGE[begin : begin + 2 * step] for begin in begins]
    assert server.num_bytes == len(LARGE)


READ = (
    "import sys, hashlib, pathlib\n"
    "from tf_input.storage.cache import CachedFiles\n"
    "from tf_input.storage.open_files import open_files\n"
    "url, folder = sys.argv[1:3]\n"
    "files = CachedFiles(open_files(url), f'{url}/bucket/data', pathlib.Path(folder), None)\n"
)


def start(server: RangeServer, cache: pathlib.Path, code: str) -> subprocess.Popen:
    command = [sys.executable, "-c", READ + code, server.url, str(cache / "flowers-1")]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})


@pytest.mark.slow
def test_processes_share_cached_blocks(server, tmp_path):
    server.delay_s = 0.3  # makes the requests overlap
    code = "print(hashlib.md5(files.read(f'{url}/bucket/data/large')).hexdigest())\n"
    processes = [start(server, tmp_path, code) for _ in range(3)]
    actual = {process.communicate(timeout=120)[0] for process in processes}
    assert len(actual) == 1 and server.num_bytes == len(LARGE)
    assert cached_files(tmp_path) == blocks("large", 0, 1, 2, 3)


def test_partial_block_of_a_killed_process_is_replaced(server, tmp_path):
    server.delay_s = 60.0
    process = start(server, tmp_path, "files.read_range(f'{url}/bucket/data/large', 0, 10)\n")
    while not server.requests:  # the process holds the lock of the block after its first request
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert cached_files(tmp_path) == ["flowers-1/large/000000.block.part"]
    (tmp_path / "flowers-1/large/000000.block.part").write_bytes(b"?" * (2 * BLOCK_BYTES))  # longer than the block
    server.delay_s = 0.0
    assert open_cached(server, tmp_path).read(url_of(server)) == LARGE
    assert cached_files(tmp_path) == blocks("large", 0, 1, 2, 3)
    assert open_cached(server, tmp_path).read(url_of(server)) == LARGE


@pytest.mark.slow(0.4)
@pytest.mark.parametrize("num_bytes", [0, 5, 12, 100, BLOCK_BYTES, BLOCK_BYTES + 13])
def test_incomplete_block_is_fetched_again(server, tmp_path, num_bytes):
    """A power failure can leave incomplete blocks."""
    open_cached(server, tmp_path).read(url_of(server))
    block = tmp_path / blocks("large", 1)[0]
    complete = block.read_bytes()
    block.write_bytes((complete + b"more")[:num_bytes])
    server.reset()
    assert open_cached(server, tmp_path).read(url_of(server)) == LARGE
    assert server.num_bytes == BLOCK_BYTES and block.read_bytes() == complete


def test_removed_block_is_fetched_again(server, tmp_path):
    first, second = open_cached(server, tmp_path), open_cached(server, tmp_path)
    first.read(url_of(server))
    second.discard(url_of(server), BLOCK_BYTES, 1)
    assert cached_files(tmp_path) == blocks("large", 0, 2, 3)
    assert first.read(url_of(server)) == LARGE == second.read(url_of(server))
    shutil.rmtree(tmp_path / "flowers-1" / "large")
    assert open_cached(server, tmp_path).read(url_of(server)) == LARGE


def test_corrupt_block_is_discarded_and_fetched_again(server, tmp_path):
    files = open_cached(server, tmp_path)
    files.read(url_of(server))
    block = tmp_path / blocks("large", 2)[0]
    complete = block.read_bytes()
    data = bytearray(complete)
    data[1000] ^= 1
    block.write_bytes(data)
    server.reset()
    # A reader that opens the block for the first time detects the corruption.
    assert open_cached(server, tmp_path).read(url_of(server)) == LARGE
    assert server.num_bytes == BLOCK_BYTES and block.read_bytes() == complete
    begin = 2 * BLOCK_BYTES
    files = open_cached(server, tmp_path)
    files.read_range(url_of(server), begin, 10)
    with open(block, "r+b") as file:  # corrupts a block that is already open
        file.write(data)
    assert files.read_range(url_of(server), begin, BLOCK_BYTES) != LARGE[begin : begin + BLOCK_BYTES]
    assert files.discard(url_of(server), begin + 900, 200)
    assert files.read_range(url_of(server), begin, BLOCK_BYTES) == LARGE[begin : begin + BLOCK_BYTES]
    assert files.source.discard(url_of(server), 0, 10) is False, "the source has no blocks to discard"


def test_missing_remote_file_raises_an_error_and_is_not_cached(server, tmp_path):
    files = open_cached(server, tmp_path)
    for read in (
        lambda: files.read(url_of(server, "missing")),
        lambda: files.read_range(url_of(server, "missing"), 5, 5),
    ):
        with pytest.raises(FileNotFoundError, match="missing does not exist"):
            read()
    assert cached_files(tmp_path) == []
    assert files.sizes(f"{server.url}/bucket/data", ["large", "missing"]) == [len(LARGE), None]


def test_full_cache_reads_other_blocks_without_caching_them(server, tmp_path, caplog):
    """If the cache replaced old blocks during an epoch, the next epoch would have to read these blocks again."""
    limit = int(2.5 * BLOCK_BYTES)
    files = open_cached(server, tmp_path, limit)
    with caplog.at_level(logging.WARNING, "tf_input"):
        for _ in range(3):
            server.reset()
            actual = [files.read_range(url_of(server), begin, 1 << 20) for begin in range(0, len(LARGE), 1 << 20)]
            assert b"".join(actual) == LARGE
    assert cached_files(tmp_path) == blocks("large", 0, 1)
    assert server.num_bytes == len(LARGE) - 2 * BLOCK_BYTES, "only the requested bytes are fetched"
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 1 and f"{limit:,} bytes of cache_bytes" in messages[0]


def test_removes_the_least_recently_used_closed_dataset(server, tmp_path):
    limit = 3 * BLOCK_BYTES + 1000
    for number, name in enumerate(("old", "older", "open")):
        files = open_cached(server, tmp_path, limit, name)
        files.read_range(url_of(server), number * BLOCK_BYTES, 1)
    for name, age in (("old", 100), ("older", 200), ("open", 300)):
        os.utime(tmp_path / name / ".recordmill-cache", (time.time() - age,) * 2)
    (tmp_path / "mine.block").write_bytes(b"a file of the user")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "000000.block").write_bytes(b"another file of the user")
    new = open_cached(server, tmp_path, limit)
    new.read_range(url_of(server), 0, 1)
    user_files = ["mine.block", "photos/000000.block"]
    assert cached_files(tmp_path) == sorted(
        blocks("large", 0) + ["old/large/000000.block", "open/large/000002.block"] + user_files
    )
    new.read_range(url_of(server), BLOCK_BYTES, 1)
    assert cached_files(tmp_path) == sorted(blocks("large", 0, 1) + ["open/large/000002.block"] + user_files)
    new.read_range(url_of(server), 2 * BLOCK_BYTES, 1)
    # Blocks of open datasets are kept.
    assert cached_files(tmp_path) == sorted(blocks("large", 0, 1) + ["open/large/000002.block"] + user_files)
    assert files.read_range(url_of(server), 2 * BLOCK_BYTES, 10) == LARGE[2 * BLOCK_BYTES :][:10]


def test_cache_size_is_correct_after_manual_removal(server, tmp_path):
    limit = 2 * BLOCK_BYTES + 1000
    open_cached(server, tmp_path, limit).read_range(url_of(server), 0, BLOCK_BYTES + 1)
    shutil.rmtree(tmp_path / "flowers-1")
    open_cached(server, tmp_path, limit).read_range(url_of(server), 0, BLOCK_BYTES + 1)
    assert cached_files(tmp_path) == blocks("large", 0, 1)


def test_processes_share_one_size_limit(server, tmp_path):
    code = "files = CachedFiles(files.source, f'{url}/bucket/data', pathlib.Path(folder), 17_000_000)\n"
    code += "for begin in range(0, 29_000_000, 1_000_000): files.read_range(f'{url}/bucket/data/large', begin, 9)\n"
    processes = [start(server, tmp_path, code) for _ in range(3)]
    assert [process.wait(timeout=120) for process in processes] == [0, 0, 0]
    for process in processes:
        process.stdout.close()
    assert len(cached_files(tmp_path)) == 2 and all(name.endswith(".block") for name in cached_files(tmp_path))


@contextlib.contextmanager
def limit_file_size(num_bytes: int) -> Iterator[None]:
    """Limits the file size, so that larger writes fail like writes to a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_full_disk_does_not_interrupt_reading(server, tmp_path, caplog):
    files = open_cached(server, tmp_path)
    with caplog.at_level(logging.WARNING, "tf_input"), limit_file_size(1 << 20):
        assert files.read(url_of(server)) == LARGE
        assert files.read_range(url_of(server), 5, 100) == LARGE[5:105]
    assert len(caplog.records) == 1 and "File too large" in caplog.text
    assert cached_files(tmp_path) == []
    assert open_cached(server, tmp_path).read(url_of(server)) == LARGE
    assert cached_files(tmp_path) == blocks("large", 0, 1, 2, 3)


def test_removed_cache_does_not_interrupt_reading(server, tmp_path, caplog):
    files = open_cached(server, tmp_path)
    shutil.rmtree(tmp_path / "flowers-1")
    with caplog.at_level(logging.WARNING, "tf_input"):
        assert files.read(url_of(server)) == LARGE
    assert len(caplog.records) == 1 and "was removed" in caplog.text
    assert cached_files(tmp_path) == []


def test_rejects_unwritable_cache_directory(server, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError, match=f"{tmp_path}/file"):
        open_cached(server, tmp_path / "file")


def test_fits_in_cache_compares_with_limit_and_free_space(server, tmp_path):
    path = url_of(server)
    assert not open_files(server.url).fits_in_cache({path: 1})
    assert open_files(tmp_path).fits_in_cache({path: 10**18})
    limited = open_cached(server, tmp_path / "a", 1012)
    assert limited.fits_in_cache({path: 1000}) and not limited.fits_in_cache({path: 1001}), "blocks have headers"
    disk = shutil.disk_usage(tmp_path)
    free = open_cached(server, tmp_path / "b")
    assert free.fits_in_cache({path: 1000}) and not free.fits_in_cache({path: disk.total})


def test_required_cache_bytes_include_blocks_of_open_datasets(server, tmp_path):
    """Blocks of open datasets are kept. Blocks of closed datasets can be removed."""
    sizes = {url_of(server): len(LARGE), url_of(server, "index/small"): len(SMALL)}
    alone = open_cached(server, tmp_path).required_cache_bytes(sizes)
    assert alone == len(LARGE) + len(SMALL) + 5 * 12
    other = open_cached(server, tmp_path, name="other")
    other.read_range(url_of(server), 0, 10)
    files = open_cached(server, tmp_path, 1 << 40)
    files.read_range(url_of(server), BLOCK_BYTES, 10)  # one block is cached already
    num_bytes = files.required_cache_bytes(sizes)
    assert num_bytes == alone + BLOCK_BYTES + 12
    assert open_cached(server, tmp_path, num_bytes).fits_in_cache(sizes) and not open_cached(server, tmp_path, num_bytes - 1).fits_in_cache(sizes)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", ResourceWarning)
        del other
    assert not [item for item in warned if str(tmp_path) in str(item.message)], "no file is left open"
    assert files.required_cache_bytes(sizes) == alone and open_cached(server, tmp_path, alone).fits_in_cache(sizes)
    for path in sizes:
        files.read(path)
    assert open_cached(server, tmp_path, 1).fits_in_cache(sizes), "all blocks are cached"
