"""References survive their journey as they are, and travel small."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as numpy_strategies

from beam_pipelines.references import ROW, LabeledImage, References, pack_images, unpack_images

# Neither half of a surrogate pair, which UTF-8 has no bytes for, nor NUL, which no file name holds.
NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


@st.composite
def references(draw: st.DrawFn) -> References:
    names = draw(st.lists(st.tuples(NAMES.filter(bool), NAMES), max_size=30))
    rows = draw(numpy_strategies.arrays(ROW, len(names), fill=st.nothing()))
    return References(rows, [key.encode() for key, _ in names], [path.encode() for _, path in names])


def as_lists(one: References) -> tuple[list, list, list]:
    return one.rows.tolist(), one.keys, one.paths


def make_references(num: int) -> References:
    """As they come of photographs: alike but for their shuffle keys, sizes and checksums."""
    random = np.random.default_rng(0)
    rows = np.zeros(num, ROW)
    rows["order"] = random.integers(0, 2**64, num, np.uint64)
    rows["num_bytes"] = random.integers(90_000, 130_000, num)
    rows["crc32c"] = random.integers(0, 2**32, num)
    rows["height"], rows["width"], rows["label"] = 480, 640, np.arange(num) // 500
    keys = [f"some_class_name_{label}/IMG_{index:06d}.jpg".encode() for index, label in enumerate(rows["label"])]
    return References(rows, keys, [b""] * num)


@given(references())
def test_references_unpack_to_what_was_packed(packed):
    unpacked = References.unpack(packed.pack())
    assert unpacked.rows.dtype == ROW
    assert as_lists(unpacked) == as_lists(packed)
    assert References.unpack_rows(packed.pack()).tolist() == packed.rows.tolist()


def test_no_references_are_packed_too():
    empty = References(np.zeros(0, ROW), [], [])
    assert as_lists(References.unpack(empty.pack())) == ([], [], [])
    assert len(References.unpack_rows(empty.pack())) == 0


def test_the_largest_and_the_smallest_fields_fit():
    rows = np.zeros(2, ROW)
    for name in ROW.names:
        rows[name][1] = np.iinfo(ROW[name]).max
    assert References.unpack(References(rows, [b"a", b"b"], [b"", b""]).pack()).rows.tolist() == rows.tolist()


def test_unpacked_rows_can_be_written_to():
    unpacked = References.unpack(make_references(2).pack())
    unpacked.rows["label"] = 7
    assert unpacked.rows["label"].tolist() == [7, 7]


@given(references(), st.data())
def test_take_gives_the_references_at_the_indices(some, data):
    indices = data.draw(st.lists(st.integers(0, len(some) - 1)) if len(some) else st.just([]))
    taken = some.take(np.array(indices, np.int64))
    rows, keys, paths = as_lists(some)
    assert as_lists(taken) == ([rows[i] for i in indices], [keys[i] for i in indices], [paths[i] for i in indices])
    assert len(taken) == len(indices)


@given(st.lists(references(), max_size=4))
def test_concatenate_appends_one_to_the_other(batches):
    joined = References.concatenate(batches)
    assert joined.rows.dtype == ROW
    expected = [as_lists(batch) for batch in batches]
    assert as_lists(joined) == tuple([item for lists in expected for item in lists[column]] for column in range(3))


def test_a_path_is_the_key_unless_it_is_another():
    one = References(np.zeros(2, ROW), ["é.jpg".encode()] * 2, [b"", "e\u0301.jpg".encode()])
    assert [one.path(0), one.path(1)] == ["é.jpg", "e\u0301.jpg"]


def test_packed_references_are_small():
    # What cannot shrink: 8 bytes of shuffle key, 4 of checksum and 2 of size; the rest hardly counts.
    num = 4096
    assert len(make_references(num).pack()) / num < 24


def test_the_same_references_pack_to_the_same_bytes():
    assert make_references(500).pack() == make_references(500).pack()


LISTED = st.builds(LabeledImage, NAMES, NAMES, NAMES, st.one_of(st.none(), NAMES), raw=st.none(), values=st.none())


@given(st.lists(LISTED, min_size=1, max_size=30))
def test_a_listing_unpacks_to_its_columns(images):
    assert unpack_images(pack_images(images)) == tuple(zip(*images))


def test_a_packed_listing_is_small():
    # Names that count up, and a label that repeats.
    paths = [f"some_class_name/{index:06d}.jpg" for index in range(256)]
    images = [LabeledImage(path, path, "some_class_name", None) for path in paths]
    assert len(pack_images(images)) / len(images) < 12
