"""Index files as the reader takes them: where records lie, and what a damaged one may do."""

import pathlib

import pytest
from made_shards import flip, write_shard

from tf_input.dataset_format import INDEX_HEADER, INDEX_ROW, ShardInfo
from tf_input.index import ShardIndex

RECORDS = [b"a", b"", b"ccc", b"dd" * 20]
BOUNDS = [0, 17, 33, 52, 108]


@pytest.fixture
def shard(tmp_path) -> ShardInfo:
    return write_shard(tmp_path, "shard", RECORDS)


def open_index(folder: pathlib.Path, shard: ShardInfo, held: bool = False) -> ShardIndex:
    path = folder / shard.index
    return ShardIndex(str(path), shard, path.read_bytes() if held else None)


@pytest.mark.parametrize("held", [False, True], ids=["mapped", "held"])
def test_where_records_lie(tmp_path, shard, held):
    index = open_index(tmp_path, shard, held)
    for record in range(4):
        assert index.extent(record) == (BOUNDS[record], BOUNDS[record + 1])
        assert index.offset(record) == BOUNDS[record]
    for first, stop in ((0, 4), (1, 3), (3, 4), (0, 1)):
        begins, ends = index.extents(first, stop)
        assert begins.tolist() == BOUNDS[first:stop] and ends.tolist() == BOUNDS[first + 1 : stop + 1]


def test_records_that_are_whole_in_a_part_of_the_shard(tmp_path, shard):
    index = open_index(tmp_path, shard)
    expected = {0: 0, 16: 0, 17: 1, 18: 1, 51: 2, 52: 3, 107: 3, 108: 4, 1000: 4}
    assert {num_bytes: index.num_whole(num_bytes) for num_bytes in expected} == expected


@pytest.mark.parametrize("held", [False, True], ids=["mapped", "held"])
def test_a_shard_without_records(tmp_path, held):
    index = open_index(tmp_path, write_shard(tmp_path, "empty", []), held)
    assert index.num_whole(0) == 0 and index.extents(0, 0)[0].tolist() == []


DAMAGES = {
    "is empty": (lambda data: b"", "an index of 0 bytes"),
    "ends in its header": (lambda data: data[:10], "an index of 10 bytes"),
    "ends in a row": (lambda data: data[:-1], "an index of 4 rows has 95 bytes; expected 96"),
    "has a row more": (lambda data: data + bytes(24), "an index of 4 rows has 120 bytes"),
    "has another magic": (lambda data: b"X" + data[1:], "index header b'XMILLIDX'"),
    "has another version": (lambda data: data[:8] + b"\1\0\0\0" + data[12:], "version 1, 24 bytes a row; expected"),
    "has other rows": (lambda data: data[:12] + b"\x20\0\0\0" + data[16:], "32 bytes a row"),
    "has absurdly many rows": (
        lambda data: data[:16] + b"\xff" * 8 + data[24:],
        "an index of 18446744073709551615 rows",
    ),
    "is of another shard": (lambda data: data[:16] + b"\3" + data[17:-24], "3 rows; the shard has 4 records"),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_an_index_that_is_none_is_refused_by_name(tmp_path, shard, case):
    change, expected = DAMAGES[case]
    path = tmp_path / shard.index
    path.write_bytes(change(path.read_bytes()))
    for held in (False, True):
        with pytest.raises(ValueError, match="shard.idx") as error:
            open_index(tmp_path, shard, held)
        assert expected in str(error.value), case


def test_a_missing_index_is_named(tmp_path, shard):
    path = tmp_path / shard.index
    path.unlink()
    with pytest.raises(FileNotFoundError, match="shard.idx is missing"):
        ShardIndex(str(path), shard)


def test_a_flipped_offset_stays_within_the_shard(tmp_path, shard):
    """So that nobody reads, or makes room for, more than the shard has."""
    for bit in range(64):
        path = tmp_path / shard.index
        whole = path.read_bytes()
        flip(path, (INDEX_HEADER.size + 2 * INDEX_ROW.size) * 8 + bit)
        index = open_index(tmp_path, shard)
        begins, ends = index.extents(0, 4)
        assert 0 <= begins.min() and ends.max() <= shard.num_bytes, bit
        assert [index.extent(record) for record in range(4)] == list(zip(begins.tolist(), ends.tolist())), bit
        assert index.extent(0) == (0, 17) and index.extent(3) == (52, 108), "others are as they were"
        path.write_bytes(whole)
