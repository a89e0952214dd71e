"""Tests that feature values are equal after encoding and decoding, and that invalid bytes are rejected."""

import os
import pathlib
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_pipelines.elements.input_record import ArrayPart, FilePart
from beam_pipelines.elements.listed_values import MAX_INLINE_BYTES, decode_values, value_writer
from beam_pipelines.errors import RunError
from beam_pipelines.images.annotations import Objects, Regions
from beam_pipelines.storage.spool import SpoolReader

NUMBERS = st.one_of(st.integers(), st.floats(allow_nan=False))
VALUES = st.dictionaries(
    st.text(max_size=5),
    st.one_of(
        st.text(max_size=30).map(lambda text: text * 100),  # as large as spooled values but quick to generate
        NUMBERS,
        st.lists(NUMBERS, max_size=10).map(lambda numbers: (*numbers,) * 50),
        st.lists(st.text(max_size=3), max_size=5).map(tuple),
        st.builds(FilePart, st.text(max_size=5), st.integers(-1, 9), st.integers(0, 9)),
    ),
    max_size=4,
)
ALL_KINDS = {
    "weight": 0.5,
    "caption": "löwe \udcff",
    "tags": ("a", "b"),
    "objects": Objects(((0.0, 0.0, 1.0, 1.0),), ("cat",), {"is_crowd": (1,)}, (20, 30), True),
    "mask": Regions(("cat",), ([[1.0, 2.0, 3.0]], {"size": [2, 2], "counts": [4]}), (20, 30)),
    "depth": ArrayPart("a.npz", 128, 16, "<f4", (2, 2), 7),
    "target": FilePart("b.png"),
}


@pytest.fixture
def spool(tmp_path: pathlib.Path) -> str:
    return str(tmp_path / "spool")


def round_trip(values: list, spool: str) -> tuple[list[bytes], list]:
    """Encodes values, decodes them in reverse order, and returns the encoded and the decoded values."""
    with value_writer(spool) as writer:
        encoded = [writer.encode(value) for value in values]
    with SpoolReader(spool) as reader:
        return encoded, [decode_values(data, reader) for data in reversed(encoded)][::-1]


def test_numpy_values_keep_their_dtype(spool):
    _, (actual,) = round_trip([{"half": np.float16(1.5), "rows": np.arange(6, dtype=">i2").reshape(2, 3)}], spool)
    assert type(actual["half"]) is np.float16 and actual["half"] == 1.5
    assert actual["rows"].dtype == ">i2" and actual["rows"].tolist() == [[0, 1, 2], [3, 4, 5]]


@given(values=st.lists(VALUES, max_size=4))
def test_inline_and_spooled_values_are_decoded_unchanged(tmp_path_factory, values):
    encoded, decoded = round_trip(values, str(tmp_path_factory.mktemp("spool") / "spool"))
    assert decoded == [value or None for value in values]
    assert all(len(data) <= MAX_INLINE_BYTES + 1 for data in encoded)


def test_values_of_all_kinds_keep_their_class(spool):
    for repeats in (1, 1000):  # inline and in the spool
        values = {f"{name} {index}": value for index in range(repeats) for name, value in ALL_KINDS.items()}
        (data,), (actual,) = round_trip([values], spool)
        assert actual == values and [type(item) for item in actual.values()] == [type(entry) for entry in values.values()]
        assert (len(data) < 30) == (repeats > 1) == os.path.exists(spool), repeats


def test_missing_values_are_empty_bytes(spool):
    assert round_trip([None, {}], spool) == ([b"", b""], [None, None])
    assert not os.path.exists(spool), "only large values need a spool"


def test_values_up_to_the_limit_are_inline(spool):
    overhead = len(pickle.dumps({"text": "x" * 1000}, protocol=5)) - 1000
    for num_bytes, is_inline in ((MAX_INLINE_BYTES, True), (MAX_INLINE_BYTES + 1, False)):
        (data,), (actual,) = round_trip([{"text": "x" * (num_bytes - overhead)}], spool)
        assert len(actual["text"]) == num_bytes - overhead
        assert (len(data) == num_bytes + 1, len(data) < 30) == (is_inline, not is_inline), num_bytes


class _Command:
    """An object that runs a command when it is unpickled. An attacker could insert this object into a plan file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("is_spooled", [False, True])
def test_pickled_commands_are_rejected(spool, tmp_path, is_spooled):
    target = tmp_path / "made by a pickle"
    padding = "x" * MAX_INLINE_BYTES * is_spooled
    (data,), _ = round_trip([{"padding": padding, "one": "two"}], spool)
    hostile = pickle.dumps({"padding": padding, "one": _Command(str(target))}, protocol=5)
    if is_spooled:
        (file,) = pathlib.Path(spool).iterdir()
        file.write_bytes(hostile)
        data = data[:-4] + len(hostile).to_bytes(4, "little")
    else:
        data = data[:1] + hostile
    with SpoolReader(spool) as reader, pytest.raises(pickle.UnpicklingError, match="mkdir is not "):
        decode_values(data, reader)
    assert not target.exists()


def test_broken_spool_fails_the_run_instead_of_rejecting_the_input(spool):
    (data,), _ = round_trip([{"text": "x" * 9000}], spool)
    (file,) = pathlib.Path(spool).iterdir()
    os.truncate(file, 5000)
    with SpoolReader(spool) as reader, pytest.raises(RunError, match="5000 of 90.* bytes at offset 0"):
        decode_values(data, reader)
    file.unlink()
    with pytest.raises(RunError, match="spool .*No such file"):
        decode_values(data, SpoolReader(spool))
