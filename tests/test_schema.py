"""What the writer serializes, the reader parses, by one schema."""

import pytest
import tensorflow as tf

from beam_pipelines.examples import ExampleEncoder
from tf_input.dataset_format import FEATURE_KINDS, Feature
from tf_input.schema import feature_spec, parse_examples

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


def serialized() -> tf.Tensor:
    encoder = ExampleEncoder(SCHEMA)
    return tf.constant([encoder.encode(image, values) for image, values in VALUES])


def test_every_kind_of_feature_has_a_spec():
    spec = feature_spec([Feature(kind, kind) for kind in FEATURE_KINDS])
    dtypes = {"image": tf.string, "text": tf.string, "class_label": tf.int64, "integer": tf.int64}
    assert spec == {kind: tf.io.FixedLenFeature((), dtype) for kind, dtype in dtypes.items()}


def test_what_was_serialized_is_parsed():
    features = parse_examples(serialized(), SCHEMA)
    assert list(features["image"].numpy()) == [image for image, _ in VALUES]
    for name in ("height", "key", "label"):
        assert list(features[name].numpy()) == [values[name] for _, values in VALUES], name
    assert set(features) == {feature.name for feature in SCHEMA}


def test_only_what_is_wanted_is_parsed():
    assert list(parse_examples(serialized(), SCHEMA, ["label"])) == ["label"]


def test_an_unknown_feature_is_refused_with_those_that_there_are():
    with pytest.raises(ValueError, match="no feature weight, mask; the schema has height, image, key, label"):
        parse_examples(serialized(), SCHEMA, ["label", "weight", "mask"])


def test_a_record_without_a_feature_is_an_error():
    with pytest.raises(tf.errors.InvalidArgumentError, match="weight"):
        parse_examples(serialized(), [*SCHEMA, Feature("weight", "integer")])


def test_a_record_that_is_no_example_is_an_error():
    with pytest.raises(tf.errors.InvalidArgumentError, match="Could not parse"):
        parse_examples(tf.constant([b"no example"]), SCHEMA)
