"""Index files as the reader takes them: where records lie, and what a damaged one may do."""

import os
import pathlib
from typing import Iterator

import numpy as np
import pytest

from made_shards import flip, write_shard
from range_server import RangeServer
from tf_input.dataset_format import INDEX_HEADER, INDEX_ROW, ShardInfo, wrap_index
from tf_input.storage.index import MAX_HELD_BYTES, CorruptIndexError, ShardIndex
from tf_input.storage.local_files import LocalFiles
from tf_input.storage.open_files import open_files

RECORDS = [b"a", b"", b"ccc", b"dd" * 20]
BOUNDS = [0, 17, 33, 52, 108]


@pytest.fixture
def shard(tmp_path) -> ShardInfo:
    return write_shard(tmp_path, "shard", RECORDS)


WAYS = ("held", "by rows")
every_way = pytest.mark.parametrize("way", WAYS)


def open_index(folder: pathlib.Path, shard: ShardInfo, way: str = "held") -> ShardIndex:
    path = folder / shard.index
    return ShardIndex(str(path), shard, path.read_bytes() if way == "held" else None, LocalFiles() if way == "by rows" else None)


@every_way
def test_where_records_lie(tmp_path, shard, way):
    index = open_index(tmp_path, shard, way)
    for record in range(4):
        assert index.extent(record) == (BOUNDS[record], BOUNDS[record + 1])
        assert index.offset(record) == BOUNDS[record]
    for first, stop in ((0, 4), (1, 3), (3, 4), (0, 1)):
        begins, ends = index.extents(first, stop)
        assert begins.tolist() == BOUNDS[first:stop] and ends.tolist() == BOUNDS[first + 1 : stop + 1]
    for records in ([], [0], [3], [0, 2, 3], [0, 1, 2, 3]):
        assert index.offsets(records).tolist() == [BOUNDS[record] for record in records]


@every_way
def test_records_that_are_whole_in_a_part_of_the_shard(tmp_path, shard, way):
    index = open_index(tmp_path, shard, way)
    expected = {0: 0, 16: 0, 17: 1, 18: 1, 51: 2, 52: 3, 107: 3, 108: 4, 1000: 4}
    assert {num_bytes: index.num_complete(num_bytes) for num_bytes in expected} == expected


@every_way
def test_a_shard_without_records(tmp_path, way):
    index = open_index(tmp_path, write_shard(tmp_path, "empty", []), way)
    assert index.num_complete(0) == 0 and index.extents(0, 0)[0].tolist() == []


DAMAGES = {
    "is empty": (lambda data: b"", "the index has 0 bytes"),
    "ends in its header": (lambda data: data[:10], "the index has 10 bytes"),
    "ends in a row": (lambda data: data[:-1], "4 rows of the index have 95 bytes"),
    "has a row more": (lambda data: data + bytes(24), "4 rows of the index have 120 bytes"),
    "has another magic": (lambda data: b"X" + data[1:], "b'XMILLIDX'"),
    "has another version": (lambda data: data[:8] + b"\1\0\0\0" + data[12:], "version 1, 24 bytes per row"),
    "has other rows": (lambda data: data[:12] + b"\x20\0\0\0" + data[16:], "32 bytes per row"),
    "has absurdly many rows": (
        lambda data: data[:16] + b"\xff" * 8 + data[24:],
        "18446744073709551615 rows",
    ),
    "has a row too few": (lambda data: data[:16] + b"\3" + data[17:-24], "has 3 rows, and the shard 4 records"),
    "is of another shard": (lambda data: data[:25] + b"X" + data[26:], "the index does not belong to shard shard"),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_an_index_that_is_none_is_refused_by_name(tmp_path, shard, case):
    change, expected = DAMAGES[case]
    path = tmp_path / shard.index
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ValueError, match="shard.idx") as error:
        open_index(tmp_path, shard, "held")
    assert expected in str(error.value), case


