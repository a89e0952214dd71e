"""Tests that reading a range of shuffle keys from sorted files returns exactly the references in this range."""

import contextlib
import os
import pathlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_pipelines.elements.dead_letters import DeadLetter, merge_json_lines, read_lines, to_json_lines
from beam_pipelines.elements.reference_runs import SpoolRange, read_references, read_range, write_dead_letters, write_chunks, write_run
from beam_pipelines.elements.references import CHUNK_REFERENCES, ROW, References, BinaryColumn
from beam_pipelines.errors import RunError
from beam_pipelines.storage.spool import SpoolReader

# The few fixed values make equal keys and keys at both ends likely.
ORDERS = st.one_of(st.integers(0, 2**64 - 1), st.sampled_from([0, 1, 2**48, 2**48 + 1, 2**63, 2**64 - 1]))


def make_references(orders: list[int], first: int = 0) -> References:
    """Returns references with numbered keys."""
    rows = np.zeros(len(orders), ROW)
    rows["order"] = orders
    keys = BinaryColumn.of([f"key {first + index}".encode() for index in range(len(orders))])
    nothing = BinaryColumn(np.zeros(len(orders), np.uint32), b"")
    return References(rows, ("train",), (), keys, *[nothing] * 6)


def pairs(references: References) -> list[tuple[int, bytes]]:
    return list(zip(references.rows["order"].tolist(), references.keys, strict=True))


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets a small chunk size, so that each sorted run has many chunks."""
    for module in ("references", "reference_runs"):
        monkeypatch.setattr(f"beam_pipelines.elements.{module}.CHUNK_REFERENCES", 3)


@contextlib.contextmanager
def new_spool(tmp_path_factory: pytest.TempPathFactory):
    directory = str(tmp_path_factory.mktemp("spool") / "spool")
    with SpoolReader(directory) as reader:
        yield directory, reader


@pytest.mark.usefixtures("small_chunks")
@given(
    listed=st.lists(st.lists(ORDERS, min_size=1, max_size=30), min_size=1, max_size=3),
    bounds=st.lists(ORDERS, max_size=6, unique=True),
)
def test_each_reference_is_in_the_block_of_its_key(tmp_path_factory, listed, bounds):
    starts = sorted({0, *bounds})
    blocks: dict[int, list[tuple[int, bytes]]] = {block: [] for block in range(len(starts))}
    num_before = 0
    with new_spool(tmp_path_factory) as (directory, reader):
        for orders in listed:
            run = write_run([make_references(orders, num_before)], directory)
            num_before += len(orders)
            cut = list(run.cut(np.array(starts, np.uint64)))
            assert [block for block, _ in cut] == sorted({block for block, _ in cut})
            for block, spool_range in cut:
                actual = read_references(spool_range, reader)
                assert (np.diff(actual.rows["order"].astype(object)) >= 0).all()
                begin, end = starts[block], (*starts[1:], 2**64)[block]
                blocks[block] += [pair for pair in pairs(actual) if begin <= pair[0] < end]
    expected = sorted((order, f"key {location}".encode()) for location, order in enumerate(sum(listed, [])))
    assert sorted(sum(blocks.values(), [])) == expected


@pytest.mark.usefixtures("small_chunks")
@given(orders=st.lists(ORDERS, min_size=1, max_size=30, unique=True), bounds=st.lists(ORDERS, max_size=6, unique=True))
def test_block_reads_at_most_one_extra_chunk_at_each_end(tmp_path_factory, orders, bounds):
    starts = sorted({0, *bounds})
    with new_spool(tmp_path_factory) as (directory, reader):
        run = write_run([make_references(orders)], directory)
        for block, spool_range in run.cut(np.array(starts, np.uint64)):
            begin, end = starts[block], (*starts[1:], 2**64)[block]
            others = [order for order, _ in pairs(read_references(spool_range, reader)) if not begin <= order < end]
            assert len(others) <= 2 * 3


@pytest.mark.usefixtures("small_chunks")
@given(batches=st.lists(st.lists(ORDERS, max_size=9), min_size=1, max_size=4).filter(any))
def test_run_is_sorted_and_equal_keys_keep_their_order(tmp_path_factory, batches):
    made = [make_references(orders, sum(map(len, batches[:location]))) for location, orders in enumerate(batches)]
    with new_spool(tmp_path_factory) as (directory, reader):
        run = write_run(made, directory)
        assert run.num_references == sum(map(len, batches))
        (size,) = (path.stat().st_size for path in pathlib.Path(directory).iterdir())
        actual = pairs(read_references(SpoolRange(run.spool, 0, size), reader))
    assert actual == sorted((pair for item in made for pair in pairs(item)), key=lambda pair: pair[0])


@pytest.mark.usefixtures("small_chunks")
@given(orders=st.lists(ORDERS, min_size=1, max_size=30), num=st.integers(1, 40))
def test_smallest_reads_few_more_references_than_requested(tmp_path_factory, orders, num):
    with new_spool(tmp_path_factory) as (directory, reader):
        actual = read_references(write_run([make_references(orders)], directory).smallest(num), reader)
    assert actual.rows["order"].tolist()[:num] == sorted(orders)[:num]
    assert len(actual) < num + 3


def test_run_has_a_few_bytes_per_thousand_references(tmp_path):
    run = write_run([make_references(np.random.default_rng(0).integers(0, 2**64, 50_000, np.uint64).tolist())], str(tmp_path))
    num_pieces = -(-50_000 // CHUNK_REFERENCES)
    assert (len(run.orders), len(run.offsets)) == (8 * num_pieces, 8 * (num_pieces + 1))


def test_empty_run_has_no_chunks(tmp_path):
    run = write_run([make_references([])], str(tmp_path))
    assert run.num_references == 0
    assert list(run.cut(np.array([0, 5], np.uint64))) == []


@pytest.mark.usefixtures("small_chunks")
def test_chunks_for_shards_can_be_read_separately(tmp_path):
    parts = [make_references(list(range(num)), first) for num, first in ((5, 0), (0, 5), (1, 5), (7, 6))]
    ranges = [(0, 5), (5, 5), (5, 6), (6, 13)]
    chunks = write_chunks(References.concatenate(parts), ranges, str(tmp_path))
    assert len(list(tmp_path.iterdir())) == 1
    with SpoolReader(str(tmp_path)) as reader:
        assert [pairs(read_references(spool_range, reader)) for spool_range in chunks] == list(map(pairs, parts))


def test_missing_truncated_or_corrupt_spool_fails_the_run(tmp_path):
    run = write_run([make_references(list(range(5000)))], str(tmp_path))
    (file,) = tmp_path.iterdir()
    data = file.read_bytes()
    ((_, complete),) = run.cut(np.array([0], np.uint64))
    cases = [
        ("truncated", lambda: os.truncate(file, len(data) - 1), f"{len(data) - 1} of {len(data)} bytes at offset 0"),
        ("corrupt", lambda: file.write_bytes(data[:900] + bytes([data[900] ^ 1]) + data[901:]), "the spool is corrupt at offset 0"),
        ("missing", file.unlink, "the spool could not be read: No such file"),
    ]
    for case, corrupt, message in cases:
        corrupt()
        with SpoolReader(str(tmp_path)) as reader, pytest.raises(RunError, match=message):
            read_references(complete, reader)
            pytest.fail(case)


LETTERS = st.builds(DeadLetter, *[st.text(st.characters(exclude_categories=["Cs"]), max_size=5)] * 4)


@given(runs=st.lists(st.lists(LETTERS, min_size=1, max_size=8), max_size=4), block_bytes=st.integers(1, 200))
def test_dead_letters_of_several_runs_are_merged_in_order(tmp_path_factory, runs, block_bytes):
    with new_spool(tmp_path_factory) as (directory, reader):
        chunks = [write_dead_letters(letters, directory) for letters in runs]

        def lines(run: SpoolRange):
            return read_lines(lambda offset, num: reader.read(run.spool, run.offset + offset, num), run.num_bytes, block_bytes)

        merged = b"".join(merge_json_lines(map(lines, chunks)))
        each = [read_range(spool_range, reader) for spool_range in chunks]
    expected = sorted(letter for letters in runs for letter in letters)
    assert merged.splitlines(keepends=True) == [to_line(letter) for letter in expected]
    assert each == [b"".join(map(to_line, sorted(letters))) for letters in runs]


def test_missing_lines_at_the_end_are_an_error():
    data = b"first\nsecond\n"
    with pytest.raises(RunError, match="6 instead of 13 bytes at offset 0"):
        list(read_lines(lambda offset, num: data[:6][offset : offset + num], len(data), 100))


def to_line(letter: DeadLetter) -> bytes:
    return to_json_lines([letter]).encode()
