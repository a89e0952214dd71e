"""Tests that the reader parses the examples that the writer serializes with the same schema."""

import numpy as np
import pytest
import tensorflow as tf

from beam_pipelines.tfrecord.example_encoder import ExampleEncoder
from made_records import example
from tf_input.dataset_format import Feature
from tf_input.stored_kinds import FEATURE_KINDS
from tf_input.decoding.schema import feature_spec, parse_examples

SCHEMA = (
    Feature("height", "integer"),
    Feature("image", "image"),
    Feature("key", "text"),
    Feature("label", "class_label"),
)
VALUES = [
    (b"\xff\xd8\xff", {"height": 20, "key": "röse/1.jpg".encode(), "label": 0}),
    (b"", {"height": -1, "key": b"", "label": 2**31 - 1}),
]


def make_records() -> tf.Tensor:
    encoder = ExampleEncoder(SCHEMA)
    return tf.constant([encoder.encode(image, values) for image, values in VALUES])


def test_every_feature_kind_has_a_spec():
    dtypes = {"bytes": tf.string, "int64": tf.int64, "float": tf.float32}
    spec = feature_spec([Feature(kind, kind, dtype="int8" if kind == "tensor" else "") for kind in FEATURE_KINDS])
    assert spec == {kind: tf.io.FixedLenFeature((), dtypes[form.storage]) for kind, form in FEATURE_KINDS.items()}


def test_every_shape_has_a_spec():
    cases = [
        (Feature("maps", "float", (4, 5, 2)), tf.io.FixedLenFeature((4, 5, 2), tf.float32)),
        (Feature("pixels", "pixels", (4, 5, 3)), tf.io.FixedLenFeature((), tf.string)),
        (Feature("heat", "tensor", (None, 5), dtype="float64"), tf.io.FixedLenFeature((), tf.string)),
        (Feature("tags", "class_label", (None,)), tf.io.RaggedFeature(tf.int64)),
        (Feature("objects/bbox", "bbox", (None, 4)), tf.io.RaggedFeature(tf.float32)),
    ]
    for feature, expected in cases:
        assert feature_spec([feature]) == {feature.name: expected}, feature


def test_serialized_examples_are_parsed():
    features = parse_examples(make_records(), SCHEMA)
    assert list(features["image"].numpy()) == [image for image, _ in VALUES]
    for name in ("height", "key", "label"):
        assert list(features[name].numpy()) == [values[name] for _, values in VALUES], name
    assert set(features) == {feature.name for feature in SCHEMA}


def test_only_requested_features_are_parsed():
    assert list(parse_examples(make_records(), SCHEMA, ["label"])) == ["label"]


def test_unknown_features_are_rejected_with_the_known_names():
    with pytest.raises(ValueError, match="no feature weight, mask.* height, image, key, label"):
        parse_examples(make_records(), SCHEMA, ["label", "weight", "mask"])


def test_record_without_a_required_feature_raises():
    with pytest.raises(tf.errors.InvalidArgumentError, match="Feature: weight .*required"):
        parse_examples(make_records(), [*SCHEMA, Feature("weight", "integer")])


def test_record_that_is_not_an_example_raises():
    with pytest.raises(tf.errors.InvalidArgumentError, match="Could not parse"):
        parse_examples(tf.constant([b"no example"]), SCHEMA)


SHAPED = (
    Feature("maps", "float", (2, 3)),
    Feature("objects/bbox", "bbox", (None, 4)),
    Feature("objects/label", "class_label", (None,)),
    Feature("score", "float"),
    Feature("words", "text", (2,)),
)


def test_values_are_parsed_into_their_shapes():
    boxes = np.arange(12, dtype=np.float32).reshape(3, 4)
    dense_targets = np.arange(6, dtype=np.float32)
    records = [
        example({"maps": dense_targets, "objects/bbox": boxes, "objects/label": [3, 1, 2], "score": 0.5, "words": ["a", "b"]}),
        example({"maps": -dense_targets, "objects/bbox": [], "score": 2.0, "words": ["c", ""]}),
    ]
    for parse in (parse_examples, tf.function(parse_examples)):
        parsed = parse(tf.constant(records), SHAPED)
        assert parsed["maps"].shape == (2, 2, 3)
        np.testing.assert_array_equal(parsed["maps"], [dense_targets.reshape(2, 3), -dense_targets.reshape(2, 3)])
        assert parsed["objects/bbox"].to_list() == [boxes.tolist(), []]
        assert parsed["objects/bbox"].shape.as_list() == [2, None, 4]
        assert parsed["objects/label"].to_list() == [[3, 1, 2], []]
        assert parsed["score"].numpy().tolist() == [0.5, 2.0]
        assert parsed["words"].numpy().tolist() == [[b"a", b"b"], [b"c", b""]]


def test_wrong_number_of_values_raises():
    cases = [
        # Together, 6 and 2 values would be two boxes.
        ("objects/bbox", (6, 2), "multiple of 4"),
        ("maps", (5,), "maps"),
    ]
    for name, counts, message in cases:
        records = [example({name: np.zeros(count, np.float32)}) for count in counts]
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            parse_examples(tf.constant(records), SHAPED, [name])
