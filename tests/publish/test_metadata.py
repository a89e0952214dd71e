"""The metadata files that others read: TensorFlow Metadata's schema, and what TensorFlow Datasets insists on."""

import json

import pytest
from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2

from beam_pipelines.publish import metadata
from tf_input.dataset_format import Feature, Manifest, ShardInfo


@pytest.fixture
def manifest() -> Manifest:
    kinds = {"height": "integer", "image": "image", "key": "text", "label": "class_label"}
    shards = (
        ShardInfo("x-train.tfrecord-00000-of-00002", 3, 30, 1, "a.idx", 7, 8, "a.parquet", 9, 10),
        ShardInfo("b", 2, 20, 2, "b.idx", 11, 12),  # as `recordmill transform` writes them: without a catalog
    )
    names = {"label": ("ant", "<b>bee</b>")}
    schema = tuple(Feature(name, kind, (), names.get(name, ())) for name, kind in kinds.items())
    return Manifest("x", 0, schema, {"train": shards}, 6, 1)


def test_schema_pbtxt_is_a_schema_of_tensorflow_metadata(manifest):
    schema = text_format.Parse(metadata.schema_pbtxt(manifest), schema_pb2.Schema())
    features = {feature.name: feature for feature in schema.feature}
    assert {name: schema_pb2.FeatureType.Name(feature.type) for name, feature in features.items()} == {
        "height": "INT",
        "image": "BYTES",
        "key": "BYTES",
        "label": "INT",
    }
    assert (features["label"].int_domain.min, features["label"].int_domain.max) == (0, 1)
    assert features["label"].int_domain.is_categorical and features["image"].HasField("image_domain")
    for name, feature in features.items():
        assert feature.presence.min_fraction == 1 and feature.HasField("shape"), name


def test_dataset_info_has_lengths_as_text_and_no_key_that_is_not_known(manifest):
    info = json.loads(json.dumps(metadata.dataset_info(manifest)))
    assert info["splits"][0]["shardLengths"] == ["3", "2"] and info["splits"][0]["numBytes"] == "50"
    assert set(info) <= {"name", "version", "fileFormat", "splits", "supervisedKeys"}


def test_every_kind_of_feature_has_a_word_in_tensorflow_datasets(manifest):
    from tf_input.dataset_format import FEATURE_KINDS

    for kind in FEATURE_KINDS:
        one = Manifest("x", 0, (Feature("f", kind, dtype="float64" if kind == "tensor" else ""),), {}, 0, 0)
        assert "pythonClassName" in metadata.features(one)["featuresDict"]["features"]["f"], kind


def test_a_manifest_survives_its_file(manifest):
    assert Manifest.from_json(manifest.to_json()) == manifest
    text = json.loads(json.dumps(manifest.to_json()))
    assert Manifest.from_json(text) == manifest


def test_a_manifest_names_every_file_of_its_shards_with_size_and_checksum(manifest):
    first, second = manifest.splits["train"]
    assert first.files() == ((first.name, 30, 1), ("a.idx", 7, 8), ("a.parquet", 9, 10))
    assert second.files() == (("b", 20, 2), ("b.idx", 11, 12))