def test_by_rows_what_is_no_index_is_refused_too_and_a_row_too_few_when_it_is_looked_up(tmp_path, shard):
    path = tmp_path / shard.index
    complete = path.read_bytes()
    for case, (change, expected) in DAMAGES.items():
        path.write_bytes(change(complete))
        if case == "has a row more":  # of which nobody reads
            assert open_index(tmp_path, shard, "by rows").extent(3) == (52, 108)
            continue
        with pytest.raises(ValueError, match="shard.idx") as error:
            open_index(tmp_path, shard, "by rows").extent(3)
        if case != "ends in a row":
            assert expected.removeprefix("an index of ") in str(error.value), case
        else:
            assert isinstance(error.value, CorruptIndexError) and "the file ends in row 3 of 4" in str(error.value)


def test_an_index_in_memory_has_the_checksum_of_the_manifest(tmp_path, shard):
    path = tmp_path / shard.index
    flip(path, 8 * path.stat().st_size - 1)  # of the last label, which nothing else would notice
    with pytest.raises(ValueError, match="shard.idx: the index is corrupt: it has CRC-32C"):
        ShardIndex.read(str(path), shard, LocalFiles())
    assert open_index(tmp_path, shard, "by rows").extent(3) == (52, 108)


def test_an_index_that_is_cut_short_while_it_is_open_ends_no_process(tmp_path, shard):
    path = tmp_path / shard.index
    index = ShardIndex.read(str(path), shard, LocalFiles())
    os.truncate(path, 0)
    assert [index.extent(record) for record in range(4)] == list(zip(BOUNDS, BOUNDS[1:])) and index.labels().tolist() == [-1] * 4


def test_a_missing_index_is_named(tmp_path, shard):
    path = tmp_path / shard.index
    path.unlink()
    with pytest.raises(FileNotFoundError, match="shard.idx is missing"):
        open_index(tmp_path, shard, "by rows")
    with pytest.raises(FileNotFoundError, match="shard.idx is missing"):
        ShardIndex.read(str(path), shard, LocalFiles())


@pytest.fixture
def large(tmp_path) -> Iterator[tuple[RangeServer, ShardInfo]]:
    """An index of 2.4 MB, behind a server: each record is 20 bytes long."""
    rows = np.zeros(100_000, [("offset", "<u8"), ("rest", "V16")])
    rows["offset"] = np.arange(100_000) * 20
    data = wrap_index(rows.tobytes(), (0, 0))
    assert len(data) > 2 * MAX_HELD_BYTES
    (tmp_path / "large.idx").write_bytes(data)
    with RangeServer(tmp_path) as server:
        yield server, ShardInfo("large", 100_000, 2_000_000, 0, "large.idx", len(data), 0)


def test_of_a_large_remote_index_few_rows_are_read(large):
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
    starts = [0, 20_000, 40_000, 99_000]  # the last is further away than a request is worth
    assert index.offsets(starts).tolist() == [20 * start for start in starts]
    assert len(server.requests) == 2 and server.num_bytes == 40_002 * INDEX_ROW.size


def test_a_small_remote_index_is_one_request(tmp_path, shard):
    pytest.importorskip("obstore", reason="needs obstore: pip install 'recordmill[remote]'")
    with RangeServer(tmp_path) as server:
        path = f"{server.url}/bucket/{shard.index}"
        index = ShardIndex.read(path, shard, open_files(path))
        assert [index.extent(record) for record in range(4)] == list(zip(BOUNDS, BOUNDS[1:]))
        assert len(server.requests) == 1


def test_a_flipped_offset_stays_within_the_shard(tmp_path, shard):
    """So that nobody reads, or makes room for, more than the shard has."""
    for bit in range(64):
        path = tmp_path / shard.index
        complete = path.read_bytes()
        flip(path, (INDEX_HEADER.size + 2 * INDEX_ROW.size) * 8 + bit)
        index = open_index(tmp_path, shard, "by rows")
        begins, ends = index.extents(0, 4)
        assert 0 <= begins.min() and ends.max() <= shard.num_bytes, bit
        assert [index.extent(record) for record in range(4)] == list(zip(begins.tolist(), ends.tolist())), bit
        assert index.extent(0) == (0, 17) and index.extent(3) == (52, 108), "others are as they were"
        path.write_bytes(complete)
