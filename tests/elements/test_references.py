"""References survive their journey as they are, whatever is cut off and joined on the way, and travel small."""

import itertools
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_pipelines.elements.references import PIECE_REFERENCES, ROW, References, BinaryColumn, unpack_chunks, unpack_some
from beam_pipelines.images.raw_image import RawImage

# Neither half of a surrogate pair, which UTF-8 has no bytes for, nor NUL, which no file name holds.
NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6)
RAWS = st.builds(RawImage, st.integers(1, 9), st.integers(1, 9), st.sampled_from([1, 3]), st.booleans())
TEXTS = ("keys", "paths", "labels", "groups", "values", "strata", "hashes")


@st.composite
def references(draw: st.DrawFn) -> References:
    """With tables of their own, as each batch of a listing has them, and columns without any text."""
    num = draw(st.integers(0, 20))
    splits = tuple(draw(st.lists(st.sampled_from(["train", "validation", "test", "ä"]), min_size=1, unique=True)))
    raws = tuple(draw(st.lists(RAWS, max_size=3, unique=True)))
    num_bytes = num * ROW.itemsize
    rows = np.frombuffer(draw(st.binary(min_size=num_bytes, max_size=num_bytes)), ROW).copy()  # field by field takes ten times as long
    rows["split"] %= len(splits)
    rows["raw"] %= len(raws) + 1
    return References(rows, splits, raws, *(draw(texts_of(num)) for _ in TEXTS))


@st.composite
def texts_of(draw: st.DrawFn, num: int) -> BinaryColumn:
    """Of up to eight bytes each, or none of any; drawn one by one they take several times as long."""
    lengths = [byte % 9 for byte in draw(st.binary(min_size=num, max_size=num))] if draw(st.booleans()) else [0] * num
    data = draw(st.binary(min_size=sum(lengths), max_size=sum(lengths)))
    ends = [*itertools.accumulate(lengths)]
    return BinaryColumn.of([data[end - length : end] for length, end in zip(lengths, ends)])


def as_rows(some: References) -> list[tuple]:
    """What is meant, whatever the tables say it with."""
    raws = (None, *some.raws)
    columns = [list(getattr(some, name)) for name in TEXTS]
    return [
        (order, some.splits[split], raws[raw], *rest, *texts)
        for (order, split, raw, *rest), *texts in zip(some.rows.tolist(), *columns, strict=True)
    ]


def make_references(num: int) -> References:
    """As they come of photographs in class folders: alike but for their shuffle keys."""
    rows = np.zeros(num, ROW)
    rows["order"] = np.random.default_rng(0).integers(0, 2**64, num, np.uint64)
    rows["offset"] = -1
    labels = [f"some_class_name_{index // 500}" for index in range(num)]
    keys = [f"{label}/IMG_{index:06d}.jpg".encode() for index, label in enumerate(labels)]
    nothing = BinaryColumn(np.zeros(num, np.uint32), b"")
    return References(rows, ("train", "validation"), (), BinaryColumn.of(keys), nothing, BinaryColumn.of([item.encode() for item in labels]), *[nothing] * 4)


@pytest.mark.slow(2)
@given(references())
def test_references_unpack_to_what_was_packed(some):
    unpacked = References.unpack(some.pack())
    assert unpacked.rows.dtype == ROW and len(unpacked) == len(some)
    assert unpacked.splits == some.splits and set(unpacked.raws) <= set(some.raws)
    assert as_rows(unpacked) == as_rows(some)


def test_the_largest_and_the_smallest_fields_fit():
    rows = np.zeros(2, ROW)
    for name in set(ROW.names) - {"split", "raw"}:
        rows[name] = np.iinfo(ROW[name]).min, np.iinfo(ROW[name]).max
    rows["split"][1], rows["raw"][1] = 255, 65_535
    item = References(rows, ("train",), (), *[BinaryColumn.of([b"", b"x" * 100_000])] * 7)
    unpacked = References.unpack(item.pack())
    assert unpacked.rows.tolist() == rows.tolist()
    assert [list(getattr(unpacked, name)) for name in TEXTS] == [[b"", b"x" * 100_000]] * 7


def test_unpacked_rows_can_be_written_to():
    unpacked = References.unpack(make_references(2).pack())
    unpacked.rows["num_bytes"] = 7
    assert unpacked.rows["num_bytes"].tolist() == [7, 7]


@given(references(), st.data())
def test_take_gives_the_references_at_the_indices(some, data):
    indices = data.draw(st.lists(st.integers(0, len(some) - 1)) if len(some) else st.just([]))
    rows = as_rows(some)
    assert as_rows(some.take(np.array(indices, np.int64))) == [rows[index] for index in indices]


@given(references(), st.data())
def test_a_slice_is_what_lies_between_its_ends(some, data):
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(some))] * 2)))
    assert as_rows(some.slice(start, stop)) == as_rows(some)[start:stop]


@pytest.mark.slow
@given(st.lists(references(), max_size=4))
def test_concatenate_appends_one_to_the_other_whatever_their_tables(batches):
    before = [as_rows(batch) for batch in batches]
    joined = References.concatenate(batches)
    assert joined.rows.dtype == ROW
    assert as_rows(joined) == sum(before, [])
    assert [as_rows(batch) for batch in batches] == before, "what was joined is as it was"
    assert len(set(joined.splits)) == len(joined.splits) and len(set(joined.raws)) == len(joined.raws)


