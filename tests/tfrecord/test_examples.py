"""Tests that TensorFlow can read serialized examples, and that equal examples are serialized to equal bytes."""

from typing import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipelines.tfrecord.example_encoder import ExampleEncoder, encode_extras, encode_chunks, extra_features, varint
from listings import make_schema
from tf_input.dataset_format import Feature

SCHEMA = (
    Feature("height", "integer"),
    Feature("image", "image"),
    Feature("key", "text"),
    Feature("label", "class_label"),
    Feature("width", "integer"),
)
IMAGE_ALONE = (Feature("image", "image"),)
IMAGE_FIRST = (Feature("image", "image"), Feature("weight", "integer"))
IMAGE_LAST = (Feature("a", "integer"), Feature("b", "text"), Feature("image", "image"))
# A varint gets another byte at each power of 128; about 20 more bytes surround the image.
EDGES = (0, 1, 127, 128, 16_383, 16_384)
SIZES = st.one_of(st.sampled_from(EDGES), *(st.integers(max(0, edge - 40), edge + 40) for edge in EDGES))
INT64 = st.one_of(st.integers(-(2**63), 2**63 - 1), st.sampled_from([0, 1, 127, 128, -1, -(2**63), 2**63 - 1]))
BYTES = st.one_of(st.binary(), st.text().map(lambda text: text.encode("utf-8", "replace")), SIZES.map(bytes))


@st.composite
def examples(draw: st.DrawFn) -> tuple[tuple[Feature, ...], bytes, dict[str, int | bytes]]:
    schema = draw(st.sampled_from([SCHEMA, IMAGE_ALONE, IMAGE_FIRST, IMAGE_LAST]))
    image = bytes([draw(st.integers(0, 255))]) * draw(SIZES)
    values = {f.name: draw(BYTES if f.kind == "text" else INT64) for f in schema if f.kind != "image"}
    return schema, image, values


@settings(max_examples=300, deadline=None)
@given(examples())
def test_tensorflow_reads_the_values_back(example):
    import tensorflow as tf

    schema, image, values = example
    parsed = tf.train.Example.FromString(ExampleEncoder(schema).encode(image, values))
    assert set(parsed.features.feature) == {feature.name for feature in schema}
    for name, value in {**values, "image": image}.items():
        feature = parsed.features.feature[name]
        expected = "int64_list" if isinstance(value, int) else "bytes_list"
        assert feature.WhichOneof("kind") == expected, name
        assert list(getattr(feature, expected).value) == [value], name


