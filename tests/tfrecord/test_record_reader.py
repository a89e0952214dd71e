"""Tests how intact and corrupt TFRecord files are read."""

import gzip
import io
import pathlib
import zlib

import google_crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipelines.tfrecord import record_reader
from beam_pipelines.tfrecord.record_reader import BadRecord, NoRecordsError, Record, check_frames, is_compressed, read_records
from beam_pipelines.tfrecord.record_writer import RecordWriter

DATA = [b"first", b"", b"x" * 376, b"last"]


def write(data: list[bytes]) -> bytes:
    file = io.BytesIO()
    writer = RecordWriter(file)
    for item in data:
        writer.write(item)
    writer.flush()
    return file.getvalue()


def read(contents: bytes) -> list[Record | BadRecord]:
    return list(read_records(io.BytesIO(contents)))


def data_of(records: list[Record | BadRecord]) -> list[bytes | None]:
    return [record.data if isinstance(record, Record) else None for record in records]


def flip(contents: bytes, position: int) -> bytes:
    return contents[:position] + bytes([contents[position] ^ 0x55]) + contents[position + 1 :]


@pytest.mark.parametrize("compress", [bytes, gzip.compress, zlib.compress], ids=["plain", "gzip", "zlib"])
def test_reads_plain_and_compressed_records(compress):
    assert data_of(read(compress(write(DATA)))) == DATA
    assert read(compress(b"")) == []


@pytest.mark.parametrize("compression", ["", "GZIP", "ZLIB"])
def test_reads_files_written_by_tensorflow(tmp_path: pathlib.Path, compression):
    import tensorflow as tf

    path = tmp_path / "x.tfrecord"
    with tf.io.TFRecordWriter(str(path), compression) as writer:
        for item in DATA:
            writer.write(item)
    assert data_of(read(path.read_bytes())) == DATA


def test_reads_consecutive_gzip_members():
    assert data_of(read(gzip.compress(write(DATA)) + gzip.compress(write([b"more"])))) == [*DATA, b"more"]


def test_offsets_point_to_records_in_the_file():
    contents = write(DATA)
    for record in read(contents):
        start = record.offset + record_reader.HEADER_BYTES
        assert contents[start : start + len(record.data)] == record.data


def test_record_with_zlib_magic_is_not_compressed():
    contents = write([b"x" * 376])
    assert contents[:2] == b"\x78\x01" and not is_compressed(io.BytesIO(contents))


def test_corrupt_data_loses_one_record():
    records = read(flip(write(DATA), 12))
    assert data_of(records) == [None, *DATA[1:]]
    assert records[0].offset == 0 and records[0].num_bytes == 16 + len(DATA[0]) and "checksum" in records[0].message


@pytest.mark.parametrize("position", [0, 7, 8, 11], ids=["length", "its high byte", "checksum", "its last byte"])
def test_corrupt_length_loses_one_record(position):
    records = read(flip(write([b"a" * 100, b"b" * 50, b"c"]), 116 + position))
    assert data_of(records) == [b"a" * 100, None, b"c"]
    assert (records[1].offset, records[1].num_bytes) == (116, 66) and "66 bytes are lost" in records[1].message


def test_truncated_file_keeps_complete_records():
    contents = write(DATA)
    for length in range(1, len(contents)):
        complete = 0
        while len(write(DATA[: complete + 1])) <= length:
            complete += 1
        at_boundary = len(write(DATA[:complete])) == length
        if not complete and length < record_reader.HEADER_BYTES:
            with pytest.raises(NoRecordsError):
                read(contents[:length])
        else:
            assert data_of(read(contents[:length])) == DATA[:complete] + ([] if at_boundary else [None]), length


def test_records_after_a_truncated_file_are_found():
    assert data_of(read(write([b"a" * 1000])[:500] + write([b"b", b"c"]))) == [None, b"b", b"c"]


def test_header_across_two_read_blocks_is_found(monkeypatch):
    monkeypatch.setattr(record_reader, "_READ_BYTES", 64)
    for gap in range(40, 140):
        assert data_of(read(flip(write([b"a" * gap, b"b"]), 0))) == [None, b"b"], gap


def test_frames_are_checked():
    frames = [write([item]) for item in DATA]
    assert check_frames(frames).tolist() == [google_crc32c.value(record.data) for record in read(write(DATA))]
    for position in (0, 8, 12, -5, -1):  # length, its checksum, data, its checksum
        assert check_frames([*frames, flip(frames[0], position % len(frames[0]))]) is None, position
    assert check_frames([frames[0][:-1]]) is None


def test_other_files_are_rejected():
    for contents in (b"hi", b"<html>" * 1000, bytes(5000), gzip.compress(b"<html>" * 10), b"\x89PNG" * 9):
        with pytest.raises(NoRecordsError):
            read(contents)


def write_header(length: int) -> bytes:
    header = length.to_bytes(8, "little")
    return header + record_reader._CRC.pack(record_reader.masked(record_reader.google_crc32c.value(header)))


@pytest.mark.parametrize("compress", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_huge_length_allocates_no_memory(compress):
    for length in (2**63, 2**40, 2**30 - 1):
        records = read(compress(write([b"a"]) + write_header(length) + b"b" * 100))
        assert data_of(records) == [b"a", None], length
        assert str(length) in records[1].message


def test_record_above_the_size_limit_is_skipped(monkeypatch):
    monkeypatch.setattr(record_reader, "MAX_FILE_BYTES", 100)
    assert data_of(read(write([b"a" * 101, b"b"]))) == [None, b"b"]
    assert data_of(read(gzip.compress(write([b"b", b"a" * 101, b"b"])))) == [b"b", None]


@pytest.mark.parametrize("compress", [gzip.compress, zlib.compress], ids=["gzip", "zlib"])
def test_corrupt_compressed_file_keeps_records_before_the_error(compress):
    import numpy as np

    data = [np.random.default_rng(index).bytes(100_000) for index in range(30)]
    contents = compress(write(data))
    for corrupt in (contents[: len(contents) // 2], flip(contents, len(contents) // 2)):
        read_back = data_of(read(corrupt))
        good = [item for item in read_back if item is not None]
        assert read_back[-1] is None and good[:10] == data[:10] and set(good) < set(data)
    assert data_of(read(contents[:-1])) == [*data, None]  # the checksum of the compressed data is cut off


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=40), min_size=1, max_size=6), st.data())
def test_corruption_never_adds_a_record(data, draw):
    contents = bytearray(write(data))
    for _ in range(draw.draw(st.integers(1, 3))):
        contents[draw.draw(st.integers(0, len(contents) - 1))] = draw.draw(st.integers(0, 255))
    try:
        records = read(bytes(contents))
    except NoRecordsError:
        return
    assert {item for item in data_of(records) if item is not None} <= {*data}
    assert sum(16 + len(record.data) if isinstance(record, Record) else record.num_bytes for record in records) == len(contents)
