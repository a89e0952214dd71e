"""Tests that packing, slicing and joining do not change references, and that packed references are small."""

import itertools
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_pipelines.elements.references import CHUNK_REFERENCES, ROW, References, BinaryColumn, unpack_chunks, unpack_some
from beam_pipelines.images.raw_image import RawImage

# Without surrogates, which UTF-8 cannot encode, and without NUL, which file names cannot contain.
NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6)
RAWS = st.builds(RawImage, st.integers(1, 9), st.integers(1, 9), st.sampled_from([1, 3]), st.booleans())
TEXTS = ("keys", "paths", "labels", "groups", "values", "strata", "hashes")


@st.composite
def references(draw: st.DrawFn) -> References:
    """Generates references with random rows and columns. Columns may be empty."""
    num = draw(st.integers(0, 20))
    splits = tuple(draw(st.lists(st.sampled_from(["train", "validation", "test", "ä"]), min_size=1, unique=True)))
    raws = tuple(draw(st.lists(RAWS, max_size=3, unique=True)))
    num_bytes = num * ROW.itemsize
    # Generating each field separately takes ten times as long
    rows = np.frombuffer(draw(st.binary(min_size=num_bytes, max_size=num_bytes)), ROW).copy()
    rows["split"] %= len(splits)
    rows["raw"] %= len(raws) + 1
    return References(rows, splits, raws, *(draw(binary_columns(num)) for _ in TEXTS))


@st.composite
def binary_columns(draw: st.DrawFn, num: int) -> BinaryColumn:
    """Generates a column whose values have up to eight bytes."""
    lengths = [byte % 9 for byte in draw(st.binary(min_size=num, max_size=num))] if draw(st.booleans()) else [0] * num
    data = draw(st.binary(min_size=sum(lengths), max_size=sum(lengths)))
    ends = [*itertools.accumulate(lengths)]
    return BinaryColumn.of([data[end - length : end] for length, end in zip(lengths, ends)])


def as_rows(some: References) -> list[tuple]:
    """Returns the references as tuples in which table indices are replaced with the values."""
    raws = (None, *some.raws)
    columns = [list(getattr(some, name)) for name in TEXTS]
    return [
        (order, some.splits[split], raws[raw], *rest, *texts)
        for (order, split, raw, *rest), *texts in zip(some.rows.tolist(), *columns, strict=True)
    ]


def make_references(num: int) -> References:
    """Returns references to photographs in class folders, with random shuffle keys."""
    rows = np.zeros(num, ROW)
    rows["order"] = np.random.default_rng(0).integers(0, 2**64, num, np.uint64)
    rows["offset"] = -1
    labels = [f"some_class_name_{index // 500}" for index in range(num)]
    keys = [f"{label}/IMG_{index:06d}.jpg".encode() for index, label in enumerate(labels)]
    nothing = BinaryColumn(np.zeros(num, np.uint32), b"")
    return References(rows, ("train", "validation"), (), BinaryColumn.of(keys), nothing, BinaryColumn.of([item.encode() for item in labels]), *[nothing] * 4)


@pytest.mark.slow(2)
@given(references())
def test_packed_references_are_unpacked_unchanged(some):
    unpacked = References.unpack(some.pack())
    assert unpacked.rows.dtype == ROW and len(unpacked) == len(some)
    assert unpacked.splits == some.splits and set(unpacked.raws) <= set(some.raws)
    assert as_rows(unpacked) == as_rows(some)


def test_extreme_values_of_all_fields_are_kept():
    rows = np.zeros(2, ROW)
    for name in set(ROW.names) - {"split", "raw"}:
        rows[name] = np.iinfo(ROW[name]).min, np.iinfo(ROW[name]).max
    rows["split"][1], rows["raw"][1] = 255, 65_535
    item = References(rows, ("train",), (), *[BinaryColumn.of([b"", b"x" * 100_000])] * 7)
    unpacked = References.unpack(item.pack())
    assert unpacked.rows.tolist() == rows.tolist()
    assert [list(getattr(unpacked, name)) for name in TEXTS] == [[b"", b"x" * 100_000]] * 7


def test_unpacked_rows_are_writable():
    unpacked = References.unpack(make_references(2).pack())
    unpacked.rows["num_bytes"] = 7
    assert unpacked.rows["num_bytes"].tolist() == [7, 7]


@given(references(), st.data())
def test_take_selects_references_by_index(some, data):
    indices = data.draw(st.lists(st.integers(0, len(some) - 1)) if len(some) else st.just([]))
    rows = as_rows(some)
    assert as_rows(some.take(np.array(indices, np.int64))) == [rows[index] for index in indices]


@given(references(), st.data())
def test_slice_selects_a_range(some, data):
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(some))] * 2)))
    assert as_rows(some.slice(start, stop)) == as_rows(some)[start:stop]


@pytest.mark.slow
@given(st.lists(references(), max_size=4))
def test_concatenate_joins_batches_with_different_tables(batches):
    before = [as_rows(batch) for batch in batches]
    joined = References.concatenate(batches)
    assert joined.rows.dtype == ROW
    assert as_rows(joined) == sum(before, [])
    assert [as_rows(batch) for batch in batches] == before, "the batches must not change"
    assert len(set(joined.splits)) == len(joined.splits) and len(set(joined.raws)) == len(joined.raws)