def test_large_image_is_read_back():
    import tensorflow as tf

    for num_bytes in (2**21 - 1, 2**21, 2**21 - 40, 5 << 20):
        image = bytes(range(256)) * (num_bytes // 256) + bytes(num_bytes % 256)
        parsed = tf.train.Example.FromString(ExampleEncoder(SCHEMA).encode(image, make_values()))
        assert parsed.features.feature["image"].bytes_list.value[0] == image, num_bytes


def test_parse_single_example_reads_encoded_example():
    import tensorflow as tf

    spec = {f.name: tf.io.FixedLenFeature([], tf.string if f.kind in ("image", "text") else tf.int64) for f in SCHEMA}
    parsed = tf.io.parse_single_example(ExampleEncoder(SCHEMA).encode(b"pixels", make_values()), spec)
    assert {name: tensor.numpy() for name, tensor in parsed.items()} == {**make_values(), "image": b"pixels"}


@given(examples())
def test_encode_around_and_image_join_to_the_example(example):
    schema, image, values = example
    before, after = ExampleEncoder(schema).encode_around(len(image), values, encode_extras(extra_features(schema), values))
    assert before + image + after == ExampleEncoder(schema).encode(image, values)


@given(examples())
def test_bytes_are_independent_of_the_order_of_values(example):
    schema, image, values = example
    reversed_values = dict(reversed(values.items()))
    assert ExampleEncoder(schema).encode(image, values) == ExampleEncoder(schema).encode(image, reversed_values)


def test_bytes_are_stable_across_versions():
    # The bytes follow example.proto: features (1) of map entries (1) of a key (1) and a value (2).
    features = [
        b"\x0a\x06height" + b"\x12\x05" + b"\x1a\x03" + b"\x0a\x01\x03",
        b"\x0a\x05image" + b"\x12\x05" + b"\x0a\x03" + b"\x0a\x01I",
        b"\x0a\x03key" + b"\x12\x05" + b"\x0a\x03" + b"\x0a\x01k",
        b"\x0a\x05label" + b"\x12\x05" + b"\x1a\x03" + b"\x0a\x01\x02",
        b"\x0a\x05width" + b"\x12\x06" + b"\x1a\x04" + b"\x0a\x02\xac\x02",
    ]
    entries = b"".join(b"\x0a" + bytes([len(feature)]) + feature for feature in features)
    values = {"height": 3, "key": b"k", "label": 2, "width": 300}
    assert ExampleEncoder(SCHEMA).encode(b"I", values) == b"\x0a" + bytes([len(entries)]) + entries


@given(examples())
def test_features_are_stored_in_ascending_order(example):
    schema, image, values = example
    names = list(feature_names(ExampleEncoder(schema).encode(image, values)))
    assert names == sorted(feature.name for feature in schema)


def test_schema_with_wrong_order_or_duplicates_is_rejected():
    cases = [
        ("descending names", SCHEMA[::-1]),
        ("a feature twice", (SCHEMA[0], *SCHEMA)),
        ("the image twice", (SCHEMA[1], SCHEMA[1])),
    ]
    for case, schema in cases:
        with pytest.raises(ValueError) as caught:
            ExampleEncoder(schema)
        assert str([feature.name for feature in schema]) in str(caught.value), case


def test_missing_value_raises_key_error():
    with pytest.raises(KeyError, match="^'label'$"):
        ExampleEncoder(SCHEMA).encode(b"", {"height": 1, "width": 1, "key": b""})


def test_schemas_of_prepare_can_be_encoded():
    for check in ("strict", "none"):
        schema = make_schema("a", "b", has_sizes=check == "strict")
        encoded = ExampleEncoder(schema).encode(b"pixels", make_values())
        expected = ["height", "image", "key", "label", "width"] if check == "strict" else ["image", "key", "label"]
        assert list(feature_names(encoded)) == expected, check


def test_varint_matches_protocol_buffers():
    cases = {0: "00", 1: "01", 127: "7f", 128: "8001", 300: "ac02", 16_383: "ff7f", 16_384: "808001", -1: "ff" * 9 + "01"}
    for value, expected in cases.items():
        assert varint(value).hex() == expected, value


def make_values() -> dict[str, int | bytes]:
    return {"height": 480, "key": "Löwe/1.jpg".encode(), "label": 3, "width": 640}


def feature_names(example: bytes) -> Iterator[str]:
    """Yields the feature names of a serialized example in the order in which they are stored."""
    length, position = read_varint(example, 1)
    assert position + length == len(example)
    while position < len(example):
        entry_bytes, entry = read_varint(example, position + 1)
        name_bytes, name = read_varint(example, entry + 1)
        yield example[name : name + name_bytes].decode()
        position = entry + entry_bytes


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Returns the value of a varint, and the position of the next byte."""
    value = shift = 0
    while data[position] & 128:
        value |= (data[position] & 127) << shift
        shift, position = shift + 7, position + 1
    return value | data[position] << shift, position + 1


FLOAT32 = st.floats(width=32, allow_nan=False)
COLUMNS = {
    Feature("a", "float", (2, 3)): st.lists(FLOAT32, min_size=6, max_size=6),
    Feature("b", "float", (None,)): st.lists(FLOAT32, max_size=200),
    Feature("c", "float"): FLOAT32,
    Feature("d", "integer", (None,)): st.lists(st.one_of(INT64, st.integers(0, 127)), max_size=200),
    Feature("e", "integer", (None,)): st.lists(st.integers(0, 127), max_size=200),
    Feature("f", "class_label"): INT64,
    Feature("g", "text", (None,)): st.lists(BYTES, max_size=5),
    Feature("h", "text", (2,)): st.lists(BYTES, min_size=2, max_size=2),
    Feature("image", "image"): BYTES,
}


@settings(max_examples=200, deadline=None)
@given(st.fixed_dictionaries({}, optional=COLUMNS))
def test_tensorflow_reads_encoded_chunks_of_any_kind(example):
    import tensorflow as tf

    schema = sorted(example, key=lambda feature: feature.name)
    chunks = encode_chunks(schema, {feature.name: value for feature, value in example.items()})
    parsed = tf.train.Example.FromString(b"".join(chunks))
    assert set(parsed.features.feature) == {feature.name for feature in schema}
    for position, (feature, expected) in enumerate((feature, example[feature]) for feature in schema):
        stored = parsed.features.feature[feature.name]
        kind = stored.WhichOneof("kind")
        assert kind == {"float": "float_list", "integer": "int64_list", "class_label": "int64_list"}.get(feature.kind, "bytes_list")
        assert list(getattr(stored, kind).value) == (expected if feature.shape else [expected]), feature
        if feature.kind == "image":
            assert chunks[2 + 2 * position] == expected
