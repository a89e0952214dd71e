"""Tests the manifest, the TensorFlow Metadata schema, and the metadata files for TensorFlow Datasets."""

import dataclasses
import json
import re
from typing import Sequence

import pytest
from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2

from beam_pipelines.config.run_paths import RunPaths
from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.plan import ShardAddress
from beam_pipelines.elements.statistics import ImageStatistics
from beam_pipelines.errors import RunError, UserError
from beam_pipelines.publish.run_info import hide_secrets
from beam_pipelines.publish import metadata
from beam_pipelines.publish.accounting import check_sums
from beam_pipelines.publish.metadata import PublishSpec
from beam_pipelines.publish.write_metadata import write_metadata
from beam_pipelines.shards.shard_files import finish_shard
from listings import make_listing
from made_images import png
from made_plan import PlannedInput
from tf_input.dataset_format import Feature, Manifest, ShardInfo


@pytest.fixture
def manifest() -> Manifest:
    kinds = {"height": "integer", "image": "image", "key": "text", "label": "class_label"}
    shards = (
        ShardInfo("x-train.tfrecord-00000-of-00002", 3, 30, 1, "a.idx", 7, 8, "a.parquet", 9, 10),
        ShardInfo("b", 2, 20, 2, "b.idx", 11, 12),  # `recordmill transform` writes shards without a catalog.
    )
    names = {"label": ("ant", "<b>bee</b>")}
    schema = tuple(Feature(name, kind, (), names.get(name, ())) for name, kind in kinds.items())
    return Manifest("x", 0, schema, {"train": shards}, 6, 1)


def test_schema_pbtxt_is_a_valid_tensorflow_metadata_schema(manifest):
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


def test_dataset_info_has_only_known_keys_and_text_shard_lengths(manifest):
    info = json.loads(json.dumps(metadata.dataset_info(manifest)))
    assert info["splits"][0]["shardLengths"] == ["3", "2"] and info["splits"][0]["numBytes"] == "50"
    assert set(info) <= {"name", "version", "fileFormat", "splits", "supervisedKeys"}


def test_missing_shards_or_plan_prevent_manifest(tmp_path):
    planned = PlannedInput(tmp_path, {"ant/0.png": png(0), "ant/1.png": png(1)}, num_shards=2)

    def write(spec: PublishSpec, addresses: Sequence[ShardAddress]) -> None:
        write_metadata(b"", addresses, spec, {}, lambda *unused: {})

    addresses, of_plan = [shard.address for shard in planned.shards], planned.made.spec(PublishSpec)
    finish_shard(planned.context, planned.shards[0], planned.write_parts())
    missing = addresses[1]
    for expected, spec, written in (
        ("1 of 2 shards", of_plan, addresses[:1]),
        (f"shard {missing} is missing", of_plan, addresses),
        ("the plan of the run is missing", dataclasses.replace(of_plan, run=RunPaths(of_plan.run.output, "another")), addresses),
    ):
        with pytest.raises(RunError, match=re.escape(expected)):
            write(spec, written)
    assert not (tmp_path / "out").exists() and not list(tmp_path.rglob("manifest.json"))


def test_rejects_dataset_if_every_input_is_a_dead_letter(tmp_path):
    images = ImageStatistics()
    images.dead_letters.add([DeadLetter("ant/0.png", "check", "bad_image", "no image")])
    with pytest.raises(UserError, match="^no input .*:\n  - ant/0.png: no image \\(check\\)"):
        check_sums(images, images.dead_letters, make_listing("ant", num_inputs=1), 0.01)


def test_manifest_is_equal_after_json_round_trip(manifest):
    assert Manifest.from_json(manifest.to_json()) == manifest
    text = json.loads(json.dumps(manifest.to_json()))
    assert Manifest.from_json(text) == manifest


def test_shard_info_lists_each_file_with_size_and_checksum(manifest):
    first, second = manifest.splits["train"]
    assert first.files() == ((first.name, 30, 1), ("a.idx", 7, 8), ("a.parquet", 9, 10))
    assert second.files() == (("b", 20, 2), ("b.idx", 11, 12))


SECRETS = {
    "an option": ("aws_secret_access_key", "x1", "(hidden)"),
    "JSON": ("environment_config", '{"image": "i", "env": {"AWS_SECRET_ACCESS_KEY": "x1", "A": "b"}}', '{"image": "i", "env": {"AWS_SECRET_ACCESS_KEY": "(hidden)", "A": "b"}}'),
    "JSON in JSON": ("environment_config", '["{\\"token\\": \\"x1\\"}"]', '["{\\"token\\": \\"(hidden)\\"}"]'),
    "a list": ("experiments", ["a=b", "api_key=x1"], ["a=b", "api_key=(hidden)"]),
    "an object": ("labels", {"Password": "x1", "team": "y"}, {"Password": "(hidden)", "team": "y"}),
    "a URL": ("job_endpoint", "https://me:x1@host:8099/a?token=x1&b=c", "https://me:(hidden)@host:8099/a?token=(hidden)&b=c"),
    "no secret": ("runner", "FlinkRunner", "FlinkRunner"),
    "a number": ("parallelism", 4, 4),
}


@pytest.mark.parametrize("case", SECRETS)
def test_hides_secrets_in_pipeline_option_values(case):
    name, value, expected = SECRETS[case]
    assert hide_secrets(name, value) == expected
