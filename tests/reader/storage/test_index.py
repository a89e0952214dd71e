"""Tests that index files with record offsets can be read, and that corrupt index files are rejected."""

import os
import pathlib
from typing import Iterator

import numpy as np
import pytest

from made_shards import flip, write_shard
from range_server import RangeServer
from tf_input.dataset_format import INDEX_HEADER, INDEX_ROW, ShardInfo, wrap_index
from tf_input.storage.index import MAX_CACHED_INDEX_BYTES, CorruptIndexError, ShardIndex
from tf_input.storage.local_files import LocalFiles
from tf_input.storage.open_files import open_files

RECORDS = [b"a", b"", b"ccc", b"dd" * 20]
BOUNDS = [0, 17, 33, 52, 108]


@pytest.fixture
def shard(tmp_path) -> ShardInfo:
    return write_shard(tmp_path, "shard", RECORDS)


MODES = ("in memory", "by row")
every_mode = pytest.mark.parametrize("mode", MODES)


def open_index(folder: pathlib.Path, shard: ShardInfo, mode: str = "in memory") -> ShardIndex:
    path = folder / shard.index
    return ShardIndex(str(path), shard, path.read_bytes() if mode == "in memory" else None, LocalFiles() if mode == "by row" else None)


@every_mode
def test_returns_offsets_and_extents_of_records(tmp_path, shard, mode):
    index = open_index(tmp_path, shard, mode)
    for record in range(4):
        assert index.extent(record) == (BOUNDS[record], BOUNDS[record + 1])
        assert index.offset(record) == BOUNDS[record]
    for first, stop in ((0, 4), (1, 3), (3, 4), (0, 1)):
        begins, ends = index.extents(first, stop)
        assert begins.tolist() == BOUNDS[first:stop] and ends.tolist() == BOUNDS[first + 1 : stop + 1]
    for records in ([], [0], [3], [0, 2, 3], [0, 1, 2, 3]):
        assert index.offsets(records).tolist() == [BOUNDS[record] for record in records]


@every_mode
def test_num_complete_counts_records_within_the_first_bytes(tmp_path, shard, mode):
    index = open_index(tmp_path, shard, mode)
    expected = {0: 0, 16: 0, 17: 1, 18: 1, 51: 2, 52: 3, 107: 3, 108: 4, 1000: 4}
    assert {num_bytes: index.num_complete(num_bytes) for num_bytes in expected} == expected


@every_mode
def test_index_of_an_empty_shard_is_empty(tmp_path, mode):
    index = open_index(tmp_path, write_shard(tmp_path, "empty", []), mode)
    assert index.num_complete(0) == 0 and index.extents(0, 0)[0].tolist() == []


CORRUPTIONS = {
    "empty": (lambda data: b"", "the index has 0 bytes"),
    "truncated header": (lambda data: data[:10], "the index has 10 bytes"),
    "truncated row": (lambda data: data[:-1], "4 rows of the index have 95 bytes"),
    "extra row": (lambda data: data + bytes(24), "4 rows of the index have 120 bytes"),
    "wrong magic": (lambda data: b"X" + data[1:], "b'XMILLIDX'"),
    "wrong version": (lambda data: data[:8] + b"\1\0\0\0" + data[12:], "version 1, 24 bytes per row"),
    "wrong row size": (lambda data: data[:12] + b"\x20\0\0\0" + data[16:], "32 bytes per row"),
    "too many rows": (
        lambda data: data[:16] + b"\xff" * 8 + data[24:],
        "18446744073709551615 rows",
    ),
    "missing row": (lambda data: data[:16] + b"\3" + data[17:-24], "has 3 rows, and the shard 4 records"),
    "index of another shard": (lambda data: data[:25] + b"X" + data[26:], "the index does not belong to shard shard"),
}


@pytest.mark.parametrize("case", CORRUPTIONS)
def test_corrupt_index_raises_an_error_with_its_name(tmp_path, shard, case):
    change, expected = CORRUPTIONS[case]
    path = tmp_path / shard.index
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ValueError, match="shard.idx") as error:
        open_index(tmp_path, shard, "in memory")
    assert expected in str(error.value), case


def test_corrupt_index_raises_an_error_when_read_by_row(tmp_path, shard):
    path = tmp_path / shard.index
    complete = path.read_bytes()
    for case, (change, expected) in CORRUPTIONS.items():
        path.write_bytes(change(complete))
        if case == "extra row":  # the extra row is never read
            assert open_index(tmp_path, shard, "by row").extent(3) == (52, 108)
            continue
        with pytest.raises(ValueError, match="shard.idx") as error:
            open_index(tmp_path, shard, "by row").extent(3)
        if case != "truncated row":
            assert expected in str(error.value), case
        else:
            assert isinstance(error.value, CorruptIndexError) and "row 3 of 4" in str(error.value)