def test_joined_references_may_have_many_image_sizes():
    def with_raws(start: int, stop: int) -> References:
        rows = np.zeros(stop - start, ROW)
        rows["raw"] = np.arange(stop - start) + 1
        nothing = BinaryColumn(np.zeros(len(rows), np.uint32), b"")
        return References(rows, ("train",), tuple(RawImage(size, 1, 1) for size in range(start, stop)), *[nothing] * 7)

    joined = References.concatenate([with_raws(0, 40_000), with_raws(30_000, 70_000)])
    assert len(joined) == 80_000 and len(joined.raws) == 70_000
    chunks = [*joined.chunks()]
    assert max(map(len, chunks)) < 16_000, "a chunk has only the sizes of its own images"
    actual = unpack_chunks(b"".join(chunks))
    assert [actual.raws[location - 1].height for location in actual.rows["raw"].tolist()] == [*range(40_000), *range(30_000, 70_000)]


@given(st.lists(st.binary(max_size=9), max_size=20), st.data())
def test_binary_column_behaves_like_a_list_of_bytes(values, data):
    texts = BinaryColumn.of(values)
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(values))] * 2)))
    indices = data.draw(st.lists(st.integers(0, len(values) - 1)) if values else st.just([]))
    assert (len(texts), list(texts)) == (len(values), values)
    assert list(texts.slice(start, stop)) == values[start:stop]
    assert list(texts.take(np.array(indices, np.int64))) == [values[index] for index in indices]
    assert list(BinaryColumn.concatenate([texts.slice(0, start), texts.slice(start, len(values))])) == values


# Chunks


@pytest.mark.parametrize("num", [0, 1, CHUNK_REFERENCES - 1, CHUNK_REFERENCES, CHUNK_REFERENCES + 1, 3 * CHUNK_REFERENCES])
def test_chunks_have_a_fixed_number_of_references(num):
    some = make_references(num)
    chunks = list(some.chunks())
    assert len(chunks) == -(-num // CHUNK_REFERENCES)
    actual = [unpack_chunks(chunk) for chunk in chunks]
    assert all(len(item) == CHUNK_REFERENCES for item in actual[:-1])
    assert sum(map(as_rows, actual), []) == as_rows(some) == as_rows(unpack_chunks(b"".join(chunks)))


@given(st.lists(st.integers(0, 2 * CHUNK_REFERENCES), max_size=3), st.data())
def test_unpack_some_selects_a_range_of_many_chunks(sizes, data):
    batches = [make_references(size) for size in sizes]
    packed, total = b"".join(chunk for batch in batches for chunk in batch.chunks()), sum(sizes)
    start, stop = sorted((data.draw(st.integers(0, total)), data.draw(st.integers(0, total))))
    assert as_rows(unpack_some(packed, start, stop, total)) == sum(map(as_rows, batches), [])[start:stop]
    with pytest.raises(ValueError, match=f"{total} references"):
        unpack_some(packed, start, stop, total + 1)


@pytest.mark.slow
@given(st.lists(references(), max_size=4))
def test_chunks_of_several_batches_can_be_joined(batches):
    data = b"".join(chunk for batch in batches for chunk in batch.chunks())
    assert as_rows(unpack_chunks(data)) == sum(map(as_rows, batches), [])


@pytest.mark.slow
@given(references().filter(len), references().filter(len), st.data())
def test_flipped_bit_in_a_chunk_is_detected(first, second, data):
    chunks = b"".join((*first.chunks(), *second.chunks()))
    expected = as_rows(first) + as_rows(second)
    bit = data.draw(st.integers(0, 8 * len(chunks) - 1))
    corrupt = bytearray(chunks)
    corrupt[bit // 8] ^= 1 << bit % 8
    try:
        actual = unpack_chunks(bytes(corrupt))
    except ValueError:
        return
    assert as_rows(actual) == expected


def test_chunk_with_a_count_of_zero_is_rejected():
    first, second = (b"".join(make_references(num).chunks()) for num in (1, 3))
    assert first[4:8] == b"\x01\0\0\0"
    with pytest.raises(ValueError, match="no references"):
        unpack_chunks(first[:4] + bytes(4) + first[8:] + second)


def test_chunk_with_a_too_large_count_is_rejected():
    (chunk,) = make_references(3).chunks()
    with pytest.raises(ValueError, match="3 references instead of 4"):
        unpack_chunks(chunk[:4] + b"\x04" + chunk[5:])


@pytest.mark.slow
@given(references().filter(len), st.data())
def test_truncated_chunk_is_rejected(some, data):
    chunks = b"".join(some.chunks())
    with pytest.raises(ValueError, match=r"\d+ references|byte \d+"):
        unpack_chunks(chunks[: data.draw(st.integers(1, len(chunks) - 1))])


def test_packed_references_are_small():
    # The 8 bytes of the shuffle key cannot be compressed.
    num = 4096
    assert len(make_references(num).pack()) / num < 12


def test_packing_in_threads_gives_the_same_bytes():
    packed: list[bytes] = []
    threads = [threading.Thread(target=lambda: packed.append(make_references(3000).pack())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(packed) == {make_references(3000).pack()} and len(packed) == 4


@given(references())
def test_num_bytes_includes_rows_and_columns(some):
    assert some.num_bytes >= len(some) * ROW.itemsize + sum(len(text) for name in TEXTS for text in getattr(some, name))