def test_each_image_may_have_a_size_of_its_own_however_many_there_are():
    def with_raws(start: int, stop: int) -> References:
        rows = np.zeros(stop - start, ROW)
        rows["raw"] = np.arange(stop - start) + 1
        nothing = BinaryColumn(np.zeros(len(rows), np.uint32), b"")
        return References(rows, ("train",), tuple(RawImage(size, 1, 1) for size in range(start, stop)), *[nothing] * 7)

    joined = References.concatenate([with_raws(0, 40_000), with_raws(30_000, 70_000)])
    assert len(joined) == 80_000 and len(joined.raws) == 70_000
    chunks = [*joined.chunks()]
    assert max(map(len, chunks)) < 16_000, "a piece has the sizes of its own images alone"
    actual = unpack_chunks(b"".join(chunks))
    assert [actual.raws[location - 1].height for location in actual.rows["raw"].tolist()] == [*range(40_000), *range(30_000, 70_000)]


@given(st.lists(st.binary(max_size=9), max_size=20), st.data())
def test_texts_are_a_list_of_bytes(values, data):
    texts = BinaryColumn.of(values)
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(values))] * 2)))
    indices = data.draw(st.lists(st.integers(0, len(values) - 1)) if values else st.just([]))
    assert (len(texts), list(texts)) == (len(values), values)
    assert list(texts.slice(start, stop)) == values[start:stop]
    assert list(texts.take(np.array(indices, np.int64))) == [values[index] for index in indices]
    assert list(BinaryColumn.concatenate([texts.slice(0, start), texts.slice(start, len(values))])) == values


# Pieces


@pytest.mark.parametrize("num", [0, 1, PIECE_REFERENCES - 1, PIECE_REFERENCES, PIECE_REFERENCES + 1, 3 * PIECE_REFERENCES])
def test_pieces_hold_all_references_a_thousand_at_a_time(num):
    some = make_references(num)
    chunks = list(some.chunks())
    assert len(chunks) == -(-num // PIECE_REFERENCES)
    actual = [unpack_chunks(chunk) for chunk in chunks]
    assert all(len(item) == PIECE_REFERENCES for item in actual[:-1])
    assert sum(map(as_rows, actual), []) == as_rows(some) == as_rows(unpack_chunks(b"".join(chunks)))


@given(st.lists(st.integers(0, 2 * PIECE_REFERENCES), max_size=3), st.data())
def test_some_of_many_pieces(sizes, data):
    batches = [make_references(size) for size in sizes]
    packed, total = b"".join(chunk for batch in batches for chunk in batch.chunks()), sum(sizes)
    start, stop = sorted((data.draw(st.integers(0, total)), data.draw(st.integers(0, total))))
    assert as_rows(unpack_some(packed, start, stop, total)) == sum(map(as_rows, batches), [])[start:stop]
    with pytest.raises(ValueError, match=f"{total} references"):
        unpack_some(packed, start, stop, total + 1)


@pytest.mark.slow
@given(st.lists(references(), max_size=4))
def test_pieces_of_several_are_joined_like_bytes(batches):
    data = b"".join(chunk for batch in batches for chunk in batch.chunks())
    assert as_rows(unpack_chunks(data)) == sum(map(as_rows, batches), [])


@pytest.mark.slow
@given(references().filter(len), references().filter(len), st.data())
def test_a_piece_with_one_wrong_bit_is_noticed(first, second, data):
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


def test_a_piece_that_claims_to_hold_none_is_noticed():
    first, second = (b"".join(make_references(num).chunks()) for num in (1, 3))
    assert first[4:8] == b"\x01\0\0\0"
    with pytest.raises(ValueError, match="no references"):
        unpack_chunks(first[:4] + bytes(4) + first[8:] + second)


def test_a_piece_that_claims_to_hold_more_is_noticed():
    (chunk,) = make_references(3).chunks()
    with pytest.raises(ValueError, match="3 references instead of 4"):
        unpack_chunks(chunk[:4] + b"\x04" + chunk[5:])


@pytest.mark.slow
@given(references().filter(len), st.data())
def test_a_piece_that_is_cut_off_is_noticed(some, data):
    chunks = b"".join(some.chunks())
    with pytest.raises(ValueError, match=r"\d+ references in a piece|references end at byte \d+"):
        unpack_chunks(chunks[: data.draw(st.integers(1, len(chunks) - 1))])


def test_packed_references_are_small():
    # What cannot shrink: 8 bytes of shuffle key; the rest hardly counts.
    num = 4096
    assert len(make_references(num).pack()) / num < 12


def test_the_same_references_pack_to_the_same_bytes_in_any_thread():
    packed: list[bytes] = []
    threads = [threading.Thread(target=lambda: packed.append(make_references(3000).pack())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(packed) == {make_references(3000).pack()} and len(packed) == 4


@given(references())
def test_their_size_in_memory_is_known(some):
    assert some.num_bytes >= len(some) * ROW.itemsize + sum(len(text) for name in TEXTS for text in getattr(some, name))