def test_index_in_memory_is_compared_with_manifest_checksum(tmp_path, shard):
    path = tmp_path / shard.index
    flip(path, 8 * path.stat().st_size - 1)  # the last label, which only the checksum covers
    with pytest.raises(ValueError, match="shard.idx.* CRC-32C"):
        ShardIndex.read(str(path), shard, LocalFiles())
    assert open_index(tmp_path, shard, "by row").extent(3) == (52, 108)


def test_open_index_survives_truncation_of_its_file(tmp_path, shard):
    path = tmp_path / shard.index
    index = ShardIndex.read(str(path), shard, LocalFiles())
    os.truncate(path, 0)
    assert [index.extent(record) for record in range(4)] == list(zip(BOUNDS, BOUNDS[1:])) and index.labels().tolist() == [-1] * 4


def test_error_names_the_missing_index(tmp_path, shard):
    path = tmp_path / shard.index
    path.unlink()
    with pytest.raises(FileNotFoundError, match="shard.idx is missing"):
        open_index(tmp_path, shard, "by row")
    with pytest.raises(FileNotFoundError, match="shard.idx is missing"):
        ShardIndex.read(str(path), shard, LocalFiles())


@pytest.fixture
def large(tmp_path) -> Iterator[tuple[RangeServer, ShardInfo]]:
    """Serves an index of 2.4 MB. Each record has 20 bytes."""
    rows = np.zeros(100_000, [("offset", "<u8"), ("rest", "V16")])
    rows["offset"] = np.arange(100_000) * 20
    data = wrap_index(rows.tobytes(), (0, 0))
    assert len(data) > 2 * MAX_CACHED_INDEX_BYTES
    (tmp_path / "large.idx").write_bytes(data)
    with RangeServer(tmp_path) as server:
        yield server, ShardInfo("large", 100_000, 2_000_000, 0, "large.idx", len(data), 0)


def test_large_remote_index_is_read_by_row(large):
    pytest.importorskip("obstore", reason="needs obstore: pip install 'recordmill[remote]'")
    server, shard = large
    path = f"{server.url}/bucket/large.idx"
    index = ShardIndex.read(path, shard, open_files(path))
    assert index.extent(50_000) == (1_000_000, 1_000_020) and index.extent(99_999) == (1_999_980, 2_000_000)
    assert server.num_bytes == INDEX_HEADER.size + 3 * INDEX_ROW.size
    server.reset()
    begins, ends = index.extents(10, 1010)
    assert begins.tolist() == list(range(200, 20_200, 20)) and ends.tolist() == list(range(220, 20_220, 20))
    assert len(server.requests) == 1 and server.num_bytes == 1001 * INDEX_ROW.size
    server.reset()
    starts = [0, 20_000, 40_000, 99_000]  # the last offset is too far away for a shared request
    assert index.offsets(starts).tolist() == [20 * start for start in starts]
    assert len(server.requests) == 2 and server.num_bytes == 40_002 * INDEX_ROW.size


def test_small_remote_index_is_read_with_one_request(tmp_path, shard):
    pytest.importorskip("obstore", reason="needs obstore: pip install 'recordmill[remote]'")
    with RangeServer(tmp_path) as server:
        path = f"{server.url}/bucket/{shard.index}"
        index = ShardIndex.read(path, shard, open_files(path))
        assert [index.extent(record) for record in range(4)] == list(zip(BOUNDS, BOUNDS[1:]))
        assert len(server.requests) == 1


def test_flipped_offset_bits_stay_within_the_shard(tmp_path, shard):
    """Offsets outside the shard would cause very large reads and allocations."""
    for bit in range(64):
        path = tmp_path / shard.index
        complete = path.read_bytes()
        flip(path, (INDEX_HEADER.size + 2 * INDEX_ROW.size) * 8 + bit)
        index = open_index(tmp_path, shard, "by row")
        begins, ends = index.extents(0, 4)
        assert 0 <= begins.min() and ends.max() <= shard.num_bytes, bit
        assert [index.extent(record) for record in range(4)] == list(zip(begins.tolist(), ends.tolist())), bit
        assert index.extent(0) == (0, 17) and index.extent(3) == (52, 108), "other rows are unchanged"
        path.write_bytes(complete)
