"""Compares `SerializedExample` with the protocol buffers library."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tf_input import serialized_example
from beam_pipelines.tfrecord.example_encoder import varint
from beam_pipelines.tfrecord.index_row import IndexRows
from beam_pipelines.tfrecord.record_reader import Record
from tf_input.serialized_example import BadExampleError, SerializedExample
from listings import make_schema

tf = pytest.importorskip("tensorflow")

INT64 = st.integers(-(2**63), 2**63 - 1)
FLOAT = st.floats(width=32, allow_nan=False)
VALUES = st.one_of(
    st.tuples(st.just("bytes"), st.lists(st.binary(max_size=300), max_size=4)),
    st.tuples(st.just("float"), st.lists(FLOAT, max_size=40)),
    st.tuples(st.just("int64"), st.lists(INT64, max_size=40)),
    st.tuples(st.just(""), st.just([])),
)
FEATURES = st.dictionaries(st.text(max_size=20), VALUES, max_size=6)


def serialize(features: dict) -> bytes:
    example = tf.train.Example()
    for name, (kind, values) in features.items():
        feature = example.features.feature[name]
        if kind:
            getattr(feature, f"{kind}_list").value.extend(values)
            getattr(feature, f"{kind}_list").SetInParent()
    return example.SerializeToString()


def read(data: bytes) -> dict:
    reader = SerializedExample(data)
    return {name: (feature.storage, list(reader.values(name))) for name, feature in reader.features.items()}


def read_by_tensorflow(data: bytes) -> dict:
    example = tf.train.Example.FromString(data)
    actual = {}
    for name, feature in example.features.feature.items():
        kind = feature.WhichOneof("kind") or ""
        actual[name] = (kind.removesuffix("_list"), list(getattr(feature, kind).value) if kind else [])
    return actual


@settings(max_examples=80, deadline=None)
@given(FEATURES)
def test_reads_examples_written_by_tensorflow(features):
    data = serialize(features)
    assert read(data) == features == read_by_tensorflow(data)


@settings(max_examples=50, deadline=None)
@given(FEATURES, FEATURES)
def test_concatenated_examples_are_merged(first, second):
    data = serialize(first) + serialize(second)
    assert read(data) == read_by_tensorflow(data)


@settings(max_examples=150, deadline=None)
@given(FEATURES, st.data())
def test_corrupt_example_is_rejected_or_read_as_tensorflow_does(features, draw):
    data = bytearray(serialize(features) or b"\0")
    for _ in range(draw.draw(st.integers(1, 4))):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    check_reads_like_tensorflow(bytes(data))


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=60))
def test_random_bytes_are_rejected_or_read_as_tensorflow_does(data):
    check_reads_like_tensorflow(data)


def check_reads_like_tensorflow(data: bytes) -> None:
    from google.protobuf.message import DecodeError

    try:
        expected = read_by_tensorflow(data)
    except DecodeError:
        expected = None
    try:
        actual = read(data)
    except BadExampleError as error:
        assert len(str(error).splitlines()) == 1
        return
    if expected is not None and not has_unknown_fields(data):
        assert sorted(map(repr, actual.items())) == sorted(map(repr, expected.items()))  # NaN is not equal to itself


def has_unknown_fields(data: bytes) -> bool:
    """Returns whether a serialized example has unknown fields, which the Python and C++ libraries treat differently."""
    example = tf.train.Example.FromString(data)
    num_bytes = example.ByteSize()
    example.DiscardUnknownFields()
    return example.ByteSize() < num_bytes


def encode_field(number: int, value: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(value)) + value


def make_example(feature: bytes) -> bytes:
    return encode_field(1, encode_field(1, encode_field(1, b"x") + encode_field(2, feature)))


@pytest.mark.parametrize(
    "case, feature, expected",
    [
        ("unpacked integers", encode_field(3, b"\x08\x05\x08" + varint(-1)), ("int64", [5, -1])),
        ("packed in two chunks", encode_field(3, encode_field(1, b"\x01\x02") + encode_field(1, b"\x03")), ("int64", [1, 2, 3])),
        ("packed and unpacked", encode_field(3, encode_field(1, b"\x01") + b"\x08\x02"), ("int64", [1, 2])),
        ("unpacked floats", encode_field(2, b"\x0d\0\0\x80\x3f\x0d\0\0\0\x40"), ("float", [1.0, 2.0])),
        ("two lists of one kind", encode_field(3, encode_field(1, b"\x01")) + encode_field(3, encode_field(1, b"\x02")), ("int64", [1, 2])),
        ("two lists of different kinds", encode_field(1, encode_field(1, b"a")) + encode_field(3, encode_field(1, b"\x02")), ("int64", [2])),
        ("unknown fields", encode_field(9, b"?") + encode_field(3, encode_field(1, b"\x02") + encode_field(7, b"?")), ("int64", [2])),
        ("an empty feature", b"", ("", [])),
    ],
)
def test_reads_every_encoding_of_a_list(case, feature, expected):
    data = make_example(feature)
    assert read(data) == read_by_tensorflow(data) == {"x": expected}, case


def test_spans_are_byte_ranges_of_values():
    data = serialize({"image": ("bytes", [b"abc", b"", b"d" * 200]), "label": ("int64", [7])})
    example = SerializedExample(data)
    assert [data[offset : offset + num_bytes] for offset, num_bytes in example.spans("image")] == [
        b"abc",
        b"",
        b"d" * 200,
    ]
    assert example.spans("absent") == example.values("absent") == []
    with pytest.raises(BadExampleError, match="list of int64"):
        example.spans("label")


@pytest.mark.parametrize(
    "case, data",
    [
        ("a length beyond the end", b"\x0a\x7f"),
        ("a huge length", b"\x0a" + varint(2**63) + b"x"),
        ("an integer without an end", b"\x0a" + b"\xff" * 20),
        ("a group", b"\x0b\x0c"),
        ("encode_field number 0", b"\x02\x00"),
        ("a name that is not UTF-8", encode_field(1, encode_field(1, encode_field(1, b"\xff")))),
        ("an entry that is a number", encode_field(1, b"\x08\x01")),
        ("an HTML page", b"<html><body>no example</body></html>"),
    ],
)
def test_invalid_example_is_rejected(case, data):
    with pytest.raises(BadExampleError):
        read(data)


def test_float_list_of_wrong_length_is_rejected_on_access():
    example = SerializedExample(make_example(encode_field(2, encode_field(1, b"\0\0\0"))))
    with pytest.raises(BadExampleError, match="3 bytes"):
        example.values("x")


def test_integer_list_of_wrong_wire_type_is_rejected_on_access():
    example = SerializedExample(make_example(encode_field(3, b"\x0d\0\0\x80\x3f")))
    with pytest.raises(BadExampleError, match="wire type 5 at byte "):
        example.values("x")


@pytest.mark.parametrize(
    "values, message",
    [({"image": ("bytes", [b"a", b"b"]), "label": ("int64", [1])}, "2 images"), ({"image": ("bytes", [b"a"])}, "0 labels")],
)
def test_index_row_needs_one_image_and_one_label(values, message):
    rows, data = IndexRows(make_schema("ant", "bee")), serialize(values)
    with pytest.raises(BadExampleError, match=message):
        rows.of(Record(0, data, b"", b""), SerializedExample(data))


def test_too_many_values_features_or_lists_are_rejected(monkeypatch):
    monkeypatch.setattr(serialized_example, "MAX_VALUES", 10)
    monkeypatch.setattr(serialized_example, "MAX_FEATURES", 10)
    for feature in (encode_field(3, encode_field(1, bytes(11))), encode_field(1, encode_field(1, b"") * 11), encode_field(2, encode_field(1, bytes(44)))):
        with pytest.raises(BadExampleError, match="more than 10"):
            read(make_example(feature))
    with pytest.raises(BadExampleError, match="more than 10 features"):
        read(serialize({str(index): ("int64", [1]) for index in range(11)}))
    with pytest.raises(BadExampleError, match="more than 10.*lists"):
        read(make_example(encode_field(3, b"") * 1000))
